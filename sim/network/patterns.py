"""Collectives as flows over links: who sends how much to whom, phase by phase.

A collective runs over a placement: an array of GPUs whose row d holds its members in NVLink domain d. Phases follow
each other; the flows of one phase run together. The many steps of a ring are one phase, because in every step each
member sends the same amount over the same links: what differs is latency, counted as hops over NVLink and the network.

Uncontended, a phase takes base latency + hops + the bytes on its busiest link over that link's bandwidth, and the
collectives take what the formulas of `sim.costs.collectives` say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.errors import SpecError


@dataclass(frozen=True, slots=True)
class PatternPhase:
    """Flows that run together.

    source, target : GPUs.
    nbytes : of each flow, over all steps. [bytes]
    nvlink_hops, network_hops : messages that wait for one another.
    between_domains : whether the phase starts over the network, so that its base latency is the network's.
    trees : sets of GPUs whose data the switches add and hand out; each is one flow, up and down at once.
    over_nvlink : whether the trees are NVSwitch's (NVLS) or the network's (SHARP).
    tree_bytes : that each member of a tree sends, and receives. [bytes]
    """

    source: IntArray
    target: IntArray
    nbytes: FloatArray
    nvlink_hops: float = 0.0
    network_hops: float = 0.0
    between_domains: bool = False
    trees: tuple[IntArray, ...] = ()
    over_nvlink: bool = True
    tree_bytes: float = 0.0


Pattern = tuple[PatternPhase, ...]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Per collective and per message, over NVLink and over the network. [s]"""

    nvlink_base_s: float = 0.0
    nvlink_hop_s: float = 0.0
    network_base_s: float = 0.0
    network_hop_s: float = 0.0

    def of(self, phase: PatternPhase) -> float:
        """Latency of one phase. [s]"""
        base = self.network_base_s if phase.between_domains else self.nvlink_base_s
        return base + phase.nvlink_hops * self.nvlink_hop_s + phase.network_hops * self.network_hop_s


def members_by_domain(gpus: IntArray, domain_gpus: int) -> IntArray:
    """The GPUs of a group as an array (domains, members a domain).

    Raises
    ------
    SpecError
        The domains hold different numbers of members.
    """
    gpus = np.asarray(gpus)
    domains, counts = np.unique(gpus // domain_gpus, return_counts=True)
    if len(set(counts.tolist())) > 1:
        raise SpecError(
            f"a group has {counts.min()} to {counts.max()} members in its {len(domains)} NVLink domains; collectives "
            "are laid out for equally many: choose degrees that divide the domain"
        )
    order = np.argsort(gpus // domain_gpus, kind="stable")
    return gpus[order].reshape(len(domains), -1)


def send(source: int, target: int, nbytes: float, between_domains: bool) -> Pattern:
    """One GPU's message to another."""
    away = float(between_domains)
    ends = np.array([source]), np.array([target])
    return (PatternPhase(*ends, np.array([float(nbytes)]), 1.0 - away, away, between_domains),)


def ring(placement: IntArray, nbytes: float, passes: int) -> Pattern:
    """Rings that carry (n−1)/n of the buffer `passes` times: 2 an all-reduce, 1 an all-gather or a reduce-scatter.

    Between domains there is one ring for each member of a domain, with its share of the buffer, so that every card is
    used. A ring runs through a domain and leaves over the card of its last member; every second domain is passed
    backwards, so that it stays on one rail (with an odd number of domains, but for its last hop). Each of g members
    uses NVLink in all rings but the one it leaves the domain with, (g−1)/g of what it sends; the formulas of
    `sim.costs.collectives` count all of it, which shows only where g cards are faster than NVLink.
    """
    domains, per_domain = placement.shape
    n = placement.size
    if n == 1:
        return ()
    channels = per_domain if domains > 1 else 1
    places = (np.arange(channels)[:, np.newaxis] + np.arange(per_domain)) % per_domain
    rings = [
        placement[d][places if d % 2 == 0 else places[:, ::-1]] for d in range(domains)
    ]  # each (channels, members of the domain)
    order = np.concatenate(rings, axis=1)
    volume = passes * (n - 1) / n * nbytes / channels
    crossings = passes * (domains - 1)
    hops = passes * (n - 1) - crossings
    source, target = order.ravel(), np.roll(order, -1, axis=1).ravel()
    return (PatternPhase(source, target, np.full(source.size, volume), hops, crossings, domains > 1),)


def ring_all_reduce(placement: IntArray, nbytes: float) -> Pattern:
    """Ring all-reduce of `nbytes` on each member."""
    return ring(placement, nbytes, 2)


def all_gather(placement: IntArray, nbytes: float) -> Pattern:
    """Ring all-gather that ends with `nbytes` on each member."""
    return ring(placement, nbytes, 1)


def reduce_scatter(placement: IntArray, nbytes: float) -> Pattern:
    """Ring reduce-scatter that starts with `nbytes` on each member."""
    return ring(placement, nbytes, 1)


def tree_all_reduce(placement: IntArray, nbytes: float) -> Pattern:
    """Double binary tree between domains, chains inside them, up and down at once.

    Half of the buffer climbs one tree over the domains, half the other; a domain that branches in one is a leaf of the
    other, so none sends or receives more than twice its buffer [1]_. Members share the buffer, each with the card
    and the chain of its own.

    .. [1] Sanders, Speck, Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
    """
    domains, per_domain = placement.shape
    if domains == 1:
        raise SpecError("a tree all-reduce joins NVLink domains; inside one, use a ring or NVLS")
    first = _tree_parents(domains)
    ranks = np.arange(domains)
    # The second tree is the first with the domains renamed so that its leaves branch here.
    renamed = domains - 1 - ranks if domains % 2 == 0 else (ranks - 1) % domains
    named = np.argsort(renamed)
    source, target = [], []
    for parents, name in ((first, ranks), (first, named)):
        child = np.flatnonzero(parents >= 0)
        source.append(placement[name[child]])
        target.append(placement[name[parents[child]]])
    up = np.concatenate(source).ravel(), np.concatenate(target).ravel()
    share = nbytes / 2 / per_domain
    # Channel c gathers on member c: a chain from c − 1 down to c + 1 … to c, and back.
    turn = (np.arange(per_domain)[:, np.newaxis] + np.arange(per_domain)) % per_domain
    chain = placement[:, turn]  # domain, channel, from the head on
    links = chain[:, :, 1:].ravel(), chain[:, :, :-1].ravel()
    sides = [np.concatenate([up[0], up[1], links[0], links[1]]), np.concatenate([up[1], up[0], links[1], links[0]])]
    sizes = np.concatenate([np.full(2 * up[0].size, share), np.full(2 * links[0].size, 2 * share)])
    return (PatternPhase(sides[0], sides[1], sizes, 2.0 * (per_domain - 1), 2.0 * ceil(log2(domains)), True),)


def _tree_parents(n: int) -> IntArray:
    """Parent of each rank (-1: none) in an in-order binary tree: odd ranks are leaves, rank 0 is a root with one child.

    A rank whose lowest set bit is 2ᵏ hangs under the neighbour whose lowest set bit is 2ᵏ⁺¹, or, where that is past the
    end, under the next one down.
    """
    parents = np.full(n, -1)
    for rank in range(1, n):
        bit = rank & -rank
        parent = (rank ^ bit) | (bit << 1)
        parents[rank] = parent if parent < n else rank ^ bit
    return parents


def hierarchical_all_reduce(placement: IntArray, nbytes: float) -> Pattern:
    """Reduce-scatter inside each domain, ring all-reduce of the shares between domains, all-gather inside."""
    inside = _inside(placement, nbytes)
    rails = [ring(column[:, np.newaxis], nbytes / placement.shape[1], 2) for column in placement.T]
    return (*inside, *_together(rails), *inside)


def sharp_all_reduce(placement: IntArray, nbytes: float) -> Pattern:
    """The same with the shares added by the network's switches (SHARP): each member sends its share up once."""
    inside = _inside(placement, nbytes)
    nobody = np.empty(0, dtype=int)
    between = PatternPhase(
        nobody,
        nobody,
        np.empty(0),
        network_hops=2.0,
        between_domains=True,
        trees=tuple(placement.T),
        over_nvlink=False,
        tree_bytes=nbytes / placement.shape[1],
    )
    return (*inside, between, *inside)


def nvls_all_reduce(placement: IntArray, nbytes: float) -> Pattern:
    """All-reduce inside NVLink domains by their switches (NVLS).

    Of n members each sends its whole buffer to be added and its 1/n of the sum to be handed out, and receives as much:
    (n+1)/n of the buffer each way instead of 2 (n−1)/n.
    """
    n = placement.shape[1]
    nobody = np.empty(0, dtype=int)
    if n == 1:
        return ()
    tree_bytes = nbytes * (n + 1) / n
    return (PatternPhase(nobody, nobody, np.empty(0), nvlink_hops=2.0, trees=tuple(placement), tree_bytes=tree_bytes),)


def all_to_all(placement: IntArray, nbytes: float) -> Pattern:
    """Every member sends 1/n of its `nbytes` to every other."""
    members = placement.ravel()
    n = len(members)
    apart = (np.arange(n)[:, np.newaxis] + np.arange(1, n)) % n
    domains, per_domain = placement.shape
    away = float(n - per_domain)
    sizes = np.full(n * (n - 1), nbytes / n)
    return (
        PatternPhase(np.repeat(members, n - 1), members[apart].ravel(), sizes, per_domain - 1.0, away, domains > 1),
    )


def _inside(placement: IntArray, nbytes: float) -> Pattern:
    return _together([ring(row[np.newaxis], nbytes, 1) for row in placement])


def _together(patterns: Sequence[Pattern]) -> Pattern:
    """Patterns alike, of different members, run at the same time."""
    return tuple(
        replace(
            phases[0],
            source=np.concatenate([phase.source for phase in phases]),
            target=np.concatenate([phase.target for phase in phases]),
            nbytes=np.concatenate([phase.nbytes for phase in phases]),
            trees=tuple(tree for phase in phases for tree in phase.trees),
        )
        for phases in zip(*patterns, strict=True)
    )
