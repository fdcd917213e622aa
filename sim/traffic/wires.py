"""The links that a group of flows uses, and how much of each it takes: streams between the GPUs of one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.costs.collectives import Fabric, best_of, send
from sim.network.collective_flows import members_by_domain, ring
from sim.network.faults import route_around
from sim.network.placement import hops_of, send_share
from sim.network.ranks import members_of
from sim.network.topology import Topology
from sim.pricing.cells import sent_bytes
from sim.pricing.cost_model import cost_model, cut_of
from sim.specs import Profile, Scenario


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
        self._reached = reached_capacity(topology, scenario.profile, self._fabric)
        ends = np.array([links.name in ("nvlink", "pcie", "nic") for links in topology.classes])
        self._is_end = ends[topology.class_of_link]
        self._is_nvlink = np.array([links.name == "nvlink" for links in topology.classes])[topology.class_of_link]
        self._hops = hops_of(scenario.plan, scenario.cluster)
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

        Parameters
        ----------
        sent : mapping
            What each member of a kind of group (`sim.network.ranks.members_of`) sends in all. [bytes]
        gpus : array (dp, cp, tp)
        others : array (ranks, dp, cp, tp), optional
            Of ranks whose GPUs are in the same groups; what they send is not in this stream.
        of_sends : bool
            Each group is one ring in the order of its members, instead of a library's, which use every card.
        """
        every = gpus if others is None else np.concatenate([gpus, *others])
        phases = []
        for group, nbytes in sent.items():
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

    def replicas(
        self, kind: str, inside: float, between: float, gpus: IntArray, seconds: float, others: IntArray | None = None
    ) -> Stream:
        """Rings among one pipeline rank's replicas: bytes that each sends in its sharding group, and between these.

        What experts send, in rings over every ep-th of the same GPUs, is counted into the others'. `others` hold copies
        of what this rank does, as of `rings`.
        """
        plan = self._scenario.plan
        alone = others is None or not len(others)
        group = "shards" if (plan.sharding_group or plan.num_replicas) > 1 or not alone else "expert_shards"
        sent = {group: inside, "between": between}
        return self.rings(kind, {name: nbytes for name, nbytes in sent.items() if nbytes}, gpus, seconds, others)

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


def reached_capacity(topology: Topology, profile: Profile, fabric: Fabric) -> FloatArray:
    """The most that messages of any kind reach of every link.  [bytes/s]"""
    network = fabric.best_share
    shares = np.array([best_of(fabric.nvlink) if links.name == "nvlink" else network for links in topology.classes])
    reached: FloatArray = topology.capacity * shares[topology.class_of_link]
    return reached
