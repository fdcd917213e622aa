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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.costs.collectives import Fabric, best_of, send
from sim.network.collective_flows import members_by_domain, ring
from sim.network.faults import route_around
from sim.network.placement import hops_of, send_share
from sim.network.ranks import gpu_of_rank, members_of
from sim.network.topology import Topology
from sim.pricing.cells import plans_of, sent_bytes
from sim.pricing.deal import TRAINED, params_of
from sim.pricing.layouts import cost_model, cut_of
from sim.pricing.replicas import moved_once, sent_by_group
from sim.pricing.stages import StageSeconds
from sim.specs import Scenario
from sim.traffic.exchanges import Exchange, stage_exchanges, visit_exchange


@dataclass(frozen=True, slots=True)
class Stream:
    """A group of flows that run in step.

    before_s, transfer_s, after_s : with the machine to itself: latency, time on the links, work behind them. [s]
    link, occupies : the links it uses, and the share of a sound link that it takes at full speed; more than 1 where
        its own flows meet.
    link_bytes : what one message puts on each. [bytes]
    entitled : its weight on a shared link: seconds at full speed for a byte of one member.
    kind : forward, backward, gradients, weights, tensor, context, tokens or sharded.
    nbytes : that one member sends in a message. [bytes]
    pace : share of full speed that its slowest card leaves it: a fitted efficiency is a share of what a card is worth,
        and of a slow card it is the same share.
    """

    before_s: float
    transfer_s: float
    after_s: float
    link: IntArray
    occupies: FloatArray
    link_bytes: FloatArray
    entitled: float
    kind: str = ""
    nbytes: float = 1.0
    pace: float = 1.0

    @property
    def alone_s(self) -> float:
        """Time of the message with the machine to itself. [s]"""
        return self.before_s + self.transfer_s + self.after_s


class Wires:
    """Streams between GPUs of one machine."""

    def __init__(self, scenario: Scenario, topology: Topology, health: FloatArray, seed: int) -> None:
        assert scenario.cluster.network is not None
        self._scenario, self._topology, self._health, self._seed = scenario, topology, health, seed
        self._costs, self._fabric = cost_model(scenario), cost_model(scenario).fabric
        self._network = scenario.cluster.network
        self._reached = reached_capacity(topology, self._fabric)
        ends = np.array([links.name in ("nvlink", "pcie", "nic") for links in topology.classes])
        self._is_end = ends[topology.class_of_link]
        self._is_nvlink = np.array([links.name == "nvlink" for links in topology.classes])[topology.class_of_link]
        self._hops = hops_of(scenario.plan, scenario.cluster)
        self.shards = "shards" if (scenario.plan.sharding_group or scenario.plan.num_replicas) > 1 else "expert_shards"
        self._send_share = send_share(scenario.plan, scenario.cluster)

    def hop(
        self, kind: str, sources: IntArray, targets: IntArray, seconds: float, sender: int, receiver: int
    ) -> Stream:
        """Everything that one pipeline rank sends to another at once; GPUs as (dp, cp, tp)."""
        fabric, far = self._fabric, bool(self._hops.cross(sender, receiver))
        nbytes = float(sent_bytes(self._costs, cut_of(self._scenario)))
        before = float(send(0.0, far, fabric))
        transfer = float(send(nbytes, far, fabric, self._send_share)) - before
        parts = (before, transfer, seconds - before - transfer)
        return self._stream(kind, parts, sources.ravel(), targets.ravel(), np.full(sources.size, nbytes), nbytes)

    def rings(
        self,
        kind: str,
        sent: Mapping[str, float],
        gpus: IntArray,
        seconds: float,
        others: IntArray | None = None,
        *,
        of_sends: bool = False,
    ) -> Stream:
        """Rings of one pipeline rank's groups, all groups of a kind at once, one kind after the other.

        sent : what each member of a kind of group (`sim.network.ranks.members_of`) sends in all; zero: nothing. [bytes]
        others : of ranks whose GPUs are in the same groups; what they send is not in this stream.
        of_sends : each group is one ring in the order of its members, instead of a library's, which use every card.
        """
        every = gpus if others is None else np.concatenate([gpus, *others])
        phases = []
        for group, nbytes in sent.items():
            if not nbytes:
                continue
            members = members_of(group, self._scenario.plan, every)
            n = members.shape[1]
            lines = (each[:, np.newaxis] if of_sends else self._domains(each) for each in members)
            phases += [ring(line, nbytes * n / (n - 1), 1)[0] for line in lines]
        sources, targets, sizes = (
            np.concatenate([getattr(phase, name) for phase in phases]) for name in ("source", "target", "nbytes")
        )
        if every is not gpus:
            ours = np.isin(sources, gpus)
            sources, targets, sizes = sources[ours], targets[ours], sizes[ours]
        return self._stream(kind, (0.0, seconds, 0.0), sources, targets, sizes, sum(sent.values()))

    def all_to_all(
        self, kind: str, group: str, gpus: IntArray, inside: float, outside: float, seconds: float
    ) -> Stream:
        """All-to-alls of one pipeline rank's groups, all at once: bytes that each member sends within its NVLink domain
        and to other ones, as of `rings`."""
        members, domain = members_of(group, self._scenario.plan, gpus), self._topology.domain_gpus
        sender, receiver = np.nonzero(~np.eye(members.shape[1], dtype=bool))
        sources, targets = members[:, sender], members[:, receiver]
        leaves = sources // domain != targets // domain
        of_member = [np.maximum(each.sum(axis=1, keepdims=True) / members.shape[1], 1) for each in (~leaves, leaves)]
        sizes = np.where(leaves, outside / of_member[1], inside / of_member[0])
        return self._stream(
            kind, (0.0, seconds, 0.0), sources.ravel(), targets.ravel(), sizes.ravel(), inside + outside
        )

    def _domains(self, members: IntArray) -> IntArray:
        """Members of a ring by NVLink domain; where the domains hold unequal numbers, as one chain of neighbours."""
        domain = self._topology.domain_gpus
        counts = np.unique(members // domain, return_counts=True)[1]
        return members_by_domain(members, domain) if (counts == counts[0]).all() else np.sort(members)[:, np.newaxis]

    def _stream(
        self,
        kind: str,
        seconds: tuple[float, float, float],
        sources: IntArray,
        targets: IntArray,
        sizes: FloatArray,
        nbytes: float,
    ) -> Stream:
        paths, share, pair = route_around(
            self._topology,
            sources,
            targets,
            self._health,
            self._network.routing,
            subflows=self._network.subflows,
            seed=self._seed,
        )
        row, column = np.nonzero(paths >= 0)
        link, place = np.unique(paths[row, column], return_inverse=True)
        crossing = np.bincount(place, (share * sizes[pair])[row], minlength=len(link))
        occupies = crossing / seconds[1] / self._reached[link]
        # Flows of one stream do not meet on a GPU's own NVLink; what its switches add is fewer bytes than a ring's.
        occupies = np.where(self._is_nvlink[link], np.minimum(occupies, 1.0), occupies)
        limited = occupies > 0  # links without a limit hold nobody back
        pace = float(self._health[link[self._is_end[link]]].min(initial=1.0))
        carried = link[limited], occupies[limited], crossing[limited]
        return Stream(*seconds, *carried, seconds[1] / nbytes, kind, nbytes, pace)


def reached_capacity(topology: Topology, fabric: Fabric) -> FloatArray:
    """The most that messages of any kind reach of every link.  [bytes/s]"""
    network = fabric.best_share
    shares = np.array([best_of(fabric.nvlink) if links.name == "nvlink" else network for links in topology.classes])
    reached: FloatArray = topology.capacity * shares[topology.class_of_link]
    return reached


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

    costs, rank_of_stage, copies : of the scenario and its order.
    health : what is left of every link, as of `sim.network.faults.link_health`.
    seed : of the hash of ecmp routing.

    Raises SpecError: GPUs that cannot reach each other.
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
    moving, spread = int(plans.moving_stage.item()), bool(plans.state_is_spread.item())
    reduce, gather = np.full(plan.pp, -1), np.full(plan.pp, -1)
    for place, (table, name, seconds) in enumerate(
        ((reduce, "gradients", costs.reduce_s), (gather, "weights", costs.gather_s))
    ):
        for rank in np.flatnonzero(seconds > 0).tolist():
            part = sum(stage.part for stage, where in zip(costs.stages, rank_of_stage, strict=True) if where == rank)
            holds = params_of(np.array([part]), plans.layouts)[TRAINED]
            sent = sent_by_group(moved_once(plans.layouts, holds, moving, spread, copies)[place])
            sent = {_RINGS.get(group, group): nbytes for group, nbytes in sent.items()}
            others = [] if name == "weights" else _holders(rank, rank_of_stage, copies)
            if not others and max(plan.num_replicas, plan.num_expert_replicas) == 1:
                continue  # copies that a rank sums by itself
            table[rank] = len(streams)
            streams.append(wires.rings(name, sent, gpus[rank], float(seconds[rank]), gpus[others]))
    return reduce, gather


_RINGS = {"data": "shards", "expert_data": "expert_shards"}
"""Groups that sum all gradients, as sharding groups of all that hold the same."""


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
        # What experts send at visits, in rings over every ep-th of the same GPUs, is counted into the others'.
        return wires.rings(name, {wires.shards: nbytes - between, "between": between}, gpus, seconds)
    return wires.rings(name, {group: nbytes}, gpus, seconds, of_sends=of_sends)
