"""What a Gantt chart shows, whatever draws it: bars in the rows of ranks, stretches of time; and one in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from textwrap import fill
from typing import NamedTuple

import numpy as np
from rich.text import Text

from sim.arrays import Array
from sim.engines import Program, Timeline, run
from sim.engines.program import priced_order, program_of
from sim.engines.tasks import COMPUTE, DATA, GRADIENTS, ONCE
from sim.engines.timeline import WHATS
from sim.errors import SpecError
from sim.estimate import Estimate, estimate
from sim.pricing.memory import activations_by_stage
from sim.report.figures import LOOKS, ink
from sim.schedules.actions import B, F, I, U
from sim.schedules.passes import in_flight
from sim.specs import Scenario
from sim.units import show_time


class Bars(NamedTuple):
    """Rows of the table of a step that are of one kind: spans of time in which ranks do it.

    what : of LOOKS.
    rank, begin, end : of every bar; [s] the times.
    action : of every bar the action that it shows; None for what is not an action.
    overlapped : whether the ranks do something else at the same time.
    """

    what: str
    rank: Array
    begin: Array
    end: Array
    action: Array | None = None
    overlapped: bool = False


@dataclass(frozen=True, slots=True)
class StepView:
    """One step, or of a schedule without flush the first two batches, with every action in it.

    answer : the estimate of the same scenario: step time, bubble, memory. It may have left repetitions out.
    timeline : the same order with everything in it.
    compute_end : of every action, when its compute ends; a send that blocks the rank comes after it. [s]
    begin : when each rank's step begins. [s]
    horizon : where a drawing ends. [s]
    share : of the step, what each rank works: compute, sends that block it, and what follows the pipeline.
    kept_bytes : activations a micro-batch keeps on each virtual stage. [bytes]
    """

    answer: Estimate
    timeline: Timeline
    start: Array
    compute_end: Array
    end: Array
    begin: Array
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

    def on(self, *streams: int) -> list[Bars]:
        """Rows of the table of tasks that are on these streams, apart by stream and what they are.

        `COMPUTE` has the actions, until what they send no longer keeps the rank. `ONCE` is what follows the pipeline;
        nothing where updates are actions of their own. `DATA` is what is moved at visits of chunks, and `GRADIENTS`
        what backwards overlap, both beside what ranks compute.
        """
        tasks, found = self.timeline.tasks, []
        for stream, (what, name) in product(streams, enumerate(WHATS)):
            here = np.flatnonzero((tasks.stream == stream) & (tasks.what == what))
            if len(here):
                here = here[np.lexsort((tasks.begin_s[here], tasks.rank[here]))]
                rows = (tasks.rank[here], tasks.begin_s[here], tasks.end_s[here])
                action = here if stream == COMPUTE else None
                found.append(Bars(name, *rows, action, overlapped=stream in (DATA, GRADIENTS)))
        return found

    @property
    def computing(self) -> list[Bars]:
        """The actions by kind, without sends."""
        return [each._replace(end=self.compute_end[each.action]) for each in self.on(COMPUTE)]

    def kept(self) -> list[tuple[Array, Array]]:
        """Curve of each rank's activations: (times, bytes kept from then on). [s], [bytes]"""
        order = self.program.order
        curves = []
        for rank, held in enumerate(in_flight(order, self.kept_bytes)):
            here = order.of_rank(rank)
            kind = order.kind[here]
            times = np.where(kind == F, self.start[here], self.end[here])
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
        arrived = self.end[sender] + (release - occupy)[sender]
        return receiver, sender, arrived - seconds, arrived


def step_view(scenario: Scenario, engine: str = "dag", answer: Estimate | None = None) -> StepView:
    """Play a scenario with everything in it that a picture needs.

    answer : Of the same scenario and engine, where there is one already.
    """
    answer = estimate(scenario, engine) if answer is None else answer
    timeline = answer.timeline
    if timeline.start is None:
        raise SpecError(f"engine {engine} gives totals, not a time for every action; use dag, des or shared")
    if timeline.program.order.fold is not None:
        order, costs = priced_order(scenario, fold=False)
        timeline = run(program_of(scenario, order, costs), engine)
    start, end, order, costs = timeline.start, timeline.end, timeline.program.order, timeline.program.costs
    sends = np.where(order.kind == F, costs.send_forward_s[order.stage], costs.send_backward_s[order.stage])
    blocks = costs.p2p_blocks * sends * np.isin(order.kind, (F, B, I))
    kept = activations_by_stage(scenario, order.rank_of_stage, order.copies)
    step_time = answer.step_time_s
    streams = bool((order.kind == U).any())
    horizon = float(timeline.begun_s.max()) + step_time
    if streams:  # what comes after the last but one batch is a drain that the real stream does not have
        last = answer.num_microbatches * max(1, int(order.microbatch.max()) // answer.num_microbatches) - 1
        horizon = float(end[(order.kind == U) & (order.microbatch == last)].max())
    tasks = timeline.tasks
    once = (tasks.end_s - tasks.begin_s) * (tasks.stream == ONCE)
    worked = answer.timeline.program.busy_per_rank() + np.bincount(tasks.rank, once, order.num_ranks)
    return StepView(answer, timeline, start, end - blocks, end, timeline.begun_s, horizon, worked / step_time, kept)


Spans = tuple[tuple[float, float], ...]
"""Stretches of time side by side, each from its begin to its end. [s]"""
FAR = 1.4
"""Times the median step: schedules that take longer are cut off in a comparison, and say so."""
WORTH = 0.8
"""Share of a step above which what is shown is not worth a break."""


def step_bars(view: StepView, shift: float = 0.0) -> list[Bars]:
    """Everything that ranks do in a step, in the order in which it is drawn: idle time lies under all else.

    shift : Time at which the drawing begins. [s]
    """
    order, stop = view.program.order, view.horizon - shift
    bars = view.computing
    sent = np.flatnonzero(view.end > view.compute_end)
    if len(sent):  # sends that keep their rank
        bars.append(Bars("send", order.rank[sent], view.compute_end[sent], view.end[sent]))
    idle_from, idle_to = view.begin, view.begin + view.answer.step_time_s
    if view.streams:
        idle_from, idle_to = np.zeros(order.num_ranks), np.full(order.num_ranks, stop)
        shown = ((each, np.minimum(each.begin - shift, stop), np.minimum(each.end - shift, stop)) for each in bars)
        bars = [each._replace(begin=begin, end=end) for each, begin, end in shown]
    return [Bars("idle", np.arange(order.num_ranks), idle_from, idle_to), *bars, *view.on(ONCE, DATA, GRADIENTS)]


def stretch(end: float, between: tuple[float | None, float | None]) -> tuple[float, float]:
    """The stretch of time that was asked for, or all there is up to `end`. [s]"""
    begin, stop = 0.0 if between[0] is None else between[0], end if between[1] is None else between[1]
    if not 0.0 <= begin < end or not stop > begin:
        raise SpecError(
            f"--from {begin:g} --to {stop:g} is no stretch of what there is to show, 0 to {end:.4g} seconds"
        )
    return begin, min(stop, end)


def spans_of(
    views: Sequence[StepView], places: float, between: tuple[float | None, float | None] = (None, None)
) -> Spans:
    """Stretches of time that are drawn: the whole step if an action can be seen in it, else its beginning and end.

    places : How many forwards side by side can still be told apart.
    between : A stretch that was asked for. [s]
    """
    several = len(views) > 1
    ends = [view.answer.step_time_s if several and view.streams else view.horizon for view in views]
    if several:  # one schedule that is far slower than the others would make them small
        ends = [end for end in ends if end <= FAR * np.median(ends)]
    end = max(ends)
    if between != (None, None):
        return (stretch(end, between),)
    forward = float(np.median([np.median((v.end - v.start)[v.program.order.kind == F]) for v in views]))
    fill, drain = np.median([transients(view) for view in views], axis=0).tolist()
    half = places * forward / 2
    head, tail = max(fill * 1.1, half), min(ends) - max(drain * 1.1, half)
    if end <= 2 * half or head + end - tail >= WORTH * end:
        return ((0.0, end),)
    return ((0.0, head), (tail, end))


def transients(view: StepView) -> tuple[float, float]:
    """(until a backward has come through every stage, from the first stage's last forward on). [s]

    Between the two a step may be cut: all there is like what is next to it. A stream without flush does not drain.
    """
    order = view.program.order
    backwards, forwards = np.flatnonzero(order.kind != F), np.flatnonzero(order.kind == F)
    first, last = np.full(order.num_stages, np.inf), np.zeros(order.num_stages)
    np.minimum.at(first, order.stage[backwards], view.end[backwards])
    np.maximum.at(last, order.stage[forwards], view.end[forwards])
    return float(first.max()), 0.0 if view.streams else float(view.horizon - last.min())


def time_unit(seconds: float) -> tuple[float, str]:
    """(units in a second, its name) in which such a time has few digits."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


MOST_ROWS = 24
"""Ranks that are shown; of more, as many evenly apart."""
IDLE = LOOKS["idle"].letter


def gantt_text(view: StepView, width: int, between: tuple[float | None, float | None] = (None, None)) -> Text:
    """Title, lanes with the idle share at the right, the moments at both ends, and what the letters are.

    width : Columns of the terminal.
    between : A stretch of the step; all of it if not given. [s]
    """
    ranks, (begin, end) = view.program.order.num_ranks, stretch(view.horizon, between)
    label = len(f"rank {ranks - 1} ")
    columns = max(16, width - label - 8)
    moments = begin + (np.arange(columns) + 0.5) * (end - begin) / columns
    text = Text(f"{view.scenario.plan.schedule}: {view.words}", style="bold")
    text.append(f"  {view.scenario.model.name}, {view.answer.num_microbatches:,} micro-batches\n", style="dim")
    text.append(f"{'idle':>{label + columns + 8}}\n", style="dim")
    styles = {look.letter: f"{ink(look.colour)} on {look.colour}" for look in LOOKS.values()} | {IDLE: "dim"}
    rows = np.unique(np.linspace(0, ranks - 1, min(ranks, MOST_ROWS)).round().astype(int)).tolist()
    # What occupies ranks: actions until their send no longer keeps the rank, and what follows the pipeline.
    bars, seen = view.on(COMPUTE, ONCE), set[str]()
    for rank in rows:
        letters = np.full(columns, IDLE)
        for each in bars:
            here = np.flatnonzero(each.rank == rank)
            if len(here):
                at = here[np.maximum(np.searchsorted(each.begin[here], moments, side="right") - 1, 0)]
                letters[(each.begin[at] <= moments) & (moments < each.end[at])] = LOOKS[each.what].letter
        seen |= set(letters.tolist())
        text.append(f"{f'rank {rank}':<{label}}")
        for letter in letters.tolist():
            text.append(letter, style=styles[letter])
        text.append(f" {np.clip(1 - view.share[rank], 0, 1):6.1%}\n", style="dim")
    first, last = show_time(begin) if begin else "0", show_time(end)
    text.append(f"{'':{label}}{first}{last:>{columns - len(first)}}\n")
    notes = [f"{len(rows)} of {ranks} ranks are shown; --png draws them all"] if len(rows) < ranks else []
    if (end - begin) / columns > float(np.median(view.end - view.start)):
        notes.append("actions are shorter than a column; --from and --to show less time, and so each of them")
    if view.streams:
        notes.append("no flush: the first two batches are shown, later ones repeat")
    names = ", ".join(f"{look.letter} {look.name}" for look in LOOKS.values() if look.letter in seen)
    notes.append(fill(f"each column is what runs at its middle: {names}", width))
    return text.append("\n".join(notes), style="dim")
