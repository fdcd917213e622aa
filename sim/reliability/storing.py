"""How long checkpoints take to be written and loaded, and whether data come fast enough, on a machine's storage.

.. [1] pytorch.org/blog/reducing-checkpointing-times: an asynchronous checkpoint stops training until it is in the
   host's memory; the write follows it, one at a time.
.. [2] NVIDIA/Megatron-LM:megatron/training/arguments.py, ckpt-fully-parallel-save and -load: who holds the same saves,
   or reads, a share of it, and shares are exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sim.arrays import Number
from sim.costs.block import Host
from sim.costs.collectives import Fabric, all_gather, broadcast
from sim.errors import SpecError
from sim.network.placement import Group
from sim.reliability.state import Spread, State, even_state, state_of
from sim.specs import ClusterSpec, NodeSpec, Profile, Scenario, StorageSpec
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


LoadBy = Literal["all", "one", "shares"]
LOAD_WORDS: dict[LoadBy, str] = {
    "all": "every GPU reads its own part",
    "one": "one replica reads and broadcasts to the others",
    "shares": "each replica reads a part, and they exchange the parts",
}
HOST_LINK = "host link"
STAGING_S = 6.2
"""What a checkpoint in the background stops training for beside the copy: state is collected and flattened in Python,
buffers in host memory are filled tensor by tensor, ranks agree on a plan. A 7B model's pause was 6.3 s in PyTorch [1]_,
of which the copy over PCIe is 0.1 s; several seconds in MegaScale (Jiang et al. 2024, arXiv:2402.15627, section 4.4).
[s]"""
STAGING_SHARE = 0.5
"""Share of the host's memory that may hold a checkpoint while it is written. Assumed: the rest is the job's own."""
LONGEST_VOCABULARY = 65_500
"""Largest vocabulary whose tokens Megatron-LM's indexed datasets store in 16 bits
(megatron/core/datasets/indexed_dataset.py)."""


@dataclass(frozen=True, slots=True)
class Load:
    """Loading a checkpoint: reading it, and handing it on to those who did not read.  [s]"""

    read_s: float
    spread_s: float

    @property
    def seconds(self) -> float:
        """Sum of the parts, which run one after the other.  [s]"""
        return self.read_s + self.spread_s


@dataclass(frozen=True, slots=True)
class Storing:
    """What checkpoints of a run take.

    checkpoint_bytes, largest_bytes : all of it, and what one GPU writes of it at most. [bytes]
    write_s : from hosts to storage. [s]
    limit : what sets the pace of a checkpoint that training waits for.
    copy_s : from GPUs to their hosts; None where the node does not say how fast. [s]
    pause_s : of training, where the write goes on in the background: staging, the copy, and what no host memory holds.
        [s]
    loads : how long loading takes, by who reads.
    read_bytes_per_s : that storage reaches with this job. [bytes/s]
    """

    checkpoint_bytes: float
    largest_bytes: float
    write_s: float
    limit: str
    copy_s: float | None
    pause_s: float | None
    loads: Mapping[LoadBy, Load]
    read_bytes_per_s: float
    notes: tuple[str, ...] = ()

    @property
    def blocking_s(self) -> float:
        """Pause of training where it waits for the write; the copy to the host runs beside it.  [s]"""
        return max(self.write_s, self.copy_s or 0.0)

    @property
    def load_by(self) -> LoadBy:
        """Who reads in the fastest way to load."""
        return min(self.loads, key=lambda way: self.loads[way].seconds)

    @property
    def load(self) -> Load:
        """Loading a checkpoint in the fastest way."""
        return self.loads[self.load_by]


def storing_of(scenario: Scenario) -> Storing:
    """Return how a scenario's run saves and loads its state; storage that grows with nodes is that of the job's."""
    return _storing(state_of(scenario), scenario.cluster, scenario.profile, scenario.stack.parallel_save)


def even_storing(nbytes: float, num_gpus: int, cluster: ClusterSpec, profile: Profile | None = None) -> Storing:
    """Return how a checkpoint is saved and loaded that lies evenly over so many GPUs of a cluster."""
    return _storing(even_state(nbytes, num_gpus, cluster.node.gpus_per_node), cluster, profile)


def _storing(state: State, cluster: ClusterSpec, profile: Profile | None, parallel: bool = True) -> Storing:
    """What checkpoints of a state take.

    parallel : all who hold a piece write a share of it, or the first of them writes it.
    """
    saved, storage = state.saved(parallel), Storage.of(cluster, state.num_nodes)
    host, fabric = Host.of(cluster.node, profile), None if profile is None else Fabric.of(cluster, profile)
    write = float(storage.write_s(saved.total, saved.node))
    limit = "file system" if saved.total / storage.write_bytes_per_s >= write * (1 - 1e-9) else storage.way
    copy = pause = None
    if host.to_host_bytes_per_s is not None:
        copy = float(host.out_s(state.copied(parallel).gpu))
        pause = copy + STAGING_S + _unstaged_s(saved.node, write, state.offloaded().node, cluster.node)
        limit = HOST_LINK if copy > write else limit
    handed_on = {"all": 0.0, "one": _spread_s(state, broadcast, fabric), "shares": _spread_s(state, all_gather, fabric)}
    loads = {by: Load(_read_s(state.read(by), storage, host), handed_on[by]) for by in LOAD_WORDS}
    rate = min(storage.read_bytes_per_s, state.num_nodes * storage.node_read_bytes_per_s)
    return Storing(saved.total, saved.gpu, write, limit, copy, pause, loads, rate, storage.notes)


def _unstaged_s(saved: float, write_s: float, offloaded: float, node: NodeSpec) -> float:
    """What training waits for bytes of a node that the host's memory cannot hold until they are written.  [s]

    They go to storage, at the node's share of its rate.
    """
    if node.host_memory_bytes is None:
        return 0.0
    over = saved - max(STAGING_SHARE * node.host_memory_bytes - offloaded, 0.0)
    return max(over, 0.0) * write_s / saved


def _read_s(read: Spread, storage: Storage, host: Host) -> float:
    """Time until what is read is on the GPUs.  [s]"""
    seconds = float(storage.read_s(read.total, read.node))
    if host.to_device_bytes_per_s is None:
        return seconds
    return max(seconds, float(host.back_s(read.gpu)))


def _spread_s(state: State, collective: Callable[[Number, Group, Fabric], Number], fabric: Fabric | None) -> float:
    """Time until all who hold a piece have it, over the compute network.  [s]"""
    return sum(
        float(np.max(collective(piece.held_bytes.max(), piece.group, fabric)))
        for piece in state.pieces
        if piece.copies > 1 and piece.group is not None and fabric is not None
    )


@dataclass(frozen=True, slots=True)
class DataLoading:
    """How fast a run reads its data.

    bytes_per_s, limit_bytes_per_s : that it asks for, and that storage gives. [bytes/s]
    """

    bytes_per_s: float
    limit_bytes_per_s: float

    @property
    def share(self) -> float:
        """Share of storage's rate that reading the data takes."""
        return self.bytes_per_s / self.limit_bytes_per_s

    @property
    def slowdown(self) -> float:
        """Times the step is longer because data do not come faster: 1 where they do."""
        return max(self.share, 1.0)


def data_loading(scenario: Scenario, tokens_per_s: float, storing: Storing) -> DataLoading:
    """Reading of tokens: the first and the last stage of each pipeline read them, once a tensor-parallel group.

    The others get theirs by NCCL (NVIDIA/Megatron-LM:megatron/training/utils.py, get_batch_on_this_tp_rank).
    """
    model, training, plan = scenario.model, scenario.training, scenario.plan
    width = training.bytes_per_token or (2.0 if model.vocab_size <= LONGEST_VOCABULARY else 4.0)
    readers = 2 if plan.pp > 1 else 1
    return DataLoading(tokens_per_s * width * readers, storing.read_bytes_per_s)


def require_pause(storing: Storing, node: str) -> float:
    """Pause of a checkpoint written in the background.  [s]"""
    if storing.pause_s is None:
        raise SpecError(
            f"a checkpoint of {show(storing.checkpoint_bytes, 'B')} in the background is first copied to the host, but "
            f"node {node!r} has no host_link_bandwidth. Add it to cluster.node, such as host_link_bandwidth: 64 GB/s "
            "(PCIe Gen5 x16), or write checkpoints while training waits"
        )
    return storing.pause_s
