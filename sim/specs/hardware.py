"""Hardware: a GPU, a node of GPUs, a cluster of nodes, its network and its file system.

Bandwidths are per GPU and per direction; peak FLOP/s is dense (no sparsity).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from sim.errors import SpecError
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


class LevelSpec(Spec):
    """One level of switches, all alike."""

    ports: PositiveInt
    """Ports of a switch, each as fast as a network card."""
    below: PositiveInt | None = None
    """What one group of this level joins: nodes under a leaf, groups of the level below elsewhere. The top is the
    lowest level that joins the whole machine, and levels above it are left out. A top over leaves may join more than
    this, since it has no cables up, unless it or a level above it is oversubscribed. Default: as many as the ports
    allow."""
    switches: PositiveInt | None = None
    """Switches in a group; a leaf stands alone. Default: the fewest whose ports suffice and that take an equal share of
    the cables from each group below."""
    oversubscription: float = Field(default=1.0, ge=1.0)
    """Bandwidth down over bandwidth up of a switch: 2 for a tree of 2:1. The last level has no cables up."""


class NetworkSpec(Spec):
    """How the network cards of all nodes reach each other."""

    levels: dict[str, LevelSpec] = Field(min_length=1)
    """Levels of switches, leaf first. A machine that is small enough leaves the upper ones out (`below`)."""
    rail_optimised: bool
    """The cards of one index in their nodes share a leaf (a rail); rails meet at the top level only."""
    routing: Literal["ecmp", "adaptive"] = "adaptive"
    """How a flow chooses among equal paths: by a hash, or over all of them at once."""
    subflows: PositiveInt = 1
    """Under ecmp: how many flows of their own hash a pair of GPUs spreads its bytes over."""
    pcie_bandwidth_bytes_per_s: PositiveFloat | None = None
    """Bandwidth between a GPU and its network card, per direction, where that is less than the card's. [bytes/s]"""

    def is_nonblocking(self, used: Iterable[str] | None = None) -> bool:
        """Return whether no flow meets a full link, whoever talks: flows use all paths, and no level is oversubscribed.

        used : levels that have cables up, where the machine does not need all of them.
        """
        levels = self.levels if used is None else used
        return self.routing == "adaptive" and all(self.levels[name].oversubscription == 1.0 for name in levels)

    @property
    def unblocked(self) -> NetworkSpec:
        """The network with as many cables up as down, on all of which flows spread."""
        levels = {name: level.replace(oversubscription=1.0) for name, level in self.levels.items()}
        return self.replace(levels=levels, routing="adaptive", subflows=1)

    def mistakes(self) -> Iterator[str]:
        """Yield what breaks a rule of levels and routing."""
        leaf = next(iter(self.levels.values()))
        if leaf.switches not in (None, 1):
            yield f"switches = {leaf.switches} on the lowest level: a leaf stands alone; leave it out"
        *below, top = self.levels
        if (ratio := self.levels[top].oversubscription) != 1.0:
            remedy = f"state it on the level below, levels.{below[-1]}" if below else "add a level above"
            yield f"levels.{top}.oversubscription {ratio:g}: the last level has no cables up; {remedy}"
        if self.subflows > 1 and self.routing != "ecmp":
            yield f"subflows {self.subflows} has no effect with {self.routing} routing; set routing to ecmp"


Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


NODE_OVERHEAD = 1.8
"""Power of a node over that of its GPUs' boards, where it is not known: that of a DGX H100."""


class GpuSpec(Spec):
    """One accelerator."""

    name: str
    """Name that its maker gives it, such as H100-SXM5-80GB; it must contain the `gpu` of a profile."""
    peak_flop_per_s: dict[Precision, PositiveFloat] = Field(min_length=1)
    """Dense matrix-multiply peak by precision. [FLOP/s]"""
    memory_bytes: PositiveFloat
    """Device memory as marketed. [bytes]"""
    reported_memory_bytes: PositiveFloat | None = None
    """Device memory as its driver gives it to a program (torch.cuda.mem_get_info), which the plans of a search must fit
    in. Default: as marketed. [bytes]"""
    memory_bandwidth_bytes_per_s: PositiveFloat
    """Peak bandwidth of the device memory. [bytes/s]"""
    num_sms: PositiveInt
    """Units that each work on one tile of a matrix multiply: NVIDIA's streaming multiprocessors, AMD's compute units.
    If the maker prints none, take that of the nearest GPU; without a profile, the step hardly depends on it."""
    max_power_w: PositiveFloat | None = None
    """Power limit of the board. Without a profile, the share of peak that multiplies reach follows from it, and with
    one of H100 or H200 their clock. The energy of a run follows from it too, where the node's power is not given.
    Default: unknown. [W]"""
    sustained_clock: float = Field(default=1.0, gt=0, le=1)
    """Share of the boost clock, for which the peaks are given, that dense multiplies keep hour after hour at the power
    limit. Profiles fitted to training runs hold it already; those of single kernels do not."""

    @property
    def usable_bytes(self) -> float:
        """Device memory that a program can have; as marketed, where less than nine tenths of it are reported: then one
        of the two was changed alone. [bytes]"""
        reported = min(self.reported_memory_bytes or self.memory_bytes, self.memory_bytes)
        return reported if reported > 0.9 * self.memory_bytes else self.memory_bytes

    def peak(self, precision: str) -> float:
        """Dense peak at `precision`. [FLOP/s]"""
        for name, value in self.peak_flop_per_s.items():
            if name == precision:
                return value
        raise SpecError(
            f"{self.name} has no {precision} matrix units; set training.precision to one of "
            f"{', '.join(self.peak_flop_per_s)}, or state what it reaches as cluster.node.gpu.peak.{precision}"
        )


class NodeSpec(Spec):
    """One server: its GPUs, the NVLink between them, the network cards out of it."""

    name: str
    """What answers call it."""
    gpu: GpuSpec
    """The accelerator, all alike."""
    gpus_per_node: PositiveInt
    """GPUs of one server, which NVLink joins, or PCIe where there is none."""
    max_power_w: PositiveFloat | None = None
    """Most that the whole server draws, processors, network cards and fans included, from which a run's energy follows.
    Default: 1.8 times its GPUs' boards, as a DGX H100. [W]"""
    nvlink_bandwidth_bytes_per_s: PositiveFloat
    """Bandwidth of NVLink per GPU and direction. Without NVLink, that of PCIe between two cards (32 GB/s on 16 lanes of
    Gen4, half of it where bytes are copied through the host's memory), with nvlink_topology pcie. [bytes/s]"""
    nvlink_topology: Literal["switch", "hybrid_cube_mesh", "full_mesh", "pcie"] = "switch"
    """How NVLink joins the GPUs: through switches; or directly, where nvlink_bandwidth is all of a GPU's links together
    and a smaller group has only those among its members: as in DGX-1 with V100, or with equal links for each pair
    (full_mesh: AMD's xGMI, four GH200, bridges). pcie: not at all; cards talk through the host."""
    nics_per_node: PositiveInt
    """Network cards for compute traffic."""
    nic_bandwidth_bytes_per_s: PositiveFloat
    """Bandwidth of one network card, per direction. [bytes/s]"""
    host_link_bandwidth_bytes_per_s: PositiveFloat | None = None
    """Bandwidth between a GPU and its host's memory (PCIe, NVLink-C2C), per GPU and direction, which offloading needs.
    Default: unknown. [bytes/s]"""
    host_memory_bandwidth_bytes_per_s: PositiveFloat | None = None
    """Each GPU's share of the bandwidth of the host's memory, which updates on the CPU need. Default:
    unknown. [bytes/s]"""
    host_memory_bytes: PositiveFloat | None = None
    """The host's memory, whole, in which checkpoints wait that are written in the background. Default: unknown, and
    they fit. [bytes]"""
    launch_slowdown: PositiveFloat = 1.0
    """Time of a launch on this host over its time on the x86 servers for which stacks state it. Python, autograd and
    driver run on one core. It does not apply where the profile measured launches of its own."""
    storage_nics_per_node: PositiveInt | None = None
    """Network cards for storage alone, on a network of their own. Default: one where storage_nic_bandwidth is given;
    else storage is reached over the cards for compute traffic."""
    storage_nic_bandwidth_bytes_per_s: PositiveFloat | None = None
    """Bandwidth of one network card for storage, per direction. Default: nic_bandwidth. [bytes/s]"""
    cores: PositiveFloat | None = None
    """Processes that run at full speed at once, where ranks are processes that share the node's processors (gloo on
    CPUs). Hyperthreads and a shared memory bus are allowed for. Answers say where ranks would share them. Default:
    one for each rank."""

    @property
    def network_bytes_per_s(self) -> float:
        """A GPU's share of the node's network cards, per direction. [bytes/s]"""
        return self.nics_per_node * self.nic_bandwidth_bytes_per_s / self.gpus_per_node

    @property
    def power_per_gpu_w(self) -> float | None:
        """Power of a GPU with its share of the server; None where neither's is known. [W]"""
        if self.max_power_w is not None:
            return self.max_power_w / self.gpus_per_node
        return None if self.gpu.max_power_w is None else NODE_OVERHEAD * self.gpu.max_power_w

    @property
    def storage_bandwidth_bytes_per_s(self) -> float | None:
        """Bandwidth of the node's cards for storage together; None where it has none. [bytes/s]"""
        cards, each = self.storage_nics_per_node, self.storage_nic_bandwidth_bytes_per_s
        if cards is None and each is None:
            return None
        return (cards or 1) * (each or self.nic_bandwidth_bytes_per_s)


class ClusterSpec(Spec):
    """Nodes and the network between them."""

    name: str = "cluster"
    """What answers call it."""
    node: NodeSpec
    """The servers, all alike."""
    num_nodes: PositiveInt
    """Nodes of the cluster; a plan may use fewer GPUs."""
    nvlink_domain_gpus: PositiveInt = Field(le=1_000_000)
    """GPUs that reach each other over NVLink; more than a node in NVL72 racks. Default: gpus_per_node."""
    inter_node_bandwidth_bytes_per_s: PositiveFloat
    """Network bandwidth per GPU and direction. Default: the node's network cards shared by its GPUs. [bytes/s]"""
    network_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of inter_node_bandwidth that a collective with the network to itself reaches on this fabric, where it was
    measured. It scales every network value of the profile, those of sends and of groups that meet too. Default: the
    profile's values, which are those of InfiniBand."""
    network_shared_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of inter_node_bandwidth which groups that meet, and sends, reach on this fabric, where that was measured:
    as on a machine in use. Default: the profile's values, scaled as network_efficiency says."""
    network: NetworkSpec | None = None
    """The switches. Estimates take from them the share of a network card that they leave, and simulate --contention
    plays traffic on them. Without this section switches limit nothing."""
    fragmentation: float = 0.0
    """Share of a job's nodes that a busy scheduler hands out anywhere in the machine, and not where an empty machine
    would give them. The nodes are the same in every answer."""
    gpu_spread: float = Field(default=0.03, ge=0, le=0.3)
    """Standard deviation of the GPUs' speeds over their mean, of which a job waits for the slowest: 3.0 % (± 0.5) on 29
    series of published runs that differ in the number of GPUs alone (DGX Cloud, llm-foundry). On single multiplies GPUs
    of one kind lie up to 14 % apart (Golden et al. 2025, arXiv:2510.15596), V100 of five clusters 8 % (Sinha et al.
    2022, arXiv:2208.11035). 0: all alike."""
    storage: StorageSpec | None = None
    """File system that checkpoints and data lie on. Default: a file system that reads and writes 2 TB/s."""

    FOLLOWS = {  # noqa: RUF012
        "nvlink_domain_gpus": lambda of: of["node"].gpus_per_node if "node" in of else None,
        "inter_node_bandwidth_bytes_per_s": lambda of: of["node"].network_bytes_per_s if "node" in of else None,
    }

    @model_validator(mode="before")
    @classmethod
    def _read_node(cls, data: object) -> object:
        if not isinstance(data, dict) or "node" not in data:
            return data
        node = data["node"]
        return {**data, "node": node if isinstance(node, NodeSpec) else NodeSpec.read(node, "cluster.node")}

    def mistakes(self) -> Iterator[str]:
        """Yield what breaks a rule between the cluster and its nodes."""
        per_node, domain = self.node.gpus_per_node, self.nvlink_domain_gpus
        if domain % per_node:
            yield (
                f"nvlink_domain_gpus = {domain} must be a multiple of the node's {per_node} GPUs; "
                f"nearest: {max(1, round(domain / per_node)) * per_node}"
            )
        if not 0.0 <= self.fragmentation <= 1.0:
            yield f"fragmentation {self.fragmentation:g} is a share of a job's nodes; give a number from 0 to 1"

    @property
    def num_gpus(self) -> int:
        """GPUs in the whole cluster."""
        return self.num_nodes * self.node.gpus_per_node

    @property
    def gpu(self) -> GpuSpec:
        """The accelerator of every node."""
        return self.node.gpu
