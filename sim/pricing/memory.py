"""Peak memory of pipeline ranks, from what the blocks of their plans keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.arrays import Floats, Ints, KindPlanFloats, Number, StageFloats
from sim.pricing.cells import Plans, plans_of
from sim.pricing.deal import CAST, HELD, MOMENTS, TRAINED, deal_of, put_together
from sim.specs import Scenario
from sim.units import show
from sim.work.layers import HEAD
from sim.work.memory import MemoryUse
from sim.work.optimizer import state_bytes, update_bytes
from sim.work.sums import model_layers, params


def stage_bytes(plans: Plans, parts: Floats) -> KindPlanFloats:
    """Activations that kinds of stages keep of one micro-batch.  [bytes]

    Those that send what they compute to another stage, all that have no head, may keep that too.
    """
    kept = put_together(parts, plans.prices.activation_bytes[:, plans.way, plans.cell])
    if not plans.costs.stack.keeps_sent_activations:
        return kept
    sent = plans.prices.boundary_bytes[plans.way, plans.cell]
    return np.asarray(kept + np.stack([sent * (heads == 0) for heads in parts[:, HEAD]]))


def activations_by_stage(scenario: Scenario, rank_of_stage: Ints, copies: int) -> StageFloats:
    """Activations that every stage of a scenario keeps of one micro-batch, without logits.  [bytes]"""
    plans = plans_of(scenario)
    deal = deal_of(scenario.model, scenario.plan, rank_of_stage, copies)
    return np.asarray(stage_bytes(plans, deal.stage_kinds)[deal.kind_of_stage, 0])


def peak_memory(
    plans: Plans, held: Floats, activations: Number, logits: Number = 0, weight_versions: Number = 1
) -> MemoryUse:
    """Peak memory of one GPU of ranks; numbers broadcast over kinds of ranks and plans.

    held : parameters on one GPU of each rank (`sim.pricing.deal`).
    activations : most bytes of kept activations that are in flight at once. [bytes]
    logits : most micro-batches whose logits are alive at once.
    weight_versions : versions of the weights that an asynchronous schedule keeps.
    """
    prices, zero, layouts, of_cut = plans.prices, plans.zero_stage, plans.layouts, (plans.way, plans.cell)
    stack, training = plans.costs.stack, plans.costs.training
    fp32_shards = (zero == 3) & stack.fp32_shards
    total, shards = held[HELD].sum(axis=0), layouts.shard_of(held[HELD], plans.layout)
    trained, shard = _trained_and_sharded(plans, held)
    of_weights = np.where(zero >= 3, shards / np.maximum(total, 1e-30), 1.0)
    # Frozen weights have no optimizer that would keep them in 32 bits, but may be in fp32 shards as they were loaded;
    # FSDP wraps a model on one GPU too.
    loaded = stack.fp32_frozen & (fp32_shards | (layouts.gpus[plans.layout] == 1))
    frozen = np.where(loaded, 4.0 / training.activation_bytes, 1.0)
    kept_here = total * ~fp32_shards
    if training.adapter_rank:
        kept_here = trained * ~fp32_shards + frozen * (total - trained)
    grad_width = np.where(fp32_shards, 4, stack.gradient_bytes)
    # Of 32-bit shards a GPU casts its own too, but for experts that are on no other and so are no shards.
    cast = fp32_shards * (shards - held[HELD][1] * (layouts.expert_shards.size[plans.layout] == 1))
    of_logits = logits * prices.logits_bytes[of_cut]
    # The fp32 part of the logits is gone before a layer's backward begins.
    freed = of_logits - prices.held_logits_bytes[of_cut] * (np.asarray(logits) > 0)
    working = np.maximum(prices.working_bytes[of_cut] - freed, 0.0)
    moment = working + _gathered_bytes(plans, total, total - shards + cast) + _root_bytes(plans)
    # An update begins when activations, logits and gathered weights are gone: the larger moment counts.
    state = trained, held[MOMENTS], training, stack, plans.optimizer_offload
    gradients = trained * grad_width * np.where(plans.shards_gradients, shard[1], 1.0)
    alone = (plans.pp == 1) & (plans.num_microbatches == 1) & stack.drops_gradients
    # Gradients that are made anew in every step come as activations go: the backward's two ends count.
    gradients = np.where(alone, np.maximum(gradients - activations - of_logits, 0.0), gradients)
    moment = np.maximum(moment, _update_bytes(plans, state, shard[0]) - activations - of_logits)
    return MemoryUse(
        weights=kept_here * training.activation_bytes * of_weights * weight_versions + _cast_bytes(plans, held[CAST]),
        gradients=gradients,
        optimizer=state_bytes(*state) * shard[0],
        activations=activations,
        logits=of_logits,
        working=moment,
        buffers=2.0 * prices.boundary_bytes[of_cut] * (plans.pp > 1),
        framework=stack.framework_memory_bytes,
        fragmentation=stack.fragmentation * (activations + of_logits + working),
    )


def _cast_bytes(plans: Plans, params: Number) -> Number:
    """What weights take in the 8 or 4 bits that multiplies read, more than in the 16 bits that are counted.  [bytes]

    Transformer Engine casts them in a step's first micro-batch and keeps them, by rows for the forward and by columns
    for the input gradient (NVIDIA/TransformerEngine:transformer_engine/pytorch/module/base.py, get_weight_workspace).
    With one scale a tensor Blackwell's multiplies read either way (pytorch/csrc/extensions/util.cpp,
    non_tn_fp8_gemm_supported). There are 16 bits besides, unless weights lie in these alone (fp8_param_gather).
    """
    stack, training, gpu = plans.costs.stack, plans.costs.training, plans.costs.compute.gpu
    few = training.format
    if few is None or not stack.fused_casts or training.frozen_precision:
        return 0.0
    copies = 1 if training.precision == "fp8" and "fp4" in gpu.peak_flop_per_s else 2
    wide = training.activation_bytes if stack.fp8_gathers and few.peak == "fp8" else 0
    share = 1.0 - training.high_precision_layers / plans.costs.model.num_layers
    return (copies * few.nbytes - wide) * share * params * (plans.zero_stage < 3)


def _update_bytes(plans: Plans, state: tuple[Any, ...], shard: Number) -> Number:
    """What an update of a GPU's shard holds for a moment, of so many parameters at a time.  [bytes]"""
    params, *others = state
    group = plans.costs.stack.update_group_params
    if group is not None:
        params = np.where(plans.zero_stage == 3, np.minimum(params, group / shard), params)
    return update_bytes(params, *others) * shard


def _trained_and_sharded(plans: Plans, held: Floats) -> tuple[Number, list[Number]]:
    """Parameters that a GPU trains, and the shares of their state and of their gradients that it has a shard of."""
    layouts, place = plans.layouts, TRAINED if plans.costs.training.adapter_rank else HELD
    trained = held[place].sum(axis=0)
    of_trained = layouts.shard_of(held[place], plans.layout) / np.maximum(trained, 1e-30)
    return trained, [np.where(plans.zero_stage >= level, of_trained, 1.0) for level in (1, 2)]


def _gathered_bytes(plans: Plans, whole: Number, most: Number) -> Number:
    """What ZeRO holds whole besides its shards for the layer (or chunk) at work: gradients, and gathered weights.

    Stage 2 sums gradients before it reduces them; stage 3 also gathers the weights, and those of the layers it gathers
    ahead. A stack that gathers tensor by tensor holds the largest matrix and those ahead instead of layers. Never more
    than `most`: all that is sharded away, or that a GPU casts from 32-bit shards. Where weights stay after the forward,
    or in a pipeline after a backward, all of them are there; those cast from 32-bit shards are `whole`.
    """
    model, stack, training, zero = plans.costs.model, plans.costs.stack, plans.costs.training, plans.zero_stage
    if (zero < 2).all():
        return 0.0
    chunk = (plans.num_chunks > 1) & plans.shards_gradients
    layers = np.where(chunk, np.ceil(model.num_layers / (plans.pp * plans.num_chunks)), 1)
    held = [(params(layer), params(layer, experts=True)) for _, _, layer in model_layers(model)]
    tp, cut = plans.layouts.tp[plans.layout], (plans.layouts.ep * plans.layouts.etp)[plans.layout]
    experts = max(of_experts for _, of_experts in held) / cut
    at_work: Number
    if stack.gathers_per_layer == 1:
        largest = max(every - of_experts for every, of_experts in held)
        at_work = layers * (largest / tp + experts)
    elif model.num_experts:  # the first matrices of all experts on a GPU are one tensor
        at_work = experts * (2 if model.gated_mlp else 1) / (3 if model.gated_mlp else 2)
    else:
        at_work = model.hidden_size * model.intermediate_size / tp
    gradients = stack.gradient_bytes * np.minimum(at_work, most) * plans.shards_gradients
    if training.adapter_rank:
        gradients = gradients * 0.0
    # One is gathered ahead of the one at work, by FSDP2's implicit prefetch and by the first FSDP's limit_all_gathers.
    masters = stack.fp32_shards and not training.adapter_rank
    kept = plans.in_turns | ~plans.reshards
    gathered = np.where(kept, whole if masters else most, np.minimum(2 * at_work, most))
    weights = training.activation_bytes * gathered * (zero == 3)
    return gradients + weights


def _root_bytes(plans: Plans) -> Number:
    """A tied table that FSDP's root unit holds, gathered from the forward to the backward's end, with its gradient.

    PyTorch's FSDP keeps its root's weights after the forward (torch.distributed.fsdp.fully_shard: reshard_after_forward
    is true by default but for the root), and a table that embedding and head share is in no layer's unit.
    """
    model, training = plans.costs.model, plans.costs.training
    if not (plans.costs.stack.fp32_shards and model.tied_embeddings):
        return 0.0
    times = 1 if training.adapter_rank else 2
    table = model.vocab_size * model.hidden_size / plans.layouts.tp[plans.layout]
    return times * training.activation_bytes * table * ((plans.zero_stage == 3) & (plans.pp == 1))


def assumed(scenario: Scenario) -> Iterator[str]:
    """Allowances that are no counts."""
    stack = scenario.stack
    yield (
        f"memory includes {show(stack.framework_memory_bytes, 'B')} for CUDA, libraries and NCCL, and "
        f"{stack.fragmentation:.0%} of the activations for fragmentation (stack {stack.name})"
    )
    gpu = scenario.cluster.gpu
    if gpu.reported_memory_bytes is None:
        yield (
            f"what the driver of {gpu.name} leaves to a program is not known, so all {show(gpu.memory_bytes, 'B')} "
            "count as free. Drivers of other GPUs keep about 1% of HBM and up to 9% of GDDR "
            "(cluster.node.gpu.reported_memory, as torch.cuda.mem_get_info says it)"
        )
