"""A scenario's whole run: days with failures and checkpoints, GPU-hours, money and energy, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sim.assumptions import NO_FAILURES
from sim.errors import SpecError, require_positive
from sim.estimate import Estimate, estimate
from sim.reliability.storing import LOAD_WORDS, DataLoading, Storing, data_loading, storing_of
from sim.scaling.run import (
    DEFAULT_BATCH_LAW,
    Terms,
    TrainingRun,
    goal_of_model,
    rented_gpus,
    training_run,
    unknown_energy,
)
from sim.specs import Scenario
from sim.specs.loading import as_scenario
from sim.units import show, show_time


@dataclass(frozen=True, slots=True)
class Training:
    """A run, and the runs at both ends of the step time's 90 % interval: with shorter steps and with longer ones.

    If the time was given, all three take it, and differ in how many tokens they train on.

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
        intervals = ("step_time_s", "tokens", "steps", "useful_days", "days", "gpu_hours", "cost", "energy_j")
        shares = ("useful", "checkpoints", "lost_work", "restarts", "waiting")
        failures, storing = self.run.failures, self.run.storing
        return {
            "scenario": self.answer.scenario.name,
            **run,
            "intervals": {name: sorted(end[name] for end in ends) for name in intervals if run[name] is not None},
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
    terms : Terms, optional
        Failures, storage, prices.

    Raises
    ------
    SpecError
        Not one of tokens, time and loss alone, or a loss that the model cannot reach.
    """
    scenario = as_scenario(scenario)
    if within_s is not None:
        if tokens is not None or loss is not None:
            raise SpecError("--within says how long the run is; leave --tokens and --loss out")
        require_positive(within_s=within_s)
        step = train(scenario, tokens=scenario.training.tokens_per_step, terms=terms)
        tokens = step.run.tokens * within_s / step.run.wall_s  # both grow alike
    terms = (terms or Terms()).priced(scenario.cluster.gpu)
    answer, training = estimate(scenario), scenario.training
    data, notes = _data_of(scenario, tokens, loss, batch_law)
    steps, average = data / training.tokens_per_step, answer.step_time_s
    storing, node = storing_of(scenario), scenario.cluster.node
    loading = data_loading(scenario, data / (steps * average), storing)
    if loading.slowdown > 1.0:
        notes.append(
            f"limited by data: {show(loading.bytes_per_s, 'B/s')} are asked of storage that gives "
            f"{show(loading.limit_bytes_per_s, 'B/s')}, and steps take {loading.slowdown:.3g} times as long"
        )
        average *= loading.slowdown

    def run_of(factor: float, terms: Terms) -> TrainingRun:
        """Return the run with steps so many times as long, and as many fewer of them where the time was given."""
        fewer = 1.0 if within_s is None else factor
        return training_run(storing, answer.num_gpus, node, average * factor, steps / fewer, data / fewer, terms)

    low, high = (run_of(end / answer.step_time_s, terms) for end in answer.step_time_interval_s)
    run, background = run_of(1.0, terms), None
    if storing.pause_s is not None:
        background = run_of(1.0, replace(terms, asynchronous=True))
    ways = (f"{show_time(load.seconds)} with {LOAD_WORDS[by]}" for by, load in storing.loads.items())
    notes.append(f"loading a checkpoint takes {', '.join(ways)}; the fastest way is used")
    if run.energy_j is None:
        notes.append(unknown_energy(node))
    if (rented := rented_gpus(answer.num_gpus, node)) > answer.num_gpus:
        notes.append(f"all {rented:,} GPUs of the nodes are paid for, although the plan uses {answer.num_gpus:,}")
    stated = [note for note in answer.assumptions if note != NO_FAILURES]
    said = (*notes, *terms.assumptions, *run.storing.notes, *stated)
    return Training(answer, run, low, high, background, loading, said)


def _data_of(scenario: Scenario, tokens: float | None, loss: float | None, batch_law: str) -> tuple[float, list[str]]:
    """Tokens of the whole run, and what was assumed of them."""
    if loss is None:
        budget = scenario.training.tokens if tokens is None else tokens
        if budget is None:
            raise SpecError(
                "how long is the run? Give --tokens, --within or --loss, or set the scenario's training.tokens"
            )
        return budget, []
    goal = goal_of_model(scenario.model, tokens=tokens, loss=loss, batch_law=batch_law)
    return float(goal.tokens(float(scenario.training.tokens_per_step))), [*goal.notes]
