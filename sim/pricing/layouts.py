"""How plans are cut over GPUs, where their groups lie, and what they wait for the slowest GPU: columns look it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from statistics import NormalDist
from typing import Any

import numpy as np

from sim.arrays import Bools, Floats, Ints, Number
from sim.costs.block import Host
from sim.costs.collectives import Fabric
from sim.costs.compute import GRAPH_LAUNCH_S, ComputeModel
from sim.network.placement import (
    Degrees,
    Group,
    Hops,
    group_shape,
    hops_of,
    place_group,
    send_share,
    stack_groups,
)
from sim.specs import ClusterSpec, ModelSpec, Profile, Scenario, StackSpec, TrainingSpec
from sim.units import show
from sim.work.operations import adapters_of
from sim.work.pieces import Cut

_OTHER_NETWORK = 0.1
"""Bandwidths that differ by more are those of another network."""
UNBOUND_SLOWDOWN = 2.0
"""How many times as long the host takes where processes are not bound to the CPUs next to their GPU: Moonlight and
Nemotron 3 Nano run slower with tensor parallelism since NCCL 2.30 no longer leaves them bound (NVIDIA-NeMo/
Megatron-Bridge:docs/releases/known-issues.md, 26.06). Set on its card on recomputing modules of Moonlight, 0.457 s
without."""


@dataclass(frozen=True, eq=False)
class CostModel:
    """All of a scenario but the plan, and the rates of its GPU, network and host. It hashes by identity, for caches.

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


_COST_MODELS: dict[tuple[int, ...], CostModel] = {}
"""The last few cost models, by the identity of their records, some of which do not hash."""


def cost_model(scenario: Scenario) -> CostModel:
    """Return the cost model of a scenario: the same one for scenarios that share all records but the plan."""
    records = scenario.model, scenario.cluster, scenario.training, scenario.stack, scenario.profile
    key = tuple(map(id, records))
    found = _COST_MODELS.pop(key, None) or _cost_model(*records)
    _COST_MODELS[key] = found
    if len(_COST_MODELS) > 16:
        _COST_MODELS.pop(next(iter(_COST_MODELS)), None)
    return found


def _cost_model(
    model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec, stack: StackSpec, profile: Profile
) -> CostModel:
    graphs = stack.cuda_graphs == "full_iteration"
    in_graph = GRAPH_LAUNCH_S if profile.host.graph_launch_s is None else profile.host.graph_launch_s
    same = in_graph if graphs else profile.host.kernel_launch_s
    slow = cluster.node.launch_slowdown * (1.0 if stack.bound_to_cpus else UNBOUND_SLOWDOWN)
    stated = stack.kernel_launch_s, stack.backward_launch_s, stack.collective_launch_s
    kernel, backward, collective = (slow * each if same is None else same for each in stated)
    reached, gemm, clock = profile, profile.gemm, cluster.gpu.sustained_clock
    if clock != 1.0:  # multiplies go at the clock that the GPU keeps
        slower = {name: share * clock for name, share in gemm.precisions.items()}
        update = {"max_efficiency": gemm.max_efficiency * clock, "precisions": slower}
        reached = profile.model_copy(update={"gemm": gemm.model_copy(update=update)})
    compute = ComputeModel(
        cluster.gpu,
        reached,
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


def cut_of(scenario: Scenario) -> Cut:
    """How the scenario's plan cuts a layer."""
    plan = scenario.plan
    names = ("tp", "cp", "ep", "etp", "microbatch_size", "sequence_parallel")
    cut: dict[str, Any] = {name: getattr(plan, name) for name in names} | cut_by_training(scenario.training)
    return Cut(**cut, slices=plan.sequence_slices)


def cut_by_training(training: TrainingSpec) -> dict[str, Any]:
    """The fields of a `Cut` that the section `training` decides."""
    return {
        "sequence_length": training.sequence_length,
        "width": training.activation_bytes,
        "format": training.format,
        "adapters": adapters_of(training),
        "packed": training.packed_length,
        "routing": training,
    }


def assumed(scenario: Scenario) -> Iterator[str]:
    """What the profile did not measure, or measured elsewhere."""
    profile, source, cluster = scenario.profile, scenario.profile.provenance, scenario.cluster
    name = f"profile {profile.name}"
    if source.not_measured:
        yield f"{name} has values that were not measured on {profile.gpu}: {'; '.join(source.not_measured)}"
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


SPREAD_OVER = 64
"""GPUs of the median job of the series on which cluster.gpu_spread was fitted: it is over the speed of the slowest of
these."""


def expected_slowest(gpus: int) -> float:
    """Return how many standard deviations the slowest of so many GPUs is behind the mean.

    GPUs' speeds are taken to be normal; the expected maximum is Blom's approximation [1]_.

    .. [1] Blom 1958, "Statistical Estimates and Transformed Beta-Variables": Φ⁻¹((n − 3/8) / (n + 1/4)).
    """
    return NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def slowdown(gpus: Ints, spread: float, fitted_gpus: int) -> Floats:
    """Return the share by which passes take longer than a profile has it, since all wait for the slowest.

    Every layer waits for the slowest of a tensor-parallel group, every pipeline for its slowest rank, every step for
    the slowest replica: whatever the plan, the slowest GPU of the job sets its pace.

    gpus : GPUs of a job.
    spread : standard deviation of GPUs' speeds over that of the slowest of 64.
    fitted_gpus : GPUs of the jobs that the profile was set on: what these lose to slow GPUs is in its rates. Jobs of
        fewer are taken to be as fast: on A100 those of 8 are no faster than those of 64.
    """

    paces = [_pace(max(size, fitted_gpus), spread) for size in np.ravel(gpus).tolist()]
    return np.asarray(np.reshape(paces, np.shape(gpus)) / _pace(fitted_gpus, spread) - 1.0)


@lru_cache(maxsize=1024)
def _pace(gpus: int, spread: float) -> float:
    """How many times as long the slowest of so many GPUs is expected to take as the slowest of SPREAD_OVER."""
    return 1.0 + spread * (expected_slowest(gpus) - expected_slowest(SPREAD_OVER))


LAYOUT = ("tp", "cp", "pp", "dp", "ep")
"""What a layout's numbers are, in this order."""
LAYER_DEGREES = ("tp", "cp", "ep", "etp")
"""Degrees that a layer is cut by."""


@dataclass(frozen=True, eq=False)
class Layouts:
    """How plans of one model are cut over a machine's GPUs, and where their groups lie; arrays over layouts.

    They hash by identity, so that what they take can be cached.

    gpus : that a plan has.
    tensor, context, experts : groups over which a layer is cut.
    data, shards : groups that sum gradients of everything but experts, and within which ZeRO shards it.
    expert_data, expert_shards : the same of experts.
    between : groups that hold the same shard; None where all shard together.
    send_share : share of a card's rate that the switches leave where all pipeline ranks send at once.
    hops : which sends of their pipelines leave an NVLink domain.
    """

    costs: CostModel
    gpus: Ints
    tp: Ints
    cp: Ints
    pp: Ints
    ep: Ints
    etp: Ints
    tensor: Group
    context: Group
    experts: Group
    data: Group
    expert_data: Group
    shards: Group
    expert_shards: Group
    between: Group | None
    send_share: Floats
    hops: tuple[Hops, ...]

    def __len__(self) -> int:
        return len(self.tp)

    @cached_property
    def cuts(self) -> Floats:
        """All numbers that say how a layer is cut, and how fast its groups and sends are; (numbers, layouts)."""
        lies = [*self.tensor.numbers, *self.context.numbers, *self.experts.numbers]
        degrees = [getattr(self, name) for name in LAYER_DEGREES]
        return np.array([*degrees, self.send_share, *lies], dtype=float)

    @cached_property
    def holds(self) -> tuple[CostModel, bytes, bytes, bytes]:
        """All that decides which parameters a GPU holds of a part of the model."""
        return self.costs, self.tp.tobytes(), self.ep.tobytes(), self.etp.tobytes()

    @cached_property
    def slowdown(self) -> Floats:
        """Share by which passes take longer since all GPUs wait for the slowest."""
        return slowdown(self.gpus, self.costs.cluster.gpu_spread, self.costs.profile.fitted_gpus)

    def take(self, places: Ints) -> Layouts:
        """Return some of the layouts."""
        parts: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "costs"}
        parts["hops"] = tuple(self.hops[place] for place in places.tolist())
        for name, part in parts.items():
            if name != "hops" and part is not None:
                parts[name] = part.take(places)
        return replace(self, **parts)

    def shard_of(self, params: Floats, layout: Any = slice(None)) -> Number:
        """Return what a GPU's shard has of the parameters (everything but experts, experts) that a GPU holds.

        layout : the layouts of the parameters, where these are not over all layouts.
        """
        others, experts = params
        return others / np.asarray(self.shards.size)[layout] + experts / np.asarray(self.expert_shards.size)[layout]

    def of_copies(self, copies: int) -> Layouts:
        """Return layouts whose groups sum gradients over several copies of the model, without sharding over these."""
        if copies == 1:
            return self

        def over(group: Group) -> Group:
            return replace(group, size=group.size * copies, spans=group.num_domains * copies)

        data, experts = over(self.data), over(self.expert_data)
        if self.between is not None:
            return replace(self, data=data, expert_data=experts, between=over(self.between))
        return replace(self, data=data, expert_data=experts, shards=data, expert_shards=experts)

    @cached_property
    def kinds_of_hops(self) -> tuple[tuple[Hops, ...], Ints]:
        """The hops of the layouts without repetitions, and which of them each layout has."""
        kinds = {each: number for number, each in enumerate(dict.fromkeys(self.hops))}
        return tuple(kinds), np.array([kinds[each] for each in self.hops])

    def leaves(self, layout: Ints, sender: Ints, receiver: Ints) -> Bools:
        """Whether sends between ranks of plans with these layouts leave an NVLink domain."""
        kinds, of_layout = self.kinds_of_hops
        found = np.zeros(np.shape(sender), dtype=bool)
        for number, hops in enumerate(kinds):
            here = of_layout[layout] == number
            found[here] = hops.cross(sender[here], receiver[here])
        return found

    @cached_property
    def all_hops_leave(self) -> Bools:
        """Whether every send between ranks of their pipelines leaves its NVLink domain."""
        return np.array([each.all_leave for each in self.hops])


def place_layouts(
    scenario: Scenario, degrees: Sequence[Sequence[int]] | Ints, progress: Callable[[], object] | None = None
) -> Layouts:
    """Place layouts (tp, cp, pp, dp, ep) on the cluster, all with the `sharding_group` and placement of the plan.

    Their experts are whole, or cut over the tensor-parallel group as the plan's are.

    progress : called before each group is placed, which takes long where switches are shared by very many GPUs.
    """
    plan = scenario.plan
    how = plan.etp > 1, plan.sharding_group, plan.placement
    return _place(cost_model(scenario), np.asarray(degrees, dtype=np.int64), *how, progress)


@lru_cache(maxsize=1024)
def layout_of(costs: CostModel, degrees: tuple[int, ...], cut: bool, group_size: int | None, placement: str) -> Layouts:
    """Return the layout of one plan: the same one for plans that are cut alike."""
    return _place(costs, np.array([degrees]), cut, group_size, placement)


def _place(
    costs: CostModel,
    degrees: Ints,
    cut: bool,
    group_size: int | None,
    placement: str,
    progress: Callable[[], object] | None = None,
) -> Layouts:
    tp, cp, pp, dp, ep = np.ascontiguousarray(degrees.T)
    etp, cluster = tp if cut else np.ones_like(tp), costs.cluster
    plans = [Degrees._make([*each, placement]) for each in np.column_stack([degrees, etp]).tolist()]

    def told(shape: Callable[[Degrees], tuple[int, int]], place: Callable[[Degrees], Any]) -> list[Any]:
        """What is found for every plan; groups of a shape follow each other, the fewest GPUs first."""
        found: list[Any] = [None] * len(plans)
        for number in sorted(range(len(plans)), key=lambda each: (shape(plans[each]), plans[each].num_gpus)):
            if progress is not None:
                progress()
            found[number] = place(plans[number])
        return found

    def placed(kind: str, size: int | None = None) -> Group:
        shape = partial(group_shape, kind, sharding_group=size)
        return stack_groups(told(shape, partial(place_group, kind, cluster=cluster, sharding_group=size)))

    layers, replicas = (placed("tp"), placed("cp"), placed("ep")), (placed("shards"), placed("expert_shards"))
    sharding, between = replicas, None
    if group_size is not None:
        sharding = placed("shards", group_size), placed("expert_shards", group_size)
        between = placed("between", group_size)
    share = np.array(told(lambda plan: (plan.num_gpus // plan.pp, plan.pp), partial(send_share, cluster=cluster)))
    hops = tuple(hops_of(plan, cluster) for plan in plans)
    return Layouts(costs, tp * cp * pp * dp, tp, cp, pp, ep, etp, *layers, *replicas, *sharding, between, share, hops)


def switch_shares(layouts: Layouts) -> str:
    """Which kinds of groups switches slow, and what they leave them; empty where none."""
    shares = {
        "pipeline sends": layouts.send_share,
        "tensor-parallel": layouts.tensor.card_share,
        "context-parallel": layouts.context.card_share,
        "expert-parallel": layouts.experts.card_share,
        "replicas": layouts.data.card_share,
    }
    if np.max(layouts.ep) > 1:
        shares["replicas of experts"] = layouts.expert_data.card_share
    return ", ".join(f"{name} {np.min(share):.0%}" for name, share in shares.items() if np.min(share) < 1)


def assumed_of_speeds(scenario: Scenario) -> Iterator[str]:
    """What a job of more GPUs than those of the fits waits for."""
    gpus, spread, fitted = scenario.plan.num_gpus, scenario.cluster.gpu_spread, scenario.profile.fitted_gpus
    more = float(slowdown(np.array(gpus), spread, fitted))
    if more:
        those = "a single GPU" if fitted == 1 else f"the slowest of {fitted} GPUs"
        yield (
            f"a step waits for its slowest GPU, as their speeds have a standard deviation of {spread:.1%} "
            f"(cluster.gpu_spread). Profile {scenario.profile.name!r} has the rates of {those}, and the slowest of "
            f"{gpus:,} is taken to be {more:.1%} slower"
        )
