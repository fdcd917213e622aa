"""What pipeline sends and gradient reductions put on which link: the groups of flows that a step is made of.

The cost model knows how long each takes with the machine to itself, this file what it occupies meanwhile. A send whose
formula reaches 43 % of a card is one that fills the card: what keeps it from more (protocol, flows that meet) keeps
others from the rest as well. So every link is a resource of 1, a *stream* takes a share of each link it uses while it
runs at full speed, and two that would fill one link share it, by the bytes they move.

GPUs that do the same at the same time are one stream: the tensor- and data-parallel twins of a pipeline rank send
together and wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.costs.block import cut_of, pricing
from sim.costs.collectives import send
from sim.costs.stage import StageCosts, sent_bytes
from sim.errors import SpecError
from sim.network.faults import route_around
from sim.network.flows import FloatArray, IntArray
from sim.network.patterns import members_by_domain, ring
from sim.network.placement import hop_crosses_domains
from sim.network.ranks import gpu_of_rank
from sim.network.topology import Topology
from sim.specs import Scenario
from sim.work.optimizer import GRADIENT_WIDTH
from sim.work.stages import stage_params


@dataclass(frozen=True, slots=True)
class Stream:
    """A group of flows that run in step.

    before_s, transfer_s, after_s : with the machine to itself: latency, time on the links, work behind them. [s]
    link, occupies : the links it uses, and the share of a sound link that it takes at full speed; more than 1 where
        its own flows meet.
    link_bytes : what it puts on each. [bytes]
    entitled : its weight on a shared link: seconds at full speed for a byte of one member.
    """

    before_s: float
    transfer_s: float
    after_s: float
    link: IntArray
    occupies: FloatArray
    link_bytes: FloatArray
    entitled: float

    @property
    def alone_s(self) -> float:
        """With the machine to itself. [s]"""
        return self.before_s + self.transfer_s + self.after_s


@dataclass(frozen=True, slots=True)
class Traffic:
    """All streams of a step over one machine.

    streams : sends first, then the gradient reduction of every rank that has one.
    forward, backward : of every stage, the stream of its send to the next and to the previous stage, or −1.
    reduce : of every rank, the stream of its gradients, or −1.
    health : of every link.
    """

    topology: Topology
    health: FloatArray
    streams: tuple[Stream, ...]
    forward: IntArray
    backward: IntArray
    reduce: IntArray


def build_traffic(
    scenario: Scenario,
    costs: StageCosts,
    rank_of_stage: IntArray,
    copies: int,
    topology: Topology,
    health: FloatArray,
    *,
    placement: str = "tp-cp-dp-pp",
    fragmentation: float = 0.0,
    seed: int = 0,
) -> Traffic:
    """The streams of a scenario.

    Parameters
    ----------
    costs, rank_of_stage, copies
        Of the scenario and its order.
    health : array
        What is left of every link, as of `sim.network.faults.link_health`.
    placement, fragmentation, seed
        As of `sim.network.ranks.gpu_of_rank`; the seed is also that of the hash of ecmp routing.

    Raises
    ------
    SpecError
        GPUs that cannot reach each other, or a placement whose prices are not known.
    """
    plan, cluster = scenario.plan, scenario.cluster
    if placement != "tp-cp-dp-pp" and plan.tp % cluster.nvlink_domain_gpus:
        raise SpecError(
            f"placement {placement!r} with tp {plan.tp} in NVLink domains of {cluster.nvlink_domain_gpus}: prices are "
            "known where tensor parallelism fills a domain; set plan.tp to it, or keep tp-cp-dp-pp"
        )
    gpus = gpu_of_rank(plan, cluster, placement, fragmentation, seed).reshape(plan.pp, plan.num_replicas, plan.tp)
    wires = _Wires(scenario, topology, health, seed)
    streams: list[Stream] = []
    known: dict[tuple[int, int, str], int] = {}
    per_copy = len(rank_of_stage) // copies
    forward, backward = np.full(len(rank_of_stage), -1), np.full(len(rank_of_stage), -1)
    for stage, (here, there) in enumerate(zip(rank_of_stage[:-1].tolist(), rank_of_stage[1:].tolist(), strict=True)):
        if here == there or (stage + 1) % per_copy == 0:
            continue
        for name, ends, table, place, seconds in (
            ("forward", (here, there), forward, stage, costs.send_forward[stage]),
            ("backward", (there, here), backward, stage + 1, costs.send_backward[stage + 1]),
        ):
            key = (*ends, name)
            if key not in known:
                known[key] = len(streams)
                streams.append(wires.hop(gpus[ends[0]], gpus[ends[1]], float(seconds), *ends))
            table[place] = known[key]
    reduce = np.full(plan.pp, -1)
    for rank in np.flatnonzero(costs.reduce > 0).tolist():
        held = [stage for stage, where in zip(costs.stages, rank_of_stage, strict=True) if where == rank]
        params = sum(stage_params(stage, scenario.model, plan.tp) for stage in held)
        reduce[rank] = len(streams)
        streams.append(wires.gradients(gpus[rank], params, float(costs.reduce[rank])))
    return Traffic(topology, health, tuple(streams), forward, backward, reduce)


class _Wires:
    """Streams between GPUs of one machine."""

    def __init__(self, scenario: Scenario, topology: Topology, health: FloatArray, seed: int) -> None:
        assert scenario.cluster.network is not None
        self.scenario, self.topology, self.health, self.seed = scenario, topology, health, seed
        self.cut, (_, _, self.fabric) = cut_of(scenario), pricing(scenario)
        self.network = scenario.cluster.network

    def hop(self, sources: IntArray, targets: IntArray, seconds: float, sender: int, receiver: int) -> Stream:
        """Everything that one pipeline rank sends to another at once."""
        scenario, fabric = self.scenario, self.fabric
        far = hop_crosses_domains(sender, receiver, scenario.plan, scenario.cluster)
        nbytes = sent_bytes(scenario, self.cut)
        before = float(send(0.0, far, fabric))
        transfer = float(send(nbytes, far, fabric)) - before
        rate = float(fabric.network_bytes_per_s if far else fabric.nvlink_bytes_per_s)
        link, crossing = self._on_links(sources.ravel(), targets.ravel(), np.full(sources.size, nbytes))
        return self._stream((before, transfer, seconds - before - transfer), link, crossing, nbytes / rate, nbytes)

    def gradients(self, gpus: IntArray, params: float, seconds: float) -> Stream:
        """The gradient reduction of one pipeline rank: a ring for each tensor-parallel place, all at once."""
        plan = self.scenario.plan
        nbytes = params * GRADIENT_WIDTH[self.scenario.stack.gradient_precision]
        sources, targets, sizes = [], [], []
        for members in gpus.T:
            phase = ring(self._domains(members), nbytes, 2 if plan.zero_stage == 0 else 1)[0]
            sources.append(phase.source)
            targets.append(phase.target)
            sizes.append(phase.nbytes)
        source, target, size = np.concatenate(sources), np.concatenate(targets), np.concatenate(sizes)
        link, crossing = self._on_links(source, target, size)
        # How long a ring's busiest GPU would need for its bytes at the links' full speed: what the formula is made of.
        away = source // self.topology.domain_gpus != target // self.topology.domain_gpus
        sent = [np.bincount(source[side], size[side]).max(initial=0.0) for side in (away, ~away)]
        busiest = max(
            sent[0] / float(self.fabric.network_bytes_per_s),
            sent[1] / float(self.fabric.nvlink_bytes_per_s),
        )
        return self._stream((0.0, seconds, 0.0), link, crossing, busiest, max(sent))

    def _domains(self, members: IntArray) -> IntArray:
        """Members of a ring by NVLink domain; where the domains hold unequal numbers, as one chain of neighbours."""
        domain = self.topology.domain_gpus
        counts = np.unique(members // domain, return_counts=True)[1]
        return members_by_domain(members, domain) if (counts == counts[0]).all() else members[:, np.newaxis]

    def _on_links(self, source: IntArray, target: IntArray, nbytes: FloatArray) -> tuple[IntArray, FloatArray]:
        """(link, bytes) of flows between pairs of GPUs, added up."""
        paths, share, pair = route_around(
            self.topology,
            source,
            target,
            self.health,
            self.network.routing,
            subflows=self.network.subflows,
            seed=self.seed,
        )
        row, column = np.nonzero(paths >= 0)
        links, place = np.unique(paths[row, column], return_inverse=True)
        return links, np.bincount(place, (share * nbytes[pair])[row], minlength=len(links))

    def _stream(
        self, seconds: tuple[float, float, float], link: IntArray, crossing: FloatArray, full_s: float, nbytes: float
    ) -> Stream:
        """`full_s`: seconds for the busiest member's `nbytes` at the full speed of its own links."""
        capacity = self.topology.capacity[link]
        occupies = crossing / capacity / full_s
        limited = occupies > 0  # links without a limit hold nobody back
        return Stream(*seconds, link[limited], occupies[limited], crossing[limited], seconds[1] / nbytes)
