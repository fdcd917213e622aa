"""A scenario's whole run: days with failures and checkpoints, GPU-hours, money and energy, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from sim.assumptions import NO_FAILURES
from sim.errors import FlopcastError, SpecError, require_positive
from sim.estimate import Estimate, estimate
from sim.reliability.storing import LOAD_WORDS, DataLoading, data_loading, storing_of
from sim.scaling.ramp import BEST, Ramp, against_none, best_ramp, parse_ramp, ramped, ramped_tokens
from sim.scaling.run import DEFAULT_BATCH_LAW, Terms, TrainingRun, goal_of_model, training_run, unknown_energy
from sim.scaling.staleness import NONE, Staleness, staleness_of
from sim.specs import Scenario
from sim.specs.loading import as_scenario
from sim.units import show, show_time


@dataclass(frozen=True, slots=True)
class Training:
    """A run, and the runs at both ends of the step time's 90 % interval.

    background : the run with checkpoints written in the background; None where the node does not say how fast GPUs copy
        to their host.
    data : how fast it reads its data.
    late : how late gradients are, where a model of it was asked for and some are; and `stale`, the run where that costs
        as much as it may. The others take what it costs at the least.
    """

    answer: Estimate
    run: TrainingRun
    low: TrainingRun
    high: TrainingRun
    background: TrainingRun | None
    data: DataLoading
    assumptions: tuple[str, ...]
    late: Staleness | None = None
    stale: TrainingRun | None = None

    def __repr__(self) -> str:
        """One line."""
        return f"<Training {self.answer.scenario.name}: {self.run!r}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        ends = (self.low.to_dict(), self.high.to_dict())
        return {
            "scenario": self.answer.scenario.name,
            **self.run.to_dict(),
            "intervals": {
                name: [end[name] for end in ends]
                for name in ("step_time_s", "useful_days", "days", "gpu_hours", "cost", "energy_j")
                if self.run.to_dict()[name] is not None
            },
            "goodput_parts": {
                name: getattr(self.run.goodput, name)
                for name in ("useful", "checkpoints", "lost_work", "restarts", "waiting")
            },
            "checkpoint_interval_s": self.run.checkpoints.interval_s,
            "checkpoint_blocking_s": self.run.checkpoints.blocking_s,
            "checkpoint": self._checkpoint(),
            "restart": self._restart(),
            "data": {"bytes_per_s": self.data.bytes_per_s, "storage_bytes_per_s": self.data.limit_bytes_per_s},
            "fits": self.answer.fits,
            **self._staleness(),
            "assumptions": list(self.assumptions),
        }

    def _checkpoint(self) -> dict[str, Any]:
        storing, there = self.run.storing, self.background
        found = {
            "bytes": storing.checkpoint_bytes,
            "largest_gpu_bytes": storing.largest_bytes,
            "write_s": storing.write_s,
            "limit": storing.limit,
            "drain_s": self.run.checkpoints.drain_s,
        }
        if there is not None:
            found["asynchronous"] = {
                "interval_s": there.checkpoints.interval_s,
                "blocking_s": there.checkpoints.blocking_s,
                "drain_s": there.checkpoints.drain_s,
                "goodput": there.goodput.useful,
                "days": there.days,
            }
        return found

    def _restart(self) -> dict[str, Any]:
        failures, loads = self.run.failures, self.run.storing.loads
        return {
            "seconds": failures.restart_s,
            "startup_s": failures.startup_s,
            "load_s": failures.load_s,
            "loads": {way: {"read_s": load.read_s, "spread_s": load.spread_s} for way, load in loads.items()},
        }

    def _staleness(self) -> dict[str, Any]:
        if self.late is None or self.stale is None:
            return {}
        ends = (self.run, self.stale)
        of_ends = {name: [getattr(end, name) for end in ends] for name in ("tokens", "steps", "days", "cost")}
        return {"staleness": {"model": self.late.model.name, "delay": self.late.delay, **of_ends}}


def train(
    scenario: Scenario | Path | str,
    *,
    tokens: float | None = None,
    loss: float | None = None,
    within_s: float | None = None,
    batch_law: str = DEFAULT_BATCH_LAW,
    ramp: Ramp | str | None = None,
    terms: Terms | None = None,
    staleness: str = NONE,
) -> Training:
    """What the scenario's run takes.

    Parameters
    ----------
    scenario : Scenario or path
    tokens : float, optional
        Tokens of the whole run; default: the scenario's.
    loss : float, optional
        Loss to reach, instead of tokens. A loss law gives the data: more, the nearer the batch is to the critical one.
    within_s : float, optional
        Time of the whole run, failures and checkpoints included, instead of tokens: it takes in as many as it can. [s]
    batch_law : str
        Law of the critical batch, used with a loss (flopcast scaling laws).
    ramp : Ramp or str, optional
        Batch ramp: '1/4, 1/2@2%, 1@20%' means batch @ data; or best. The plan keeps its GPUs and runs fewer
        micro-batches. With a loss it saves data; a token budget stays what it is.
    terms : Terms, optional
        Failures, storage, prices.
    staleness : str
        How late gradients slow the way to a loss: none, delayed-sgd or measured. See `sim.scaling.staleness`.

    Raises
    ------
    SpecError
        Not one of tokens, time and loss alone; a loss the model cannot reach, or a ramp that the plan cannot run.
    """
    scenario = as_scenario(scenario)
    if within_s is not None:
        if tokens is not None or loss is not None or ramp is not None:
            raise SpecError("--within says how long the run is; leave --tokens, --loss and --ramp out")
        require_positive(within_s=within_s)
        step = train(scenario, tokens=scenario.training.tokens_per_step, terms=terms)
        tokens = step.run.tokens * within_s / step.run.wall_s  # both grow alike
    terms = (terms or Terms()).priced(scenario.cluster.gpu)
    answer = estimate(scenario)
    training = scenario.training
    notes: list[str] = []
    budget = training.tokens if tokens is None and loss is None else tokens
    if budget is None and loss is None:
        raise SpecError("how long is the run? Give --tokens, --within or --loss, or set the scenario's training.tokens")
    goal = None
    if loss is not None or ramp == BEST:
        goal = goal_of_model(scenario.model, tokens=budget, loss=loss, batch_law=batch_law)
    if isinstance(ramp, str):
        ramp = best_ramp(goal) if goal is not None and ramp == BEST else parse_ramp(ramp)
    late = staleness_of(staleness, answer.timeline)
    if staleness != NONE and loss is None:
        raise SpecError(
            f"staleness model {staleness!r} says what a loss takes, and there is none; give --loss, or leave it"
        )
    most = None
    if goal is not None and loss is not None:
        batch = float(training.tokens_per_step)
        ends = (batch, batch) if late is None else late.batches(batch)
        tokens, most = (
            float(goal.tokens(end)) if ramp is None else ramped_tokens(ramp, goal, float(end)) for end in ends
        )
        notes += goal.notes
        if staleness != NONE:
            notes.append(f"no gradient of schedule {scenario.plan.schedule} is late" if late is None else late.note)
        if ramp is not None:
            notes.append(f"batch ramp {ramp}; {against_none(ramp, goal, batch)}")
    else:
        tokens = budget
        if ramp is not None:
            notes.append(f"batch ramp {ramp}; as many tokens as without it")
    assert tokens is not None
    sequences = tokens / training.sequence_length
    steps, average = tokens / training.tokens_per_step, answer.step_time_s
    if ramp is not None:
        steps, average = ramped(
            ramp, training.global_batch_size, answer.num_gpus, answer.step_time_s, sequences, _Smaller(scenario)
        )
    storing, node = storing_of(scenario), scenario.cluster.node
    data = data_loading(scenario, tokens / (steps * average), terms.stored(storing))
    if data.slowdown > 1.0:
        notes.append(
            f"limited by data: {show(data.bytes_per_s, 'B/s')} are asked of storage that gives "
            f"{show(data.limit_bytes_per_s, 'B/s')}, and steps take {data.slowdown:.3g} times as long"
        )
        average *= data.slowdown

    def run_of(factor: float, terms: Terms, more: float = 1.0) -> TrainingRun:
        """Return the run with steps so many times as long, and so many times as much data."""
        assert tokens is not None
        return training_run(storing, answer.num_gpus, node, average * factor, steps * more, tokens * more, terms)

    run, low, high = (
        run_of(factor, terms) for factor in (1.0, *(end / answer.step_time_s for end in answer.step_time_interval_s))
    )
    background = None if storing.pause_s is None else run_of(1.0, replace(terms, asynchronous=True))
    stale = None if late is None or most is None else run_of(1.0, terms, most / tokens)
    if run.loaded_by is not None:
        loads = run.storing.loads
        others = ", ".join(
            f"{show_time(load.seconds)} with {way}" for way, load in loads.items() if way != run.loaded_by
        )
        notes.append(
            f"to load a checkpoint, {LOAD_WORDS[run.loaded_by]}: {show_time(loads[run.loaded_by].seconds)}; "
            f"flopcast train --load-by sets another way ({others})"
        )
    stated = [note for note in answer.assumptions if note != NO_FAILURES]
    if run.energy_j is None:
        notes.append(unknown_energy(node))
    said = (*notes, *terms.assumptions, *run.storing.notes, *stated)
    return Training(answer, run, low, high, background, data, said, late, stale)


@dataclass(frozen=True, slots=True)
class _Smaller:
    """Step times of a scenario's own plan at smaller batches."""

    scenario: Scenario

    def at_most(self, batch: int, num_gpus: int) -> float:
        """Step time of the plan with as many micro-batches as the batch gives.  [s]"""
        training = self.scenario.training.replace(global_batch_size=batch)
        try:
            seconds = estimate(self.scenario.replace(training=training)).step_time_s
        except FlopcastError as error:
            raise SpecError(f"the plan cannot run the ramp's batch of {batch:,} sequences: {error}") from None
        assert isfinite(seconds)
        return seconds
