"""Seconds of reading from and writing to the file system of a cluster: it and the way of each node to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Number
from sim.errors import SpecError
from sim.specs import ClusterSpec, StorageSpec
from sim.units import show

DEFAULT_STORAGE = StorageSpec(read_bandwidth_bytes_per_s=40e9, write_bandwidth_bytes_per_s=20e9, nodes_per_unit=32)
"""File system of a cluster that states none: what a reference architecture asks for every 32 nodes (NVIDIA RA-11333-001
V11, table 6), so that a small job does not get a large one's file system. For 512 nodes that is 0.3 TB/s of writes;
Llama 3's 2,048 had 2 (arXiv:2407.21783, section 3.3.1)."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A file system as so many nodes find it. Bandwidths reached, not peaks. [bytes/s]

    read_bytes_per_s, write_bytes_per_s : of all nodes together.
    node_read_bytes_per_s, node_write_bytes_per_s : of one node, by its network cards and the file system's client;
        infinite where nothing is known of the node.
    way : what holds a node's writes back.
    notes : what was not given.
    """

    read_bytes_per_s: float
    write_bytes_per_s: float
    node_read_bytes_per_s: float = float("inf")
    node_write_bytes_per_s: float = float("inf")
    capacity_bytes: float = float("inf")
    way: str = "network cards"
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, cluster: ClusterSpec, num_nodes: int) -> Storage:
        """The file system of a cluster; where it is built of units, those that belong to a job's nodes."""
        spec, node, notes = cluster.storage or DEFAULT_STORAGE, cluster.node, []
        units = 1
        if spec.nodes_per_unit is not None:
            units = -(-num_nodes // spec.nodes_per_unit)
        if cluster.storage is None:
            rates = f"writes {show(spec.write_bandwidth_bytes_per_s, 'B/s')}"
            notes.append(
                f"cluster {cluster.name!r} does not state its storage. A file system that {rates} and reads twice as "
                f"much for every {spec.nodes_per_unit} of the job's nodes is assumed, as in NVIDIA's SuperPOD"
            )
        own, cards = node.storage_bandwidth_bytes_per_s, "cards for storage"
        if own is None:
            own, cards = cluster.inter_node_bandwidth_bytes_per_s * node.gpus_per_node, "cards for compute"
            notes.append(
                f"node {node.name!r} names no cards for storage: it is reached over those for compute, "
                f"{show(own, 'B/s')} a node"
            )
        client = spec.node_write_bandwidth_bytes_per_s
        read, write = (
            own if limit is None else min(own, limit) for limit in (spec.node_read_bandwidth_bytes_per_s, client)
        )
        return cls(
            units * spec.read_share * spec.read_bandwidth_bytes_per_s,
            units * spec.write_share * spec.write_bandwidth_bytes_per_s,
            read,
            write,
            float("inf") if spec.capacity_bytes is None else units * spec.capacity_bytes,
            cards if client is None or client >= own else "file system's client",
            tuple(notes),
        )

    def read_s(self, total_bytes: Number, busiest_node_bytes: Number) -> Number:
        """Time to read so much in all, of which the busiest node reads so much.  [s]"""
        return np.maximum(total_bytes / self.read_bytes_per_s, busiest_node_bytes / self.node_read_bytes_per_s)

    def write_s(self, total_bytes: Number, busiest_node_bytes: Number) -> Number:
        """Time to write so much in all, of which the busiest node writes so much.  [s]

        Raises SpecError: it is more than the file system holds.
        """
        if np.any(np.asarray(total_bytes) > self.capacity_bytes):
            raise SpecError(
                f"a checkpoint of {show(float(np.max(total_bytes)), 'B')} is more than the storage holds, "
                f"{show(self.capacity_bytes, 'B')}; raise cluster.storage.capacity, or leave it out"
            )
        return np.maximum(total_bytes / self.write_bytes_per_s, busiest_node_bytes / self.node_write_bytes_per_s)
