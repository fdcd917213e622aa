"""What turns the counts of a model on a machine into seconds, whatever the plan."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from sim.costs.collectives import Fabric
from sim.costs.compute import ComputeModel
from sim.costs.host import Host
from sim.specs import GpuSpec, ParallelPlan, Profile, Scenario, StackSpec, TrainingSpec
from sim.units import show
from sim.work.adapters import adapters_of
from sim.work.pieces import Cut
from sim.work.recompute import recompute_word
from sim.work.routing import routing_of

_OTHER_NETWORK = 0.1
"""Bandwidths that differ by more are those of another network."""
_KEPT_MODELS, _KEPT_BYTES = 16, 4_000_000
_models: OrderedDict[tuple[int, ...], CostModel] = OrderedDict()


class CostModel:
    """Model, machine, training, software and profile of a scenario: all of it but the plan.

    compute, fabric, host : the GPU's, the network's and the host's rates.
    forward_setup_s : host time before each forward of a chunk while the GPU waits.
    known : what was priced, by what it depends on; plans that cut a layer alike share it.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.model, self.cluster, self.training = scenario.model, scenario.cluster, scenario.training
        self.stack, self.profile = scenario.stack, scenario.profile
        stack = scenario.stack
        graphs = stack.cuda_graphs == "full_iteration"
        host = scenario.profile.host
        in_graph = stack.graph_launch_s if host.graph_launch_s is None else host.graph_launch_s
        same = in_graph if graphs else host.kernel_launch_s
        slow = scenario.cluster.node.launch_slowdown * (1.0 if stack.bound_to_cpus else stack.unbound_slowdown)
        stated = stack.kernel_launch_s, stack.backward_launch_s, stack.collective_launch_s
        kernel, backward, collective = (slow * each if same is None else same for each in stated)
        self.forward_setup_s = 0.0 if graphs else stack.forward_setup_s
        self.compute = ComputeModel(
            scenario.cluster.gpu,
            _sustained(scenario.profile, scenario.cluster.gpu),
            scenario.training.precision,
            scenario.training.activation_bytes,
            kernel,
            backward,
            collective,
            in_graph,
            0.0 if graphs else slow,
            stack.elementwise_rate,
            stack.flash_version,
            stack.fp8_attention,
            scenario.training.high_precision_layers / scenario.model.num_layers,
        )
        self.fabric = Fabric.of(scenario.cluster, scenario.profile)
        self.host = Host.of(scenario.cluster.node, scenario.profile)
        self.known: OrderedDict[Any, Any] = OrderedDict()
        self._sizes: dict[Any, int] = {}
        self._kept_bytes = 0

    def remember(self, key: Any, value: Any) -> None:
        """Keep what was priced; the oldest goes where all takes more than four megabytes."""
        self.known[key] = value
        self._sizes[key] = _nbytes(key) + _nbytes(value)
        self._kept_bytes += self._sizes[key]
        while self._kept_bytes > _KEPT_BYTES:
            oldest, _ = self.known.popitem(last=False)
            self._kept_bytes -= self._sizes.pop(oldest)

    def noting(self) -> ComputeModel:
        """The compute model with notes of its own."""
        return replace(self.compute, notes=set())

    def stack_with(self, overlap_tp_backward: bool) -> StackSpec:
        """The stack with tensor-parallel collectives overlapped or not."""
        if self.stack.overlap_tp_backward == overlap_tp_backward:
            return self.stack
        return self.stack.replace(overlap_tp_backward=overlap_tp_backward)


def cost_model(scenario: Scenario) -> CostModel:
    """The cost model of a scenario: the same one for scenarios that share all records but the plan."""
    records = (scenario.model, scenario.cluster, scenario.training, scenario.stack, scenario.profile)
    key = tuple(map(id, records))  # a model that is kept keeps its records, so no other can have their place
    found = _models.get(key)
    if found is None:
        found = _models[key] = CostModel(scenario)
        if len(_models) > _KEPT_MODELS:
            _models.popitem(last=False)
    return found


def _nbytes(value: Any) -> int:
    """About what a value takes in memory: arrays, and records and tuples of them.  [bytes]"""
    if isinstance(value, np.ndarray):
        return 100 + int(value.nbytes)
    if isinstance(value, (tuple, list)):
        return 50 + sum(map(_nbytes, value))
    if is_dataclass(value):
        return 100 + sum(_nbytes(getattr(value, field.name)) for field in fields(value))
    return len(value) if isinstance(value, (bytes, str)) else 30


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
    """What of a cut the training decides."""
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
    name = f"profile {profile.name!r}"
    if source.not_measured:
        yield f"{name}: not measured on this GPU: {'; '.join(source.not_measured)}"
    if source.network_measured_on and scenario.plan.num_gpus > cluster.nvlink_domain_gpus:
        rate, here = source.network_bandwidth_bytes_per_s, cluster.inter_node_bandwidth_bytes_per_s
        other = rate is not None and abs(rate / here - 1.0) > _OTHER_NETWORK
        if other or scenario.plan.num_gpus > (source.network_gpus or 0):
            upto = f", up to {source.network_gpus:,} GPUs" if source.network_gpus else ""
            there, ours = (show(8 * each, "bit/s") for each in (rate or here, here))
            cards = f", {there} a GPU; here it is {ours}" if other else ""
            yield f"network as measured on {source.network_measured_on}{upto}{cards} ({name})"
    if profile.poor_fits:
        errors = ", ".join(f"{part} {error:.0%}" for part, error in profile.poor_fits.items())
        yield f"{name}: poor fits, by their median error on their own data: {errors}"
    length, reach = scenario.training.sequence_length, profile.attention.measured_length
    if scenario.stack.attention == "flash" and reach is not None and not reach[0] <= length <= reach[1]:
        yield (
            f"extrapolated: sequences of {length:,} tokens; attention of {name} was fitted on {reach[0]:,.0f} to "
            f"{reach[1]:,.0f}"
        )
    if profile.gpu not in (cluster.gpu.name, cluster.gpu.name.split("-")[0]):
        yield f"{name} was made for {profile.gpu} and is used for {cluster.gpu.name}"
