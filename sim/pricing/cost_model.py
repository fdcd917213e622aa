"""What turns the counts of a model on a machine into seconds, whatever the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sim.costs.collectives import Fabric
from sim.costs.compute import GRAPH_LAUNCH_S, ComputeModel
from sim.costs.host import Host
from sim.specs import ClusterSpec, GpuSpec, ModelSpec, ParallelPlan, Profile, Scenario, StackSpec, TrainingSpec
from sim.units import show
from sim.work.adapters import adapters_of
from sim.work.pieces import Cut
from sim.work.recompute import recompute_word
from sim.work.routing import routing_of

_OTHER_NETWORK = 0.1
"""Bandwidths that differ by more are those of another network."""
UNBOUND_SLOWDOWN = 2.0
"""How many times as long the host takes where processes are not bound to the CPUs next to their GPU: Moonlight and
Nemotron 3 Nano run slower with tensor parallelism since NCCL 2.30 no longer leaves them bound (NVIDIA-NeMo/
Megatron-Bridge:docs/releases/known-issues.md, 26.06). Set on its card on recomputing modules of Moonlight, 0.457 s
without."""


@dataclass(frozen=True, eq=False)
class CostModel:
    """Model, machine, training, software and profile of a scenario, and their rates: all of it but the plan.

    It hashes by identity, and `cost_model` gives scenarios with the same records the same one, so that what was priced
    with it can be cached.

    compute, fabric, host : rates of the GPU, of the network and of the host.
    forward_setup_s : host time before each forward of a chunk while the GPU waits.
    """

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    stack: StackSpec
    profile: Profile
    compute: ComputeModel
    fabric: Fabric
    host: Host
    forward_setup_s: float

    def noting(self) -> ComputeModel:
        """Return the compute model with notes of its own."""
        return replace(self.compute, notes=set())

    def stack_with(self, overlap_tp_backward: bool) -> StackSpec:
        """Return the stack with tensor-parallel collectives overlapped or not."""
        if self.stack.overlap_tp_backward == overlap_tp_backward:
            return self.stack
        return self.stack.replace(overlap_tp_backward=overlap_tp_backward)


class _Records(tuple[Any, ...]):
    """Records that equal others only if they are the very same objects, since some of them do not hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and all(one is two for one, two in zip(self, other, strict=True))


def cost_model(scenario: Scenario) -> CostModel:
    """Return the cost model of a scenario: the same one for scenarios that share all records but the plan."""
    return _cost_model(
        _Records((scenario.model, scenario.cluster, scenario.training, scenario.stack, scenario.profile))
    )


@lru_cache(maxsize=16)
def _cost_model(records: _Records) -> CostModel:
    model, cluster, training, stack, profile = records
    graphs = stack.cuda_graphs == "full_iteration"
    in_graph = GRAPH_LAUNCH_S if profile.host.graph_launch_s is None else profile.host.graph_launch_s
    same = in_graph if graphs else profile.host.kernel_launch_s
    slow = cluster.node.launch_slowdown * (1.0 if stack.bound_to_cpus else UNBOUND_SLOWDOWN)
    stated = stack.kernel_launch_s, stack.backward_launch_s, stack.collective_launch_s
    kernel, backward, collective = (slow * each if same is None else same for each in stated)
    compute = ComputeModel(
        cluster.gpu,
        _sustained(profile, cluster.gpu),
        training.precision,
        training.activation_bytes,
        kernel,
        backward,
        collective,
        in_graph,
        0.0 if graphs else slow,
        stack.elementwise_rate,
        stack.flash_version,
        stack.fp8_attention,
        training.high_precision_layers / model.num_layers,
    )
    fabric, host = Fabric.of(cluster, profile, nvls=stack.nvls), Host.of(cluster.node, profile)
    setup_s = 0.0 if graphs else stack.forward_setup_s
    return CostModel(model, cluster, training, stack, profile, compute, fabric, host, setup_s)


def _sustained(profile: Profile, gpu: GpuSpec) -> Profile:
    """The profile with multiplies at the clock that the GPU keeps."""
    if gpu.sustained_clock == 1.0:
        return profile
    gemm = profile.gemm
    slower = gemm.model_copy(
        update={
            "max_efficiency": gemm.max_efficiency * gpu.sustained_clock,
            "precisions": {name: share * gpu.sustained_clock for name, share in gemm.precisions.items()},
        }
    )
    return profile.model_copy(update={"gemm": slower})


def cut_of(scenario: Scenario) -> Cut:
    """How the scenario's plan cuts a layer."""
    plan: ParallelPlan = scenario.plan
    training = scenario.training
    return Cut(
        tp=plan.tp,
        microbatch_size=plan.microbatch_size,
        sequence_parallel=plan.sequence_parallel,
        recompute=recompute_word(plan, scenario.model),
        cp=plan.cp,
        slices=plan.sequence_slices,
        ep=plan.ep,
        etp=plan.etp,
        **cut_by_training(training),
    )


def cut_by_training(training: TrainingSpec) -> dict[str, Any]:
    """The fields of a `Cut` that the section `training` decides."""
    return {
        "sequence_length": training.sequence_length,
        "width": training.activation_bytes,
        "format": training.format,
        "adapters": adapters_of(training),
        "packed": training.packed_length,
        "routing": routing_of(training),
    }


def assumed(scenario: Scenario) -> Iterator[str]:
    """What the profile did not measure, or measured elsewhere."""
    profile, source, cluster = scenario.profile, scenario.profile.provenance, scenario.cluster
    name = f"profile {profile.name}"
    if source.not_measured:
        yield f"{name} was not measured for: {'; '.join(source.not_measured)}"
    if source.network_measured_on and scenario.plan.num_gpus > cluster.nvlink_domain_gpus:
        rate, here = source.network_bandwidth_bytes_per_s, cluster.inter_node_bandwidth_bytes_per_s
        other = rate is not None and abs(rate / here - 1.0) > _OTHER_NETWORK
        if other or scenario.plan.num_gpus > (source.network_gpus or 0):
            upto = f", up to {source.network_gpus:,} GPUs" if source.network_gpus else ""
            there, ours = (show(8 * each, "bit/s") for each in (rate or here, here))
            cards = f", with {there} per GPU; this cluster has {ours}" if other else ""
            yield f"{name} measured its network on {source.network_measured_on}{upto}{cards}"
    if profile.poor_fits:
        errors = ", ".join(f"{part} {error:.0%}" for part, error in profile.poor_fits.items())
        yield f"{name} fits its own data poorly: {errors} median error"
    length, reach = scenario.training.sequence_length, profile.attention.measured_length
    if scenario.stack.attention == "flash" and reach is not None and not reach[0] <= length <= reach[1]:
        yield (
            f"extrapolated: attention over {length:,} tokens; {name} was fitted on {reach[0]:,.0f} to {reach[1]:,.0f}"
        )
    if profile.gpu not in (cluster.gpu.name, cluster.gpu.name.split("-")[0]):
        yield f"{name} was made for {profile.gpu} and is used for {cluster.gpu.name}"
