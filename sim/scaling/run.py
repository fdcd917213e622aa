"""A whole training run from its step time: days with failures and checkpoints, GPU-hours, money, energy."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sim.assumptions import NO_FAILURES
from sim.errors import SpecError, require_positive
from sim.estimate import Estimate, estimate
from sim.reliability.cost import Price, listed_price
from sim.reliability.goodput import Checkpoints, Failures, Goodput, best_interval, goodput, job_mtbf
from sim.reliability.storing import LOAD_WORDS, DataLoading, Storing, data_loading, require_pause, storing_of
from sim.scaling.goal import DEFAULT_BATCH_LAW, goal_of_model
from sim.specs import GpuSpec, NodeSpec, Scenario
from sim.specs.loading import as_scenario
from sim.units import show, show_short, show_time

LARGEST_PUE = 10.0
"""Beyond it a PUE is a slip of the pen."""
LEAST_USEFUL = 0.01
"""Share of the time below which a run is refused rather than said to take centuries."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a cluster fails, how state is saved and loaded, and what it costs.

    failures : their rate, and how they are put right; loading a checkpoint comes on top, by the storage.
    asynchronous : checkpoints are written in the background, or training waits for them.
    price : price of a GPU-hour: 2, '2.5 EUR' or €2.5; default: the GPU's list price.
    pue : power usage effectiveness of the building.
    """

    failures: Failures = field(default_factory=Failures)
    asynchronous: bool = False
    price: Price | None = None
    pue: float = 1.1

    def __post_init__(self) -> None:
        if not self.pue >= 1.0:
            raise SpecError(f"pue = {self.pue:g} is below 1, as if power came from nowhere")
        if self.pue > LARGEST_PUE:
            raise SpecError(f"pue = {self.pue:g} is above {LARGEST_PUE:g}; buildings are at 1.05 to 2.5")

    def priced(self, gpu: GpuSpec) -> Terms:
        """The terms with a price: their own, or the list price of this GPU."""
        return self if self.price is not None else replace(self, price=listed_price(gpu.name))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What these terms take for granted."""
        hours = self.failures.gpu_mtbf_s / 3600
        spares = "enough spare nodes"
        if self.failures.spare_nodes is not None:
            spares = f"{self.failures.spare_nodes} spare nodes, which are paid for"
        restart = f"{show_time(self.failures.startup_s)} until the job loads its checkpoint"
        background = "in the background" if self.asynchronous else "while training stops"
        price = "the list price" if self.price is None else f"{self.price} a GPU-hour"
        source = f" ({self.price.source})" if self.price is not None and self.price.source else ""
        return (
            f"a failure every {hours:,.0f} GPU-hours, {restart}, {spares}",
            f"checkpoints are written at the best interval, {background}",
            f"{price}{source}; energy is that of whole nodes at full power, PUE {self.pue:g}",
        )


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a run takes, in expectation.

    useful_s : steps times step time. [s]
    goodput, checkpoints : the shares of the wall-clock time, and how state is saved.
    wall_s : with failures and checkpoints. [s]
    gpu_hours : of the wall-clock time, with the unused GPUs of rented nodes and with spare nodes. [h]
    energy_j : of the nodes at full power; None where it is not known. [J]
    storing, failures : what checkpoints take, and failures with it.
    """

    num_gpus: int
    steps: float
    tokens: float
    step_time_s: float
    useful_s: float
    goodput: Goodput
    checkpoints: Checkpoints
    wall_s: float
    gpu_hours: float
    cost: float
    currency: str
    energy_j: float | None
    storing: Storing
    failures: Failures

    def __repr__(self) -> str:
        """One line."""
        return (
            f"<TrainingRun {show_time(self.wall_s)} on {self.num_gpus:,} GPUs, {show_short(self.cost)} {self.currency}>"
        )

    @property
    def days(self) -> float:
        """Wall-clock time. [days]"""
        return self.wall_s / 86400.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "num_gpus": self.num_gpus,
            "steps": self.steps,
            "tokens": self.tokens,
            "step_time_s": self.step_time_s,
            "useful_days": self.useful_s / 86400.0,
            "goodput": self.goodput.useful,
            "days": self.days,
            "gpu_hours": self.gpu_hours,
            "cost": self.cost,
            "currency": self.currency,
            "energy_j": self.energy_j,
        }


def training_run(
    storing: Storing, num_gpus: int, node: NodeSpec, step_time_s: float, steps: float, tokens: float, terms: Terms
) -> TrainingRun:
    """The run of so many steps of so long.

    storing : what checkpoints take on the machine.
    node : for its power, without which energy is left out.
    step_time_s : of the average step. [s]
    steps, tokens : of the whole run.
    """
    require_positive(step_time_s=step_time_s, steps=steps)
    price = terms.price or listed_price(node.gpu.name)
    failures = replace(terms.failures, load_s=storing.load.seconds)
    checkpoints = best_checkpoints(storing, num_gpus, node.name, terms)
    shares = goodput(num_gpus, checkpoints, failures)
    useful = steps * step_time_s
    if shares.useful < LEAST_USEFUL:
        raise SpecError(_no_work(storing, num_gpus, node.name, terms, failures))
    wall = useful / shares.useful
    paid = rented_gpus(num_gpus, node) + (failures.spare_nodes or 0) * node.gpus_per_node
    hours, power = paid * wall / 3600.0, node.power_per_gpu_w
    return TrainingRun(
        num_gpus,
        steps,
        tokens,
        step_time_s,
        useful,
        shares,
        checkpoints,
        wall,
        hours,
        hours * price.amount,
        price.currency,
        None if power is None else 3600.0 * hours * power * terms.pue,
        storing,
        failures,
    )


def rented_gpus(num_gpus: int, node: NodeSpec) -> int:
    """GPUs that a job pays for: those that it uses of one node, and all GPUs of several nodes."""
    nodes = -(-num_gpus // node.gpus_per_node)
    return num_gpus if nodes == 1 else nodes * node.gpus_per_node


def best_checkpoints(storing: Storing, num_gpus: int, node: str, terms: Terms) -> Checkpoints:
    """Checkpoints at the interval of least waste; written in the background, no faster than they can be."""
    pause = require_pause(storing, node) if terms.asynchronous else storing.blocking_s
    drain = storing.write_s if terms.asynchronous else 0.0
    interval = float(best_interval(pause, job_mtbf(num_gpus, terms.failures.gpu_mtbf_s)))
    return Checkpoints(max(interval, drain - pause), pause, drain)


def unknown_energy(node: NodeSpec) -> str:
    """Said where a node's power is not known."""
    return f"energy is left out: the power of {node.name} is not known; set cluster.node.max_power, such as '10 kW'"


def _no_work(storing: Storing, num_gpus: int, node: str, terms: Terms, failures: Failures) -> str:
    """Said of a run whose failures leave no time, with the most GPUs that work half of it."""

    def idle(count: int) -> bool:
        return goodput(count, best_checkpoints(storing, count, node, terms), failures).useful < 0.5

    most = bisect_left(range(1, num_gpus), True, key=idle)
    gpus = f"{most:,} GPU" + ("s work" if most > 1 else " works")
    nearest = f"{gpus} half of the time" if most else "not even one GPU works half of the time"
    return (
        f"hardly any work gets done on {num_gpus:,} GPUs: failures come faster than checkpoints, every "
        f"{show_time(float(job_mtbf(num_gpus, failures.gpu_mtbf_s)))}, where a checkpoint takes "
        f"{show_time(storing.write_s)} and a restart {show_time(failures.restart_s)}; {nearest}. Or write "
        "(-s cluster.storage.write_bandwidth=…) or restart (--startup) faster"
    )


@dataclass(frozen=True, slots=True)
class Training:
    """A run, and the runs at both ends of the step time's 90 % interval: with shorter steps and with longer ones.

    If the time was given, all three take it, and differ in how many tokens they train on.

    background : the run with checkpoints written in the background; None where the node does not say how fast GPUs copy
        to their host.
    data : how fast it reads its data.
    pue : power usage effectiveness with which energy is counted.
    """

    answer: Estimate
    run: TrainingRun
    low: TrainingRun
    high: TrainingRun
    background: TrainingRun | None
    data: DataLoading
    pue: float
    assumptions: tuple[str, ...]

    def __repr__(self) -> str:
        """One line."""
        return f"<Training {self.answer.scenario.name}: {self.run!r}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        run, ends = self.run.to_dict(), (self.low.to_dict(), self.high.to_dict())
        intervals = ("step_time_s", "tokens", "steps", "useful_days", "days", "gpu_hours", "cost", "energy_j")
        failures, storing = self.run.failures, self.run.storing
        return {
            "scenario": self.answer.scenario.name,
            **run,
            "intervals": {name: sorted(end[name] for end in ends) for name in intervals if run[name] is not None},
            "goodput_parts": asdict(self.run.goodput),
            "checkpoint_interval_s": self.run.checkpoints.interval_s,
            "checkpoint_blocking_s": self.run.checkpoints.blocking_s,
            "checkpoint": self._checkpoint(storing),
            "restart": {
                "seconds": failures.restart_s,
                "startup_s": failures.startup_s,
                "load_s": failures.load_s,
                "loads": {by: asdict(each) for by, each in storing.loads.items()},
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
            found["asynchronous"] = {**asdict(there.checkpoints), "goodput": there.goodput.useful, "days": there.days}
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

    scenario : or the path of its file.
    tokens : tokens of the whole run; default: the scenario's.
    loss : loss to reach, instead of tokens. A loss law gives the data: more, the nearer the batch is to the critical
        one.
    within_s : time of the whole run, failures and checkpoints included, instead of tokens: it takes in as many as it
        can. [s]
    batch_law : law of the critical batch, used with a loss (flopcast scaling laws).
    terms : failures, storage, prices.

    Raises SpecError: not one of tokens, time and loss alone, or a loss that the model cannot reach.
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
    ways = (f"{show_time(load.seconds)} where {LOAD_WORDS[by]}" for by, load in storing.loads.items())
    notes.append(f"loading a checkpoint takes {', '.join(ways)}; the fastest way is used")
    if run.energy_j is None:
        notes.append(unknown_energy(node))
    if (rented := rented_gpus(answer.num_gpus, node)) > answer.num_gpus:
        notes.append(f"all {rented:,} GPUs of the nodes are paid for, although the plan uses {answer.num_gpus:,}")
    stated = [note for note in answer.assumptions if note != NO_FAILURES]
    said = (*notes, *terms.assumptions, *run.storing.notes, *stated)
    return Training(answer, run, low, high, background, loading, terms.pue, said)


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
