"""What a step's messages put on which link, the groups of flows that a step is made of, and how full that makes links.

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

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.arrays import Array, FloatArray, IntArray
from sim.costs.collectives import best_of, send
from sim.network.placement import gpu_of_rank, hops_of, members_of, send_share
from sim.network.routing import link_name, route_around
from sim.network.topology import Topology
from sim.pricing.cells import plans_of, sent_bytes
from sim.pricing.deal import TRAINED, params_of
from sim.pricing.layouts import cost_model, cut_of
from sim.pricing.stages import StageSeconds
from sim.pricing.zero import moved_once, sent_by_group
from sim.schedules import Order
from sim.schedules.actions import B, F, I
from sim.schedules.passes import visits_of
from sim.specs import Scenario
from sim.traffic.exchanges import ROWS, Exchange, stage_exchanges, visit_exchange


@dataclass(frozen=True, slots=True)
class Stream:
    """A group of flows that run in step.

    before_s, transfer_s, after_s : with the machine to itself: latency, time on the links, work behind them. [s]
    link, occupies : the links it uses, and the share of a sound link that it takes at full speed; more than 1 where
        its own flows meet.
    link_bytes : what one message puts on each. [bytes]
    entitled : its weight on a shared link: seconds at full speed for a byte of one member.
    nbytes : that one member sends in a message. [bytes]
    pace : share of full speed that its slowest card leaves it: a fitted efficiency is a share of what a card is worth,
        and of a slow card it is the same share.
    delay_hidden_share : of what a message beside compute takes longer than alone, the share that is really hidden;
        None: within an NVLink domain, as of the rest.
    """

    before_s: float
    transfer_s: float
    after_s: float
    link: IntArray
    occupies: FloatArray
    link_bytes: FloatArray
    entitled: float
    nbytes: float = 1.0
    pace: float = 1.0
    delay_hidden_share: float | None = None

    @property
    def alone_s(self) -> float:
        """Time of the message with the machine to itself. [s]"""
        return self.before_s + self.transfer_s + self.after_s


class Wires:
    """Streams between GPUs of one machine; each method adds one to `streams` and returns its place there."""

    def __init__(self, scenario: Scenario, topology: Topology, health: FloatArray, seed: int) -> None:
        assert scenario.cluster.network is not None
        self.scenario, self.plan, self.topology, self._health = scenario, scenario.plan, topology, health
        self._costs, self._network, self._seed = cost_model(scenario), scenario.cluster.network, seed
        names = np.array([links.name for links in topology.classes])[topology.class_of_link]
        self._is_end, self._is_nvlink = np.isin(names, ("nvlink", "pcie", "nic")), names == "nvlink"
        # The most that messages of any kind reach of every link.
        best = np.where(self._is_nvlink, best_of(self._costs.fabric.nvlink), self._costs.fabric.best_share)
        self._reached = topology.capacity * best
        self._hops = hops_of(self.plan, scenario.cluster)
        self._send_share = send_share(self.plan, scenario.cluster)
        self.gpus = gpu_of_rank(self.plan, scenario.cluster)
        self.streams: list[Stream] = []

    def hop(self, sender: int, receiver: int, seconds: float) -> int:
        """Everything that one pipeline rank sends to another at once."""
        fabric, far = self._costs.fabric, bool(self._hops.cross(sender, receiver))
        nbytes = float(sent_bytes(self._costs, cut_of(self.scenario)))
        before = float(send(0.0, far, fabric))
        transfer = float(send(nbytes, far, fabric, self._send_share)) - before
        sources, targets = self.gpus[sender].ravel(), self.gpus[receiver].ravel()
        parts = (before, transfer, seconds - before - transfer)
        return self._stream(parts, (sources, targets, np.full(sources.size, nbytes)), nbytes)

    def rings(
        self,
        sent: Mapping[str, float],
        rank: int,
        seconds: float,
        others: Sequence[int] = (),
        *,
        of_sends: bool = False,
    ) -> int:
        """Rings of one pipeline rank's groups, all groups of a kind at once, one kind after the other.

        sent : what each member of a kind of group (`placement.members_of`) sends in all; zero: nothing. [bytes]
        others : ranks whose GPUs are in the same groups; what they send is not in this stream.
        of_sends : each group is one ring in the order of its members, instead of a library's, which use every card.
        """
        every = np.concatenate([self.gpus[rank], *self.gpus[list(others)]])
        phases = []
        for group, nbytes in sent.items():
            if not nbytes:
                continue
            members = members_of(group, self.plan, every)
            n, domain = members.shape[1], self.topology.domain_gpus
            for each in members:
                line = each[:, np.newaxis]
                if not of_sends:  # where domains hold unequal numbers, one chain of neighbours
                    counts = np.unique(each // domain, return_counts=True)[1]
                    by_domain = each[np.argsort(each // domain, kind="stable")]
                    equal = (counts == counts[0]).all()
                    line = by_domain.reshape(len(counts), -1) if equal else np.sort(each)[:, np.newaxis]
                phases.append(ring(line, nbytes * n / (n - 1), 1))
        flows = [np.concatenate(each) for each in zip(*phases, strict=True)]
        if others:
            ours = np.isin(flows[0], self.gpus[rank])
            flows = [each[ours] for each in flows]
        return self._stream((0.0, seconds, 0.0), flows, sum(sent.values()))

    def all_to_all(self, group: str, rank: int, inside: float, outside: float, seconds: float) -> int:
        """All-to-alls of one pipeline rank's groups, all at once: bytes that each member sends within its NVLink domain
        and to other ones, as of `rings`."""
        members, domain = members_of(group, self.plan, self.gpus[rank]), self.topology.domain_gpus
        sender, receiver = np.nonzero(~np.eye(members.shape[1], dtype=bool))
        sources, targets = members[:, sender], members[:, receiver]
        leaves = sources // domain != targets // domain
        of_member = [np.maximum(each.sum(axis=1, keepdims=True) / members.shape[1], 1) for each in (~leaves, leaves)]
        sizes = np.where(leaves, outside / of_member[1], inside / of_member[0])
        flows = [each.ravel() for each in (sources, targets, sizes)]
        return self._stream((0.0, seconds, 0.0), flows, inside + outside)

    def _stream(self, seconds: tuple[float, float, float], flows: Sequence[Any], nbytes: float) -> int:
        """Add the stream of flows (sources, targets, sizes) of which each member sends so much."""
        sources, targets, sizes = flows
        how, subflows = self._network.routing, self._network.subflows
        paths, share, pair = route_around(
            self.topology, sources, targets, self._health, how, subflows=subflows, seed=self._seed
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
        hidden = None if self._is_nvlink[link].all() else self._costs.fabric.delay_hidden_share
        self.streams.append(Stream(*seconds, *carried, seconds[1] / nbytes, nbytes, pace, hidden))
        return len(self.streams) - 1


def ring(placement: IntArray, nbytes: float, passes: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Rings that carry (n−1)/n of the buffer `passes` times: 2 an all-reduce, 1 an all-gather or a reduce-scatter.

    placement : GPUs; row d holds the members in NVLink domain d. Returns sources, targets and sizes of flows. The many
        steps of a ring are one set of flows, because in every step each member sends the same over the same links.

    Between domains there is one ring for each member of a domain, with its share of the buffer, so that every card is
    used. A ring runs through a domain and leaves over the card of its last member; every second domain is passed
    backwards, so that it stays on one rail (with an odd number of domains, but for its last hop). Each of g members
    uses NVLink in all rings but the one it leaves the domain with, (g−1)/g of what it sends; the formulas of
    `sim.costs.collectives` count all of it, which shows only where g cards are faster than NVLink.
    """
    domains, per_domain = placement.shape
    n = placement.size
    channels = per_domain if domains > 1 else 1
    places = (np.arange(channels)[:, np.newaxis] + np.arange(per_domain)) % per_domain
    order = np.concatenate([row[places if d % 2 == 0 else places[:, ::-1]] for d, row in enumerate(placement)], axis=1)
    volume = passes * (n - 1) / n * nbytes / channels
    return order.ravel(), np.roll(order, -1, axis=1).ravel(), np.full(order.size, volume)


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
    health : what is left of every link, as of `sim.network.routing.link_health`.
    seed : of the hash of ecmp routing.

    Raises SpecError: GPUs that cannot reach each other.
    """
    wires = Wires(scenario, topology, health, seed)
    known: dict[tuple[int, int, str], int] = {}
    per_copy = len(rank_of_stage) // copies
    forward, backward = np.full((2, len(rank_of_stage)), -1)
    for stage, (here, there) in enumerate(itertools.pairwise(rank_of_stage.tolist())):
        if here == there or (stage + 1) % per_copy == 0:
            continue
        for name, ends, table, place, seconds in (
            ("forward", (here, there), forward, stage, costs.send_forward_s[stage]),
            ("backward", (there, here), backward, stage + 1, costs.send_backward_s[stage + 1]),
        ):
            key = (*ends, name)
            if key not in known:
                known[key] = wires.hop(*ends, float(seconds))
            table[place] = known[key]
    reduce, gather = _between_replicas(costs, rank_of_stage, copies, wires)
    lanes: dict[str, IntArray] = {}
    exchanges = stage_exchanges(scenario, costs.stages)
    inside = tuple(Inside(each, _inside(each, rank_of_stage, wires, lanes)) for each in exchanges)
    moved = visit_exchange(scenario, costs)
    visits = None if moved is None else _inside(moved, rank_of_stage, wires, {})
    return Traffic(topology, health, tuple(wires.streams), forward, backward, reduce, gather, inside, visits, moved)


def _between_replicas(
    costs: StageSeconds, rank_of_stage: IntArray, copies: int, wires: Wires
) -> tuple[IntArray, IntArray]:
    """Streams of the gradient reduction and of the weight gather of every rank.

    Ranks that hold copies of the same stages sum gradients together: of the rings over all of them, a rank's stream has
    what its own GPUs send.
    """
    plan, plans = wires.plan, plans_of(wires.scenario)
    moving = int(plans.moving_stage.item())
    reduce, gather = np.full((2, plan.pp), -1)
    for place, (table, seconds) in enumerate(((reduce, costs.reduce_s), (gather, costs.gather_s))):
        for rank in np.flatnonzero(seconds > 0).tolist():
            part = sum(stage.part for stage, where in zip(costs.stages, rank_of_stage, strict=True) if where == rank)
            holds = params_of(np.array([part]), plans.layouts)[TRAINED]
            sent = sent_by_group(moved_once(plans.layouts, holds, moving, copies)[place])
            sent = {_RINGS.get(group, group): nbytes for group, nbytes in sent.items()}
            of_copies = rank_of_stage.reshape(copies, -1)
            holders = of_copies[:, (of_copies == rank).any(axis=0)].ravel().tolist() if table is reduce else []
            others = sorted({*holders} - {rank})
            if others or max(plan.num_replicas, plan.num_expert_replicas) > 1:  # else a rank sums copies by itself
                table[rank] = wires.rings(sent, rank, float(seconds[rank]), others)
    return reduce, gather


_RINGS = {"data": "shards", "expert_data": "expert_shards"}
"""Groups that sum all gradients, as sharding groups of all that hold the same."""


def _inside(exchange: Exchange, rank_of_stage: IntArray, wires: Wires, lanes: dict[str, IntArray]) -> IntArray:
    """A stream for every rank whose actions hold this exchange; that of its longest stands for them all.

    A group's collectives run one after the other, those that compute waits for and those beside it: `lanes` has the
    streams that each kind of group has already.
    """
    stream = lanes.setdefault(exchange.group, np.full(wires.plan.pp, -1))
    longest = exchange.seconds.max(axis=0)
    for rank in np.flatnonzero(stream < 0).tolist():
        stages = np.flatnonzero(rank_of_stage == rank)
        stage = stages[np.argmax(longest[stages])]
        if longest[stage] > 0:
            stream[rank] = _of_group(wires, exchange, rank, (int(np.argmax(exchange.seconds[:, stage])), stage))
    return stream


def _of_group(wires: Wires, exchange: Exchange, rank: int, longest: tuple[int, int]) -> int:
    """The stream of one rank's collectives within layers, or of its sends round a ring."""
    group, plan = exchange.group, wires.plan
    sizes = exchange.nbytes, exchange.between_bytes, exchange.seconds
    nbytes, between, seconds = (float(each[longest]) for each in sizes)
    if group == "ep":
        return wires.all_to_all(group, rank, nbytes - between, between, seconds)
    if group == "dp":
        # What experts send at visits, in rings over every ep-th of the same GPUs, is counted into the others'.
        shards = "shards" if (plan.sharding_group or plan.num_replicas) > 1 else "expert_shards"
        return wires.rings({shards: nbytes - between, "between": between}, rank, seconds)
    return wires.rings({group: nbytes}, rank, seconds, of_sends=group == "cp" and exchange.beside)


BUSIEST = 8
"""Links that are named."""


def link_bytes(order: Order, traffic: Traffic) -> Array:
    """Bytes of a whole step on every link.  [bytes]"""
    times = _message_counts(order, traffic)
    carried = np.zeros(len(traffic.health))
    for stream, often in zip(traffic.streams, times.tolist(), strict=True):
        np.add.at(carried, stream.link, often * stream.link_bytes)
    return carried


def _message_counts(order: Order, traffic: Traffic) -> Array:
    """How many messages' worth of bytes each stream moves in a step; array over streams."""
    times = np.zeros(len(traffic.streams))
    for table, kinds in ((traffic.forward, (F,)), (traffic.backward, (B, I))):
        sends = np.isin(order.kind, kinds) & (table[order.stage] >= 0)
        np.add.at(times, table[order.stage[sends]], order.weight[sends])
    for table in (traffic.reduce, traffic.gather):
        times[table[table >= 0]] = 1.0
    for inside in traffic.inside:
        sizes = np.array([each.nbytes for each in traffic.streams])[inside.stream]
        for kind, rows in ROWS.items():
            often = np.bincount(order.stage, (order.kind == kind) * order.weight, minlength=order.num_stages)
            moved = inside.exchange.nbytes[rows].sum(axis=0) * often
            np.add.at(times, inside.stream[order.rank_of_stage], moved / sizes[order.rank_of_stage])
    if traffic.visits is not None and traffic.visit_exchange is not None:
        moved = traffic.visit_exchange.nbytes
        visits, nbytes = visits_of(order), np.zeros(len(order))
        opens, passes = visits.opens, (order.kind != F).astype(np.int64)
        nbytes[opens] += moved[passes[opens], order.stage[opens]]
        nbytes[visits.closes] += moved[2, order.stage[visits.closes]]
        moves = np.flatnonzero(traffic.visits >= 0)
        sizes = np.array([traffic.streams[number].nbytes for number in traffic.visits[moves].tolist()])
        times[traffic.visits[moves]] += np.bincount(order.rank, nbytes * order.weight, order.num_ranks)[moves] / sizes
    return times


def use_by_level(carried: Array, traffic: Traffic, step_time_s: float) -> list[dict[str, Any]]:
    """Bytes that each class of links carries, and its use: the share that they could carry, on average and at most.

    Links that carry nothing do not count in the average; trunks stand for their cables.
    """
    topology, rows = traffic.topology, []
    for links in topology.classes:
        here = carried[links.start : links.start + links.count]
        used = here > 0
        if used.any():
            share = here[used] / links.capacity_bytes_per_s / step_time_s
            rows.append(
                {
                    "level": links.name.removesuffix(" trunk"),
                    "direction": links.direction,
                    "links": int(used.sum()),
                    "bytes": float(here.sum()),
                    "mean_utilisation": float(share.mean()),
                    "max_utilisation": float(share.max()),
                }
            )
    return rows


def busiest_links(carried: Array, traffic: Traffic, step_time_s: float) -> list[dict[str, Any]]:
    """The links that use most of what is left of them, the busiest first; of links alike the first."""
    left = traffic.topology.capacity * traffic.health * step_time_s
    share = np.divide(carried, left, out=np.zeros_like(carried), where=left > 0)
    order = np.argsort(-np.round(share, 12), kind="stable")[:BUSIEST]
    return [
        {
            "link": link_name(traffic.topology, int(link)),
            "bytes": float(carried[link]),
            "utilisation": float(share[link]),
        }
        for link in order
        if carried[link] > 0
    ]
