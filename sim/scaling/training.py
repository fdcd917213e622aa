"""A scenario's whole run: days with failures and checkpoints, GPU-hours, money and energy, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sim.assumptions import NO_FAILURES
from sim.errors import FlopcastError, SpecError, require_positive
from sim.estimate import Estimate, estimate
from sim.reliability.storing import LOAD_WORDS, DataLoading, Storing, data_loading, storing_of
from sim.scaling.ramp import Ramp, against_none, parse_ramp, ramped, ramped_tokens
from sim.scaling.run import DEFAULT_BATCH_LAW, Terms, TrainingRun, goal_of_model, training_run, unknown_energy
from sim.specs import Scenario
from sim.specs.loading import as_scenario
from sim.units import show, show_time


@dataclass(frozen=True, slots=True)
class Training:
    """A run, and the runs at both ends of the step time's 90 % interval.

    background : the run with checkpoints written in the background; None where the node does not say how fast GPUs copy
        to their host.
    data : how fast it reads its data.
    """

    answer: Estimate
    run: TrainingRun
    low: TrainingRun
    high: TrainingRun
    background: TrainingRun | None
    data: DataLoading
    assumptions: tuple[str, ...]

    def __repr__(self) -> str:
        """One line."""
        return f"<Training {self.answer.scenario.name}: {self.run!r}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        run, ends = self.run.to_dict(), (self.low.to_dict(), self.high.to_dict())
        intervals = ("step_time_s", "useful_days", "days", "gpu_hours", "cost", "energy_j")
        shares = ("useful", "checkpoints", "lost_work", "restarts", "waiting")
        failures, storing = self.run.failures, self.run.storing
        return {
            "scenario": self.answer.scenario.name,
            **run,
            "intervals": {name: [end[name] for end in ends] for name in intervals if run[name] is not None},
            "goodput_parts": {name: getattr(self.run.goodput, name) for name in shares},
            "checkpoint_interval_s": self.run.checkpoints.interval_s,
            "checkpoint_blocking_s": self.run.checkpoints.blocking_s,
            "checkpoint": self._checkpoint(storing),
            "restart": {
                "seconds": failures.restart_s,
                "startup_s": failures.startup_s,
                "load_s": failures.load_s,
                "loads": {by: {"read_s": each.read_s, "spread_s": each.spread_s} for by, each in storing.loads.items()},
            },
            "data": {"bytes_per_s": self.data.bytes_per_s, "storage_bytes_per_s": self.data.limit_bytes_per_s},
            "fits": self.answer.fits,
            "assumptions": list(self.assumptions),
        }

    def _checkpoint(self, storing: Storing) -> dict[str, Any]:
        found = {
            "bytes": storing.checkpoint_bytes,
            "largest_gpu_bytes": storing.largest_bytes,
            "write_s": storing.write_s,
            "limit": storing.limit,
            "drain_s": self.run.checkpoints.drain_s,
        }
        if (there := self.background) is not None:
            saved = {name: getattr(there.checkpoints, name) for name in ("interval_s", "blocking_s", "drain_s")}
            found["asynchronous"] = {**saved, "goodput": there.goodput.useful, "days": there.days}
        return found


def train(
    scenario: Scenario | Path | str,
    *,
    tokens: float | None = None,
    loss: float | None = None,
    within_s: float | None = None,
    batch_law: str = DEFAULT_BATCH_LAW,
    ramp: Ramp | str | None = None,
    terms: Terms | None = None,
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
        Batch ramp: '1/4, 1/2@2%, 1@20%' means batch @ data. The plan keeps its GPUs and runs fewer
        micro-batches. With a loss it saves data; a token budget stays what it is.
    terms : Terms, optional
        Failures, storage, prices.

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
    answer, training = estimate(scenario), scenario.training
    data, ramp, notes = _data_of(scenario, tokens, loss, batch_law, ramp)
    steps, average = data / training.tokens_per_step, answer.step_time_s
    if ramp is not None:
        sequences = data / training.sequence_length
        steps, average = ramped(
            ramp, training.global_batch_size, answer.num_gpus, average, sequences, lambda *at: _smaller(scenario, *at)
        )
    storing, node = storing_of(scenario), scenario.cluster.node
    loading = data_loading(scenario, data / (steps * average), terms.stored(storing))
    if loading.slowdown > 1.0:
        notes.append(
            f"limited by data: {show(loading.bytes_per_s, 'B/s')} are asked of storage that gives "
            f"{show(loading.limit_bytes_per_s, 'B/s')}, and steps take {loading.slowdown:.3g} times as long"
        )
        average *= loading.slowdown

    def run_of(factor: float, terms: Terms) -> TrainingRun:
        """Return the run with steps so many times as long."""
        return training_run(storing, answer.num_gpus, node, average * factor, steps, data, terms)

    low, high = (run_of(end / answer.step_time_s, terms) for end in answer.step_time_interval_s)
    run, background = run_of(1.0, terms), None
    if storing.pause_s is not None:
        background = run_of(1.0, replace(terms, asynchronous=True))
    if run.loaded_by is not None:
        loads = run.storing.loads
        others = (f"{show_time(load.seconds)} with {by}" for by, load in loads.items() if by != run.loaded_by)
        notes.append(
            f"to load a checkpoint, {LOAD_WORDS[run.loaded_by]}: {show_time(loads[run.loaded_by].seconds)}; "
            f"flopcast train --load-by sets another way ({', '.join(others)})"
        )
    if run.energy_j is None:
        notes.append(unknown_energy(node))
    stated = [note for note in answer.assumptions if note != NO_FAILURES]
    said = (*notes, *terms.assumptions, *run.storing.notes, *stated)
    return Training(answer, run, low, high, background, loading, said)


def _data_of(
    scenario: Scenario, tokens: float | None, loss: float | None, batch_law: str, ramp: Ramp | str | None
) -> tuple[float, Ramp | None, list[str]]:
    """Tokens of the whole run, its ramp, and what was assumed of both."""
    budget = scenario.training.tokens if tokens is None and loss is None else tokens
    if budget is None and loss is None:
        raise SpecError("how long is the run? Give --tokens, --within or --loss, or set the scenario's training.tokens")
    ramp = parse_ramp(ramp) if isinstance(ramp, str) else ramp
    if loss is None:
        assert budget is not None
        return budget, ramp, [] if ramp is None else [f"batch ramp {ramp}; as many tokens as without it"]
    goal = goal_of_model(scenario.model, tokens=budget, loss=loss, batch_law=batch_law)
    batch = float(scenario.training.tokens_per_step)
    if ramp is None:
        return float(goal.tokens(batch)), None, [*goal.notes]
    notes = [*goal.notes, f"batch ramp {ramp}; {against_none(ramp, goal, batch)}"]
    return ramped_tokens(ramp, goal, batch), ramp, notes


def _smaller(scenario: Scenario, batch: int, num_gpus: int) -> float:
    """Step time of a scenario's own plan with as many micro-batches as a smaller batch gives.  [s]"""
    try:
        return estimate(scenario.replace(training=scenario.training.replace(global_batch_size=batch))).step_time_s
    except FlopcastError as error:
        raise SpecError(f"the plan cannot run the ramp's batch of {batch:,} sequences: {error}") from None
