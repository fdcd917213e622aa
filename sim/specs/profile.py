"""A calibrated profile: what a GPU and its links really reach, with where every value came from.

The functions that use these parameters are in `sim.costs`, those that fit them in `flopcast_calibration.fit`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from sim.arrays import Number
from sim.specs.base import Spec, flat
from sim.specs.hardware import Precision

MemoryKernel = Literal["copy", "add", "norm", "softmax", "activation", "dropout", "adam", "permute", "strided"]
"""Sorts of memory-bound kernels that are told apart where they were measured. strided: of operands that lie apart, are
broadcast or differ in precision, which PyTorch reads number by number."""

FlashVersion = Literal["1", "2", "3", "4", "cudnn", "efficient", "flex"]
"""Fused attention kernels."""

POOR_FIT = 0.15
"""Median relative error above which a fit is called poor."""


class AlignmentRate(Spec):
    """A bound on the rate of multiplies whose leading dimensions let a thread load few bytes at once."""

    nbytes: PositiveInt
    """The bound holds where no more bytes than this divide the leading dimension. [bytes]"""
    along: Literal["inner", "outer"]
    """inner: k is the leading dimension of an operand; outer: m or n is that of an operand or of the result."""
    rate: float = Field(gt=0, le=1)
    """Rate of the tiles over that of aligned ones, at most."""
    batched: bool | None = None
    """Whether it bounds multiplies of which one kernel runs several, or single ones. Default: both."""
    below_k: PositiveInt | None = None
    """Only of multiplies with a smaller k, for which libraries take kernels that are slower yet."""


class GemmParams(Spec):
    """Matrix multiply: a roofline with tiles, waves and a launch floor (`sim.costs.compute.gemm_time`)."""

    max_efficiency: float = Field(gt=0, le=1)
    """Share of peak that a full wave of the largest tile reaches when k is long."""
    k_overhead: NonNegativeFloat
    """Prologue and epilogue of a tile, as that many extra steps of k."""
    tile_exponent: NonNegativeFloat
    """A tile of area A runs at (A / largest)^exponent of the largest tile's rate."""
    wave_quantisation: float = Field(ge=0, le=1)
    """1: a last partial wave costs a whole one; 0: it costs its share."""
    kernel_floor_s: NonNegativeFloat
    """Shortest time of any kernel on the GPU. [s]"""
    alignment: dict[str, AlignmentRate] = Field(default_factory=dict)
    """Bounds by any name; of those that hold for a multiply the lowest counts. Default: alignment does not matter."""
    measured_flop: tuple[PositiveFloat, PositiveFloat] | None = None
    """Smallest and largest multiply measured; outside it the answer says 'extrapolated'. [FLOP]"""
    precisions: dict[Precision, Annotated[float, Field(gt=0, le=1)]] = Field(default_factory=dict)
    """max_efficiency of precisions that were measured on their own; the others reach the same share of their peak."""

    def of(self, precision: str) -> GemmParams:
        """The values for multiplies of one precision."""
        for name, share in self.precisions.items():
            if name == precision:
                return self.model_copy(update={"max_efficiency": share})
        return self


class ClockParams(Spec):
    """The clock that a board's power limit leaves for matrix multiplies (`sim.costs.compute.clock_gain`).

    Powers are shares of the limit of the board that was measured.
    """

    idle_power: float = Field(ge=0, lt=1)
    """What the board draws whatever its clock."""
    others_power: float = Field(gt=0, lt=1)
    """What it draws in kernels that do not multiply."""
    exponent: float = Field(gt=1)
    """How the rest of the power grows with the clock in multiplies: frequency and the voltage that it needs."""
    most: float = Field(ge=1)
    """Highest clock over the one at which multiplies alone reach the limit."""
    multiplying: float = Field(default=1.0, gt=0, le=1)
    """Share of the time that multiplies took where the profile's `gemm.max_efficiency` was found. Default: all of it,
    as in benchmarks of multiplies."""
    max_power_w: PositiveFloat | None = None
    """Power limit of the board that was measured. Multiplies of a GPU with less power go at a lower clock. Default: the
    GPU's. [W]"""
    peak_flop_per_s: PositiveFloat | None = None
    """16-bit peak of the board that was measured, at which it drew that. Default: the GPU's. [FLOP/s]"""


class AttentionParams(Spec):
    """Fused attention (flash): share of peak on the FLOPs it executes."""

    forward_efficiency: float = Field(gt=0, le=1)
    """Share of peak that the forward reaches on long sequences."""
    backward_efficiency: float = Field(gt=0, le=1)
    """Share of peak that the backward reaches on long sequences."""
    half_length: NonNegativeFloat = 0.0
    """Sequence length at which half of that efficiency is reached."""
    half_columns: NonNegativeFloat = 0.0
    """Columns of a head at which multiplies take as long as what does not depend on them, the exponentials: heads of
    fewer than 128 reach less than the efficiencies above, which are those of 128. 0: all reach the same."""
    state_speed: PositiveFloat = 1.0
    """Share of peak that the kernels of layers that carry a state (Mamba-2, delta rules) reach, relative to what they
    reach on an H100."""
    measured_length: tuple[PositiveFloat, PositiveFloat] | None = None
    """Shortest and longest sequence measured; outside it the answer says 'extrapolated'. [tokens]"""
    versions: dict[FlashVersion, PositiveFloat] = Field(default_factory=dict)
    """Speed of other kernels relative to the one these values describe."""

    def speed(self, version: str) -> float:
        """Relative speed of a kernel. Where it is not told apart FlashAttention 4 and cuDNN's are as fast as 3,
        FlexAttention is as fast as 2, and any other is the one these values describe."""
        named: dict[str, float] = {str(name): speed for name, speed in self.versions.items()}
        return named.get(version, named.get({"4": "3", "cudnn": "3", "flex": "2"}.get(version, ""), 1.0))


class MemoryParams(Spec):
    """Memory-bound kernels: bytes over a share of the peak bandwidth, plus the kernel floor."""

    efficiency: float = Field(gt=0, le=1)
    """Share of the peak bandwidth that large kernels reach."""
    operations: dict[MemoryKernel, PositiveFloat] = Field(default_factory=dict)
    """The share of kernels that were measured one by one; above 1 where their data stay in a cache."""

    def share(self, kernel: str) -> float:
        """Share of the peak bandwidth that kernels of this sort reach."""
        return next((share for name, share in self.operations.items() if name == kernel), self.efficiency)


class OperationParams(Spec):
    """A collective over one kind of link: latency, and bus bandwidth that saturates with message size.

    time = latency + V / (efficiency · bandwidth) · (1 + (half_volume / V)^exponent), V the bytes each rank moves.
    """

    efficiency: float = Field(gt=0, le=1)
    """Largest bus bandwidth as a share of the link's, of one group with the link to itself."""
    base_latency_s: NonNegativeFloat
    """Fixed part of a collective's latency. Hops come on top. An all-reduce over N domains of g GPUs makes, as a ring,
    2 (N − 1) hops of the network and 2 N (g − 1) of NVLink; as a tree, 2 ⌈log₂ N⌉ and 2 (g − 1); and where NVLink's
    switches add, 2 ⌈log₂ N⌉ and 2. Gathers and scatters make half of a ring's. The hierarchical way takes
    the base of NVLink twice and that of the network once, with their hops. [s]"""
    hop_latency_s: NonNegativeFloat
    """Latency of one hop over this link: a step of a ring, or a level of a tree, that crosses it. An operation that
    `operations` lists has its own. [s]"""
    half_volume_bytes: NonNegativeFloat
    """Bytes moved per rank at which half of the bandwidth is reached. [bytes]"""
    exponent: float = Field(default=1.0, gt=0, le=1)
    """How sharply bandwidth saturates; above 1 a smaller message would take longer than a larger one."""
    shared_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Efficiency when many groups use the network at once, each with its own rings: their flows meet on links that a
    single job-wide ring would share out evenly. More than `efficiency` counts as `efficiency`: groups that share are
    never faster than one in a benchmark. Default: `efficiency`; under `operations`, the link's `shared_efficiency`."""
    job_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Efficiency in training of a group that is the whole job. No other group uses the network then. Still, some
    machines give it no more than groups that share, or less, whatever a benchmark of one group reaches. More than
    `efficiency` counts as `efficiency`. Default: `efficiency`; under `operations`, the link's `job_efficiency`."""

    def scaled(self, factor: float) -> Self:
        """Return the values on a fabric where everything reaches `factor` times as much, at most all of it."""
        names = ("efficiency", "shared_efficiency", "job_efficiency", "dispatch_efficiency", "p2p_efficiency")
        shares = {name: share for name in names if (share := getattr(self, name, None)) is not None}
        return self.model_copy(update={name: min(1.0, factor * share) for name, share in shares.items()})


class LinkParams(OperationParams):
    """All-reduces over one kind of link, what differs for other collectives, sends, and how much of both is hidden.

    The time of a collective is latency + V / (efficiency · bandwidth) · (1 + (half_volume / V)^exponent).
    """

    dispatch_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of the link's bandwidth that token dispatchers (DeepEP, HybridEP) reach, even while others use the network:
    each GPU sends only to the GPU of the same index in other nodes, so traffic stays on one rail. Default: as
    all-to-alls."""
    two_domain_trees: bool = True
    """Whether all-reduces between two NVLink domains may go through trees, which cross half as often as rings: NCCL's
    tuner takes them on some networks (AWS EFA) and not on others (Azure's InfiniBand)."""
    in_switch_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of the link's bandwidth at which its switches add what all-reduces send (NVLS). Default: they add
    nothing."""
    p2p_efficiency: float = Field(gt=0, le=1)
    """Point-to-point bandwidth as a share of the link's."""
    hidden_share: float = Field(gt=0, le=1)
    """Share of a collective's time that does not lengthen the step when it overlaps with compute. NCCL's kernels take
    SMs and memory bandwidth from concurrent kernels, the more the faster the link."""
    hidden_at_bytes_per_s: PositiveFloat | None = None
    """Bandwidth, per GPU and direction, of the link that `hidden_share` was found on; slower traffic takes less of the
    memory's bandwidth each second. Default: that share holds at any. [bytes/s]"""
    held_part: float = Field(default=0.0, ge=0, le=1)
    """Part of a collective's exposed share that does not depend on the rate: its kernels keep their SMs until the last
    byte."""
    operations: dict[Literal["all_gather", "reduce_scatter", "all_to_all"], OperationParams] = Field(
        default_factory=dict
    )
    """Collectives that were measured on their own; the others take the all-reduce's values. In training, one that
    states no `shared_efficiency` or `job_efficiency` of its own reaches the link's, or its `efficiency` if that is
    less."""

    def in_training(self, shared: Number = True) -> Number:
        """Efficiency of groups that share the link, and of those that do not; at most that of a benchmark."""
        alone = self.efficiency if self.job_efficiency is None else self.job_efficiency
        beside = self.efficiency if self.shared_efficiency is None else self.shared_efficiency
        return np.minimum(np.where(shared, beside, alone), self.efficiency)

    def scaled(self, factor: float) -> Self:
        """Return the link, and its single collectives, on a fabric where everything reaches `factor` times as much."""
        operations = {name: each.scaled(factor) for name, each in self.operations.items()}
        return super().scaled(factor).model_copy(update={"operations": operations})

    def of(self, operation: str) -> LinkParams:
        """The link's values for one collective."""
        for name, params in self.operations.items():
            if name == operation:
                own = {field: getattr(params, field) for field in OperationParams.model_fields}
                own["shared_efficiency"] = params.shared_efficiency or self.shared_efficiency
                own["job_efficiency"] = params.job_efficiency or self.job_efficiency
                return self.model_copy(update=own)
        return self


class HostParams(Spec):
    """What the host adds, where it was measured."""

    kernel_launch_s: NonNegativeFloat | None = None
    """Host time a kernel on this machine: Python, autograd and driver. Default: the stack's. [s]"""
    graph_launch_s: NonNegativeFloat | None = None
    """Time between kernels that a CUDA graph launches. Default: 2 us, the floor of kernel times. [s]"""
    to_device_bytes_per_s: PositiveFloat | None = None
    """Copies from pinned host memory to the device. [bytes/s]"""
    to_host_bytes_per_s: PositiveFloat | None = None
    """Copies from the device to pinned host memory. [bytes/s]"""
    copy_latency_s: NonNegativeFloat | None = None
    """Shortest time of a copy between host and device. [s]"""


class MeasuredRun(Spec):
    """A training run of one's own that a profile's values were drawn to: what it tells of others."""

    name: str
    """Its model and precision."""
    shares: dict[str, float]
    """What its step was made of, as shares of the step by part (`sim.uncertainty.PARTS`)."""
    facts: tuple[str, ...] = ()
    """What made it better or worse known (`sim.uncertainty.FACTS`)."""
    place: dict[str, float] = Field(default_factory=dict)
    """What tells how much other scenarios resemble it (`sim.specs.values.place_of`)."""
    pulls: dict[str, float] = Field(default_factory=dict)
    """Logarithms by which it moves values of scenarios that are like it, by path."""
    log_error: float = 0.0
    """Logarithm of its measured over its predicted time, before the values moved: the further off it was, the less sure
    it makes answers."""


class Provenance(Spec):
    """Where a profile's values come from."""

    method: str
    """How the values were obtained."""
    fitted_on: tuple[str, ...] = ()
    """Data the fitted values were fitted on."""
    not_measured: tuple[str, ...] = ()
    """Values that are taken from documents, other hardware or judgement rather than from measurements of this one."""
    date: str = ""
    """When they were measured or fitted: year and month."""
    fitted_families: tuple[str, ...] = ()
    """Families of training runs (lineage, or lineage / model) that set a value; validation marks their runs."""
    of_datasheet: bool = False
    """Nothing was measured on this GPU: what others have in common was taken with its peaks and bandwidths."""
    measured: tuple[MeasuredRun, ...] = ()
    """Training runs of one's own that the values were drawn to."""
    moved: dict[str, tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat]] = Field(default_factory=dict)
    """Values that moved, by path: before and after, and the least and the most that they may be. A scenario takes of
    each run's pull what it has in common with the run."""
    measured_stack: str = ""
    """The stack that they ran on: with another the values are another's."""
    network_measured_on: str = ""
    """The machine between whose NVLink domains the network's values were measured. Default: they were not."""
    network_bandwidth_bytes_per_s: PositiveFloat | None = None
    """Bandwidth of that network, per GPU and direction. [bytes/s]"""
    network_gpus: PositiveInt | None = None
    """The most GPUs that talked to each other over it."""
    raw_data: str = ""
    """File with the measurements, beside the profile's own."""


class Profile(Spec):
    """Everything calibrated about one GPU and its links."""

    name: str
    """What answers call it."""
    gpu: str
    """The GPU family it was made for; using it on another is refused."""
    gemm: GemmParams
    """Matrix multiplies."""
    clock: ClockParams | None = None
    """How the clock depends on what share of the time is spent multiplying. Default: not at all."""
    attention: AttentionParams
    """Fused attention."""
    memory: MemoryParams
    """Kernels that are bound by memory: norms, softmax, activations, the optimizer."""
    nvlink: LinkParams
    """Collectives and sends over NVLink."""
    network: LinkParams
    """Collectives and sends that leave the NVLink domain."""
    host: HostParams = HostParams()
    """The host's own times. Default: what the stack says."""
    fitted_gpus: PositiveInt = 64
    """GPUs of the jobs that its rates were set on, which lose to the slowest of them what is in the rates. Default: the
    median of the 740 published runs of families that set a value; 1 where one GPU was measured alone."""
    residuals: dict[str, float] = Field(default_factory=dict)
    """Median absolute relative error of each fit on its own data."""
    unseen: dict[str, float] = Field(default_factory=dict)
    """Median absolute relative error on data the fit has not seen: each half of the measurements predicted by a fit to
    the other half."""
    provenance: Provenance
    """Where the values come from."""

    @property
    def poor_fits(self) -> dict[str, float]:
        """The fits whose own data they miss by too much; every estimate says so."""
        return {part: error for part, error in self.residuals.items() if error > POOR_FIT}

    def values(self) -> list[tuple[str, str, Any]]:
        """(name, part, value) of everything calibrated; values of single collectives or kernels have dotted names."""
        parts = ("gemm", "attention", "memory", "nvlink", "network", "host")
        data = {part: flat(getattr(self, part).model_dump(mode="json", exclude_none=True)) for part in parts}
        return [(name, part, value) for part, values in data.items() for name, value in values.items()]

    def to_frame(self) -> Any:
        """Everything calibrated as a pandas table: part, name, value in SI units."""
        import pandas as pd

        rows = [(part, name, value) for name, part, value in self.values()]
        return pd.DataFrame(rows, columns=["part", "name", "value"])
