"""What a Gantt chart shows, whatever draws it: one table of what every rank does when; and the chart in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill

import numpy as np
from rich.text import Text

from sim.arrays import Array
from sim.engines import Program, Timeline, run
from sim.engines.program import priced_order, program_of
from sim.engines.tasks import COMPUTE, ONCE
from sim.engines.timeline import TaskTable
from sim.errors import SpecError
from sim.estimate import Estimate, estimate
from sim.pricing.memory import activations_by_stage
from sim.report.figures import LOOKS, ink
from sim.schedules.actions import B, F, I, U
from sim.schedules.passes import in_flight
from sim.specs import Scenario
from sim.units import show_time

Between = tuple[float | None, float | None]
"""A stretch of a step that is asked for; all of it if neither end is given. [s]"""


@dataclass(frozen=True, slots=True)
class StepView:
    """One step, or of a schedule without flush the first two batches, with every action in it.

    answer : the estimate of the same scenario: step time, bubble, memory. It may have left repetitions out.
    timeline : the same order with everything in it.
    compute_end : of every action, when its compute ends; a send that blocks the rank comes after it. [s]
    horizon : where a drawing ends. [s]
    share : of the step, what each rank works: compute, sends that block it, and what follows the pipeline.
    kept_bytes : activations a micro-batch keeps on each virtual stage. [bytes]
    """

    answer: Estimate
    timeline: Timeline
    compute_end: Array
    horizon: float
    share: Array
    kept_bytes: Array

    @property
    def scenario(self) -> Scenario:
        """The question."""
        return self.answer.scenario

    @property
    def program(self) -> Program:
        """Order and seconds."""
        return self.timeline.program

    @property
    def words(self) -> str:
        """How long a step takes, and how much of it ranks wait."""
        period = "a batch every" if self.streams else "step"
        return f"{period} {show_time(self.answer.step_time_s)}, bubble {self.answer.bubble_fraction:.1%}"

    @property
    def streams(self) -> bool:
        """Whether batches follow each other without a flush."""
        return bool((self.program.order.kind == U).any())

    @property
    def chunk(self) -> Array:
        """Chunk that each action is for, from 0: the place of its stage among those of its rank in the same copy."""
        order = self.program.order
        copy = np.arange(order.num_stages) // (order.num_stages // order.copies)
        held = order.rank_of_stage * order.copies + copy
        local = np.array([(held[:stage] == held[stage]).sum() for stage in range(order.num_stages)])
        return np.asarray(local[order.stage])

    def paleness(self) -> Array:
        """How pale each action is drawn, 0 to 1: every other batch, later slices of a sequence or later chunks.

        A copy of the model that runs from the last rank to the first has a shade of its own.
        """
        order, slices = self.program.order, self.scenario.plan.sequence_slices
        if self.streams:
            tone = order.microbatch // self.answer.num_microbatches % 2
        else:
            tone = order.microbatch % slices if slices > 1 else self.chunk
        other_way = order.stage >= order.num_stages // order.copies
        return np.where(other_way, 0.75, tone / max(1, int(tone.max())))

    def labels(self) -> list[str]:
        """Micro-batch of each action, with a letter for the slice of its sequence where there are slices."""
        slices = self.scenario.plan.sequence_slices
        letters = [chr(ord("a") + number) if number < 26 else f".{number}" for number in range(slices)]
        letters = letters if slices > 1 else [""]
        return [f"{each // slices}{letters[each % slices]}" for each in self.program.order.microbatch.tolist()]

    def bars(self, *streams: int) -> TaskTable:
        """What each rank does on these streams, or on all; a rank's stream in the order of time.

        `action` is −1 for what is none, and an action ends before the send that may keep its rank.
        """
        tasks = self.timeline.tasks
        end = np.concatenate([self.compute_end, tasks.end_s[len(self.compute_end) :]])
        rows = tasks._replace(action=np.where(tasks.stream == COMPUTE, tasks.action, -1), end_s=end)
        rows = rows.where(np.lexsort((rows.begin_s, rows.rank, rows.stream)))
        return rows.where(np.isin(rows.stream, streams)) if streams else rows

    def kept(self) -> list[tuple[Array, Array]]:
        """Curve of each rank's activations: (times, bytes kept from then on). [s], [bytes]"""
        order = self.program.order
        curves = []
        for rank, held in enumerate(in_flight(order, self.kept_bytes)):
            here = order.of_rank(rank)
            times = np.where(order.kind[here] == F, self.timeline.start[here], self.timeline.end[here])
            # What is freed and taken at the same moment was never free.
            lasting = np.append(np.diff(times) > 1e-9 * max(1e-30, float(times[-1])), True)
            curves.append((times[lasting], held[lasting]))
        return curves

    def sends(self) -> tuple[Array, Array, Array, Array]:
        """(receiving action, sending action, when the send begins, when it has arrived) of everything sent. [s]"""
        order, costs = self.program.order, self.program.costs
        _, occupy, release = self.program.action_seconds()
        needs = order.abroad(order.needs)
        receiver = np.flatnonzero(needs >= 0)
        sender = needs[receiver]
        forward = order.kind[sender] == F
        stage = order.stage[sender]
        seconds = np.where(forward, costs.send_forward_s[stage], costs.send_backward_s[stage])
        arrived = self.timeline.end[sender] + (release - occupy)[sender]
        return receiver, sender, arrived - seconds, arrived


def step_view(asked: Scenario | Estimate) -> StepView:
    """Play a scenario, or that of an answer, with everything in it that a picture needs."""
    answer = asked if isinstance(asked, Estimate) else estimate(asked)
    scenario, timeline = answer.scenario, answer.timeline
    if timeline.program.order.fold is not None:
        order, costs = priced_order(scenario, fold=False)
        timeline = run(program_of(scenario, order, costs), answer.engine)
    end, order, costs = timeline.end, timeline.program.order, timeline.program.costs
    sends = np.where(order.kind == F, costs.send_forward_s[order.stage], costs.send_backward_s[order.stage])
    blocks = costs.p2p_blocks * sends * np.isin(order.kind, (F, B, I))
    kept = activations_by_stage(scenario, order.rank_of_stage, order.copies)
    step_time = answer.step_time_s
    horizon = float(timeline.begun_s.max()) + step_time
    if (order.kind == U).any():  # what comes after the last but one batch is a drain that the real stream does not have
        last = answer.num_microbatches * max(1, int(order.microbatch.max()) // answer.num_microbatches) - 1
        horizon = float(end[(order.kind == U) & (order.microbatch == last)].max())
    tasks = timeline.tasks
    once = (tasks.end_s - tasks.begin_s) * (tasks.stream == ONCE)
    worked = answer.timeline.program.busy_per_rank() + np.bincount(tasks.rank, once, order.num_ranks)
    return StepView(answer, timeline, end - blocks, horizon, worked / step_time, kept)


def stretch(end: float, between: Between) -> tuple[float, float]:
    """The stretch of time that was asked for, or all there is up to `end`. [s]"""
    begin, stop = 0.0 if between[0] is None else between[0], end if between[1] is None else between[1]
    if not 0.0 <= begin < end or not stop > begin:
        raise SpecError(
            f"--from {begin:g} --to {stop:g} is no stretch of what there is to show, 0 to {end:.4g} seconds"
        )
    return begin, min(stop, end)


MOST_ROWS = 24
"""Ranks that are shown; of more, as many evenly apart."""
IDLE = LOOKS["idle"].letter


def gantt_text(view: StepView, width: int, between: Between = (None, None)) -> Text:
    """Title, lanes with the idle share at the right, the moments at both ends, and what the letters are.

    width : Columns of the terminal.
    """
    ranks, (begin, end) = view.program.order.num_ranks, stretch(view.horizon, between)
    label = len(f"rank {ranks - 1} ")
    columns = max(16, width - label - 8)
    moments = begin + (np.arange(columns) + 0.5) * (end - begin) / columns
    text = Text(f"{view.scenario.plan.schedule}: {view.words}", style="bold", no_wrap=True, overflow="ignore")
    text.append(f"  {view.scenario.model.name}, {view.answer.num_microbatches:,} micro-batches\n", style="dim")
    text.append(f"{'idle':>{label + columns + 8}}\n", style="dim")
    styles = {look.letter: f"{ink(look.colour)} on {look.colour}" for look in LOOKS.values()} | {IDLE: "dim"}
    rows = np.unique(np.linspace(0, ranks - 1, min(ranks, MOST_ROWS)).round().astype(int)).tolist()
    # What occupies ranks: actions until their send no longer keeps the rank, and what follows the pipeline.
    tasks = view.timeline.tasks
    occupied, seen = np.isin(tasks.stream, (COMPUTE, ONCE)), set[str]()
    for rank in rows:
        here = np.flatnonzero(occupied & (tasks.rank == rank))
        here = here[np.argsort(tasks.begin_s[here], kind="stable")]
        at = here[np.maximum(np.searchsorted(tasks.begin_s[here], moments, side="right") - 1, 0)]
        busy = (tasks.begin_s[at] <= moments) & (moments < tasks.end_s[at])
        letters = [LOOKS[what].letter if on else IDLE for what, on in zip(tasks.what[at], busy, strict=True)]
        seen |= set(letters)
        text.append(f"{f'rank {rank}':<{label}}")
        for letter in letters:
            text.append(letter, style=styles[letter])
        text.append(f" {np.clip(1 - view.share[rank], 0, 1):6.1%}\n", style="dim")
    first, last = show_time(begin) if begin else "0", show_time(end)
    text.append(f"{'':{label}}{first}{last:>{columns - len(first)}}\n")
    notes = [f"{len(rows)} of {ranks} ranks are shown; --figure draws them all"] if len(rows) < ranks else []
    if (end - begin) / columns > float(np.median(view.timeline.end - view.timeline.start)):
        notes.append("actions are shorter than a column; --from and --to show less time, and so each of them")
    if view.streams:
        notes.append("no flush: the first two batches are shown, later ones repeat")
    names = ", ".join(f"{look.letter} {look.name}" for look in LOOKS.values() if look.letter in seen)
    notes.append(fill(f"each column is what runs at its middle: {names}", width))
    return text.append("\n".join(notes), style="dim")
