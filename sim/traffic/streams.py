"""What a step's messages put on which link: the groups of flows that a step is made of.

The cost model knows how long each takes with the machine to itself, this file what it occupies meanwhile. A *stream*
takes of each link it uses the share that the formula's rate is of the best rate any message reaches there; two that
would take more than all of it share it, by the bytes they move.

That is what keeps a loss from being counted twice. A profile's efficiency of sends and of groups that share the network
was fitted where flows of one kind met each other; it bounds the rate of a stream. Flows that meet here bound it too.
The lower bound counts: never the product of both.

GPUs that do the same at the same time are one stream: the tensor- and data-parallel twins of a pipeline rank send
together and wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.network.ranks import gpu_of_rank
from sim.network.topology import Topology
from sim.pricing.plans import plans_of
from sim.pricing.replicas import TRAINED, params_of
from sim.pricing.stages import StageSeconds
from sim.specs import Scenario
from sim.traffic.exchanges import Exchange, stage_exchanges, visit_exchange
from sim.traffic.step_bytes import sent_to_shards
from sim.traffic.wires import Stream, Wires
from sim.work.optimizer import GRADIENT_WIDTH


@dataclass(frozen=True, slots=True)
class Inside:
    """Collectives in the actions of all ranks: what they are, and the stream of every pipeline rank, or −1."""

    exchange: Exchange
    stream: IntArray


@dataclass(frozen=True, slots=True)
class Traffic:
    """All streams of a step over one machine.

    forward, backward : of every stage, the stream of its send to the next and to the previous stage, or −1.
    reduce, gather : of every rank, the stream of its gradients, and of the weights it gathers after the update, or −1.
    inside : collectives within actions.
    health : of every link.
    visits : of every rank, the stream of what it moves at visits, or −1; and what that is. None: nothing is.
    """

    topology: Topology
    health: FloatArray
    streams: tuple[Stream, ...]
    forward: IntArray
    backward: IntArray
    reduce: IntArray
    gather: IntArray
    inside: tuple[Inside, ...] = ()
    visits: IntArray | None = None
    visit_exchange: Exchange | None = None


def build_traffic(
    scenario: Scenario,
    costs: StageSeconds,
    rank_of_stage: IntArray,
    copies: int,
    topology: Topology,
    health: FloatArray,
    *,
    seed: int = 0,
) -> Traffic:
    """The streams of a scenario.

    Parameters
    ----------
    costs, rank_of_stage, copies
        Of the scenario and its order.
    health : array
        What is left of every link, as of `sim.network.faults.link_health`.
    seed
        Of the hash of ecmp routing.

    Raises
    ------
    SpecError
        GPUs that cannot reach each other.
    """
    gpus = gpu_of_rank(scenario.plan, scenario.cluster)
    wires = Wires(scenario, topology, health, seed)
    streams: list[Stream] = []
    known: dict[tuple[int, int, str], int] = {}
    per_copy = len(rank_of_stage) // copies
    forward, backward = np.full(len(rank_of_stage), -1), np.full(len(rank_of_stage), -1)
    for stage, (here, there) in enumerate(zip(rank_of_stage[:-1].tolist(), rank_of_stage[1:].tolist(), strict=True)):
        if here == there or (stage + 1) % per_copy == 0:
            continue
        for name, ends, table, place, seconds in (
            ("forward", (here, there), forward, stage, costs.send_forward_s[stage]),
            ("backward", (there, here), backward, stage + 1, costs.send_backward_s[stage + 1]),
        ):
            key = (*ends, name)
            if key not in known:
                known[key] = len(streams)
                streams.append(wires.hop(name, gpus[ends[0]], gpus[ends[1]], float(seconds), *ends))
            table[place] = known[key]
    reduce, gather = _between_replicas(scenario, costs, rank_of_stage, copies, gpus, wires, streams)
    lanes: dict[str, IntArray] = {}
    inside = tuple(
        _inside(exchange, rank_of_stage, gpus, wires, streams, lanes)
        for exchange in stage_exchanges(scenario, costs.stages)
    )
    moved = visit_exchange(scenario, costs)
    at_visits = None if moved is None else _inside(moved, rank_of_stage, gpus, wires, streams, {}).stream
    return Traffic(topology, health, tuple(streams), forward, backward, reduce, gather, inside, at_visits, moved)


def _between_replicas(
    scenario: Scenario,
    costs: StageSeconds,
    rank_of_stage: IntArray,
    copies: int,
    gpus: IntArray,
    wires: Wires,
    streams: list[Stream],
) -> tuple[IntArray, IntArray]:
    """Streams of the gradient reduction and of the weight gather of every rank.

    Ranks that hold copies of the same stages sum gradients together: of the rings over all of them, a rank's stream has
    what its own GPUs send.
    """
    plan, plans = scenario.plan, plans_of(scenario)
    widths = GRADIENT_WIDTH[scenario.stack.gradient_precision], scenario.training.activation_bytes
    reduce, gather, own = np.full(plan.pp, -1), np.full(plan.pp, -1), plans.layouts
    for table, name, seconds, width, passes, layouts in (
        (reduce, "gradients", costs.reduce_s, widths[0], 2 if plan.zero_stage == 0 else 1, own.of_copies(copies)),
        (gather, "weights", costs.gather_s, widths[1], 1, own),
    ):
        for rank in np.flatnonzero(seconds > 0).tolist():
            part = sum(stage.part for stage, where in zip(costs.stages, rank_of_stage, strict=True) if where == rank)
            holds = params_of(np.array([part]), plans.layouts)[TRAINED]
            inside, between = sent_to_shards(holds, layouts)
            inside *= passes * width * (plans.moving_stage.item() < 3)
            between *= width * (0.5 if plan.outer_zero_stage else float(name == "gradients"))
            others = [] if name == "weights" else _holders(rank, rank_of_stage, copies)
            if not others and max(plan.num_replicas, plan.num_expert_replicas) == 1:
                continue  # copies that a rank sums by itself
            table[rank] = len(streams)
            streams.append(wires.replicas(name, inside, between, gpus[rank], float(seconds[rank]), gpus[others]))
    return reduce, gather


def _holders(rank: int, rank_of_stage: IntArray, copies: int) -> list[int]:
    """Other ranks that hold copies of the stages of one."""
    of_copies = rank_of_stage.reshape(copies, -1)
    holders = of_copies[:, (of_copies == rank).any(axis=0)]
    return sorted({*holders.ravel().tolist()} - {rank})


def _inside(
    exchange: Exchange,
    rank_of_stage: IntArray,
    gpus: IntArray,
    wires: Wires,
    streams: list[Stream],
    lanes: dict[str, IntArray],
) -> Inside:
    """A stream for every rank whose actions hold this exchange; that of its longest stands for them all.

    A group's collectives run one after the other, those that compute waits for and those beside it: `lanes` has the
    streams that each kind of group has already.
    """
    stream = lanes.setdefault(exchange.group, np.full(len(gpus), -1))
    longest = exchange.seconds.max(axis=0)
    for rank in np.flatnonzero(stream < 0).tolist():
        stages = np.flatnonzero(rank_of_stage == rank)
        stage = stages[np.argmax(longest[stages])]
        row = int(np.argmax(exchange.seconds[:, stage]))
        if longest[stage] > 0:
            sizes = (exchange.nbytes, exchange.between_bytes, exchange.seconds)
            nbytes, between, seconds = (float(each[row, stage]) for each in sizes)
            stream[rank] = len(streams)
            ring = exchange.group == "cp" and exchange.beside
            streams.append(_of_group(wires, exchange.group, gpus[rank], nbytes, between, seconds, of_sends=ring))
    return Inside(exchange, stream)


def _of_group(
    wires: Wires,
    group: str,
    gpus: IntArray,
    nbytes: float,
    between: float,
    seconds: float,
    *,
    of_sends: bool = False,
) -> Stream:
    """The stream of one rank's collectives within layers, over a kind of group; or of its sends round a ring."""
    name = {"tp": "tensor", "cp": "context", "ep": "tokens", "dp": "sharded"}[group]
    if group == "ep":
        return wires.all_to_all(name, group, gpus, nbytes - between, between, seconds)
    if group == "dp":
        return wires.replicas(name, nbytes - between, between, gpus, seconds)
    return wires.rings(name, {group: nbytes}, gpus, seconds, of_sends=of_sends)
