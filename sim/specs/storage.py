"""The file system that checkpoints are written to, and that they and the data are read from."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from sim.specs.base import Spec


class StorageSpec(Spec):
    """A file system that all nodes of a cluster share. How they reach it says the node: storage_nics_per_node."""

    read_bandwidth_bytes_per_s: PositiveFloat
    """Peak of reads, all nodes together. [bytes/s]"""
    write_bandwidth_bytes_per_s: PositiveFloat
    """Peak of writes, all nodes together. [bytes/s]"""
    read_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the peak of reads that loading a checkpoint or data reaches for seconds and minutes."""
    write_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the peak of writes that saving a checkpoint reaches."""
    node_read_bandwidth_bytes_per_s: PositiveFloat | None = None
    """What the file system's client on one node reads at most. Default: what the node's cards carry. [bytes/s]"""
    node_write_bandwidth_bytes_per_s: PositiveFloat | None = None
    """What the client on one node writes at most. Default: what the node's cards carry. [bytes/s]"""
    nodes_per_unit: PositiveInt | None = None
    """Bandwidths and capacity are those of a unit for so many nodes, and a cluster has as many units as its nodes need.
    Default: they are the whole cluster's, whatever its size."""
    capacity_bytes: PositiveFloat | None = None
    """What it holds; a checkpoint that is larger is refused. Default: unknown. [bytes]"""
