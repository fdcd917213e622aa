"""What an answer assumes: everything that was not given, not measured or not modelled."""

from __future__ import annotations

import numpy as np

from sim.contention import contention_note
from sim.costs.host import COPY_SHARE, Host
from sim.pricing.batch import batch_of
from sim.specs import ModelSpec, Scenario
from sim.specs.plan import DEFAULT_RECOMPUTE_MODULES, MEGATRON_ORDER
from sim.units import show
from sim.work.routing import busiest_share, dropped_share, routing_of

OTHER_NETWORK = 0.1
"""Bandwidths that differ by more are those of another network."""


def _copy_rate(scenario: Scenario) -> str:
    """How fast a GPU and its host copy, and whether that was measured."""
    host = Host.of(scenario.cluster.node, scenario.profile)
    rates = sorted({show(rate, "B/s") for rate in (host.to_host_bytes_per_s, host.to_device_bytes_per_s) if rate})
    measured = scenario.profile.host.to_host_bytes_per_s and scenario.profile.host.to_device_bytes_per_s
    return " and ".join(rates) + ("" if measured else f" ({COPY_SHARE:.0%} of the host link)")


def unshared(scenario: Scenario, engine: str) -> tuple[str, ...]:
    """That ranks which really share cores were given one each, where that is so."""
    node, ranks = scenario.cluster.node, scenario.plan.num_gpus
    if node.cores is None or engine == "shared" or ranks <= node.cores:
        return ()
    return (
        f"engine {engine} gives each of {ranks} ranks a core of its own, but node {node.name!r} has {node.cores:g}; "
        "engine shared shares them",
    )


def _measured_elsewhere(scenario: Scenario) -> list[str]:
    """Where the network's values were measured, if it was on another network or on fewer GPUs."""
    source, cluster = scenario.profile.provenance, scenario.cluster
    rate, there = source.network_bandwidth_bytes_per_s, cluster.inter_node_bandwidth_bytes_per_s
    if not source.network_measured_on or scenario.plan.num_gpus <= cluster.nvlink_domain_gpus:
        return []
    more = scenario.plan.num_gpus > (source.network_gpus or 0)
    other = rate is not None and abs(rate / there - 1.0) > OTHER_NETWORK
    if not more and not other:
        return []
    upto = f", up to {source.network_gpus:,} GPUs" if source.network_gpus else ""
    cards = f", {show(8 * (rate or there), 'bit/s')} a GPU; here it is {show(8 * there, 'bit/s')}" if other else ""
    return [f"network as measured on {source.network_measured_on}{upto}{cards} (profile {scenario.profile.name!r})"]


def stated_assumptions(
    scenario: Scenario, notes: frozenset[str], visits: float, *, contention: bool = False
) -> tuple[str, ...]:
    """Everything the reader should know was not given or not measured.

    Parameters
    ----------
    notes : set of str
        What pricing had to extrapolate.
    visits : float
        How often in a step the schedule turns to a stage.
    contention : bool
        Links are shared.
    """
    stack, profile = scenario.stack, scenario.profile
    stated = [
        *scenario.assumed,
        f"memory includes an allowance of {show(stack.framework_memory_bytes, 'B')} for CUDA, libraries and NCCL and "
        f"{stack.fragmentation:.0%} fragmentation of activations (stack {stack.name!r})",
        *sorted(notes),
    ]
    if profile.provenance.not_measured:
        stated.append(
            f"profile {profile.name!r}: not measured on this GPU: {'; '.join(profile.provenance.not_measured)}"
        )
    stated += _measured_elsewhere(scenario)
    if profile.poor_fits:
        errors = ", ".join(f"{part} {error:.0%}" for part, error in profile.poor_fits.items())
        stated.append(f"profile {profile.name!r}: poor fits, by their median error on their own data: {errors}")
    length, reach = scenario.training.sequence_length, profile.attention.measured_length
    if stack.attention == "flash" and reach is not None and not reach[0] <= length <= reach[1]:
        stated.append(
            f"extrapolated: sequences of {length:,} tokens; attention of profile {profile.name!r} was fitted on "
            f"{reach[0]:,.0f} to {reach[1]:,.0f}"
        )
    if profile.gpu != scenario.cluster.gpu.name and profile.gpu != scenario.cluster.gpu.name.split("-")[0]:
        stated.append(
            f"profile {profile.name!r} was made for {profile.gpu} and is used for {scenario.cluster.gpu.name}"
        )
    if scenario.plan.recompute_modules == DEFAULT_RECOMPUTE_MODULES and stack.attention == "flash":
        stated.append(
            "recompute: selective saves next to nothing here: flash attention keeps no scores; use none or full"
        )
    plan, model, training = scenario.plan, scenario.model, scenario.training
    if plan.recompute_method == "block" and model.num_layers % plan.num_stages:
        stated.append(
            "recompute_method: block is taken as the same share of every stage's layers; some stages hold one more"
        )
    if plan.recompute_modules == ("layernorm",) and not (model.key_value_rank or model.num_experts):
        stated.append(
            "recompute_modules: layernorm changes nothing here: every norm runs inside the multiply that follows it"
        )
    if stack.cuda_graph_scope:
        stated.append(
            f"CUDA graphs of {', '.join(stack.cuda_graph_scope)} keep their temporaries, and places for the input and "
            "output of one layer and their gradients, to themselves"
        )
    if plan.zero_stage >= 2 and plan.num_replicas > 1 and scenario.num_microbatches > 1:
        kept = plan.zero_stage == 3 and not plan.reshard_after_forward
        moved = "gathers weights and reduces gradients" if plan.zero_stage == 3 else "reduces gradients"
        often = "micro-batch" if plan.num_chunks == 1 else "step" if visits <= 1 else "group of micro-batches"
        often = "step" if kept and plan.pp > 1 else often
        hidden = "beside compute" if stack.overlap_grad_reduce else f"not beside compute in stack {stack.name!r}"
        stated.append(f"ZeRO stage {plan.zero_stage} {moved} once a {often}, {hidden}")
    if model.num_experts:
        travel = "beside another micro-batch's computation" if stack.overlap_experts else "while computation waits"
        known = stack.cuda_graphs == "full_iteration" or training.pad_to_capacity
        learns = "; the host learns from the GPU how many come before it launches their multiplies"
        stated.append(
            f"{_tokens_of_experts(scenario)}; tokens travel {travel} (stack {stack.name!r}){'' if known else learns}"
        )
    else:
        idle = [
            name for name in ("expert_skew", "expert_capacity_factor", "pad_to_capacity") if getattr(training, name)
        ]
        stated += [f"training.{name} changes nothing: model {model.name!r} has no experts" for name in idle]
    stated += _of_mixers(model)
    if model.position == "rotary" and training.sequence_length > model.max_sequence_length:
        stated.append(
            f"sequences of {training.sequence_length:,} tokens exceed the model's {model.max_sequence_length:,}"
        )
    if plan.offloaded_layers:
        stated.append(
            f"activations of {plan.offloaded_layers} layers wait in host memory; copies run beside computation at "
            f"{_copy_rate(scenario)}, and slow neither kernels nor network"
        )
    if plan.optimizer_offload:
        stated.append(
            f"the CPU updates {plan.optimizer_offload:.0%} of the parameters at {stack.cpu_update_share:.0%} of the "
            f"host memory's bandwidth (stack {stack.name!r}); gradients and weights are copied at "
            f"{_copy_rate(scenario)}"
        )
    training = scenario.training
    if training.format is not None:
        fused = (stack.fused_casts or stack.compiled) and training.format.norms_cast
        casts = "after a norm are a part of it, others" if fused else "are"
        casts += " kernels of their own"
        known = training.peak_precision in scenario.profile.gemm.precisions
        share = "" if known else f"{training.precision} multiplies are taken to reach bf16's share of peak; "
        stated.append(f"{share}casts {casts} (stack {stack.name!r})")
        if training.precision == "mxfp8" and "fp4" not in scenario.cluster.gpu.peak_flop_per_s:
            stated.append(
                f"{scenario.cluster.gpu.name} has no multiplies with a scale a block of 32 numbers, which came with "
                "those in 4 bits: mxfp8 is priced as if it had; fp8 is what it has"
            )
    if scenario.training.tokens is not None:
        stated.append("training time counts no failures, checkpoints or evaluation")
    if contention:
        stated.append(contention_note(scenario))
        stated.append("how often messages meet is their average over the step; simulate --contention plays them")
    else:
        stated.append(
            "no link is slowed by traffic of another kind; groups of one kind share the network as the profile says"
        )
    cluster = scenario.cluster
    if plan.placement != MEGATRON_ORDER:
        stated.append(f"ranks lie on the GPUs as {plan.placement}, the first dimension's neighbours closest")
    if cluster.fragmentation:
        stated.append(
            f"{cluster.fragmentation:.0%} of the job's nodes lie anywhere in the machine: drawn once, the same for all "
            "answers"
        )
    left = _left_by_switches(scenario)
    if left:
        stated.append(f"switches leave of a network card where all groups of a kind talk at once: {left}")
    return tuple(stated)


def _left_by_switches(scenario: Scenario) -> str:
    """Kinds of groups that switches slow, and what they leave them."""
    plan, layouts = scenario.plan, batch_of(scenario).layouts
    shares = {
        "pipeline sends": layouts.send_share,
        "tensor-parallel": layouts.tensor.card_share,
        "context-parallel": layouts.context.card_share,
        "expert-parallel": layouts.experts.card_share,
        "replicas": layouts.data.card_share,
    }
    if plan.ep > 1:
        shares["replicas of experts"] = layouts.expert_data.card_share
    found = {name: float(np.min(share)) for name, share in shares.items()}
    return ", ".join(f"{name} {share:.0%}" for name, share in found.items() if share < 1)


def _of_mixers(model: ModelSpec) -> list[str]:
    """Layers that do not attend to the whole sequence: their kernels were measured on no GPU."""
    kinds = sorted(model.layer_kinds, key=lambda kind: kind.mixer)
    partial = dict.fromkeys(kind.mixer for kind in kinds if kind.attends and kind.mixer != "full_attention")
    carried = dict.fromkeys(kind.mixer for kind in kinds if not kind.attends and kind.mixer != "none")
    stated = []
    if partial:
        stated.append(f"{' and '.join(partial)} reaches full attention's rate, on the tiles that it computes")
    if carried:
        stated.append(
            f"{' and '.join(carried)}: chunks as products of matrices and bytes; no kernel of it was measured"
        )
    return stated


def _tokens_of_experts(scenario: Scenario) -> str:
    """How unevenly tokens fall on experts."""
    model, routing, ep = scenario.model, routing_of(scenario.training), scenario.plan.ep
    if routing.even:
        return "every expert gets as many tokens as any other"
    said = (
        f"the busiest of {ep} GPUs' experts get {busiest_share(model, routing, ep):.2f} times an even share of tokens"
    )
    dropped = dropped_share(model, routing)
    return f"{said}; {dropped:.1%} of the tokens find their expert full" if dropped else said
