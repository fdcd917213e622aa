"""Collectives link by link, the oracle of the formulas of `sim.costs.collectives`: phases follow each other, and each
takes the bytes on its busiest link over that link's bandwidth."""

from typing import NamedTuple

import numpy as np

from sim.network import collective_flows
from sim.network.routing import route


class Phase(NamedTuple):
    """Flows that run together, each with its bytes."""

    source: np.ndarray
    target: np.ndarray
    nbytes: np.ndarray


def ring(placement, nbytes, passes):
    return () if placement.size == 1 else (Phase(*collective_flows.ring(placement, nbytes, passes)),)


def ring_all_reduce(placement, nbytes):
    return ring(placement, nbytes, 2)


def one_pass(placement, nbytes):
    return ring(placement, nbytes, 1)


def tree_all_reduce(placement, nbytes):
    """Double binary tree between domains, chains inside them, up and down at once (Sanders, Speck, Träff 2009)."""
    domains, per_domain = placement.shape
    parents, ranks = _tree_parents(domains), np.arange(domains)
    # The second tree is the first with the domains renamed so that its leaves branch here.
    renamed = np.argsort(domains - 1 - ranks if domains % 2 == 0 else (ranks - 1) % domains)
    child = np.flatnonzero(parents >= 0)
    source, target = (
        np.concatenate([placement[ends], placement[renamed[ends]]]).ravel() for ends in (child, parents[child])
    )
    share = nbytes / 2 / per_domain
    # Channel c gathers on member c: a chain from c − 1 down to c + 1 … to c, and back.
    turn = (np.arange(per_domain)[:, np.newaxis] + np.arange(per_domain)) % per_domain
    chain = placement[:, turn]  # domain, channel, from the head on
    links = chain[:, :, 1:].ravel(), chain[:, :, :-1].ravel()
    sizes = np.concatenate([np.full(2 * source.size, share), np.full(2 * links[0].size, 2 * share)])
    return (Phase(np.concatenate([source, target, *links]), np.concatenate([target, source, *links[::-1]]), sizes),)


def _tree_parents(n):
    """Parent of each rank (-1: none): one whose lowest set bit is 2ᵏ hangs under a neighbour with 2ᵏ⁺¹."""
    parents = np.full(n, -1)
    for rank in range(1, n):
        bit = rank & -rank
        parent = (rank ^ bit) | (bit << 1)
        parents[rank] = parent if parent < n else rank ^ bit
    return parents


def hierarchical_all_reduce(placement, nbytes):
    """Reduce-scatter inside each domain, ring all-reduce of the shares between domains, all-gather inside."""
    inside = _together([ring(row[np.newaxis], nbytes, 1) for row in placement])
    rails = [ring(column[:, np.newaxis], nbytes / placement.shape[1], 2) for column in placement.T]
    return (*inside, *_together(rails), *inside)


def _together(patterns):
    """Patterns alike, of different members, run at the same time."""
    return tuple(Phase(*map(np.concatenate, zip(*phases, strict=True)))
                 for phases in zip(*patterns, strict=True))  # fmt: skip


def bytes_on_links(phase, topology, routing="adaptive", subflows=1):
    paths = route(topology, phase.source, phase.target, routing, subflows=subflows)
    flow, place = np.nonzero(paths >= 0)
    sizes = np.repeat(phase.nbytes / subflows, subflows)
    return np.bincount(paths[flow, place], sizes[flow], minlength=topology.num_links)


def pattern_time(pattern, topology, routing="adaptive", subflows=1):
    """Time of a collective that has the machine to itself, without latency. [s]"""
    phases = (bytes_on_links(phase, topology, routing, subflows) for phase in pattern)
    return sum(float((carried / topology.capacity).max()) for carried in phases)
