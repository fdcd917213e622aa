"""Bytes on one GPU: weights, gradients, optimizer state, activations by recompute mode, logits, allowances."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sim.specs import ModelSpec, Scenario, StackSpec
from sim.work.experts import experts_activation_bytes, routed
from sim.work.operations import Number
from sim.work.optimizer import GRADIENT_WIDTH, state_bytes_per_param
from sim.work.params import expert_params, layer_params
from sim.work.pieces import Cut, key_value_width
from sim.work.stages import LAYER, Stage, stage_expert_params, stage_params


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Peak memory of one GPU of a pipeline rank, by purpose; floats, or arrays over plans. [bytes]"""

    weights: Number
    gradients: Number
    optimizer: Number
    activations: Number
    """Kept for the backward, micro-batches in flight times layers."""
    logits: Number
    working: Number
    """Alive for a moment: the layer being recomputed, gathered weights, the optimizer's temporaries."""
    buffers: Number
    """Pipeline receive buffers."""
    framework: Number
    """Allowance for the CUDA context, workspaces and NCCL, from the stack."""
    fragmentation: Number
    """Allowance for the allocator's losses, from the stack."""

    @property
    def total(self) -> Number:
        """All of it. [bytes]"""
        return sum(getattr(self, field.name) for field in fields(self))

    def to_dict(self) -> dict[str, float]:
        """By purpose, with the total."""
        return {
            **{field.name: float(getattr(self, field.name)) for field in fields(self)},
            "total": float(self.total),
        }


def layer_activation_bytes(
    model: ModelSpec, stack: StackSpec, cut: Cut, recompute: str | None = None, dense: bool = False
) -> Number:
    """Activations one layer keeps for the backward of one micro-batch. [bytes]

    For a GPT in 16 bits with math attention these are Korthikanti's s b h (34 + 5 a s / h), (10 + 24/t + 5 a s/(h t)),
    (34/t) and 2 s b h [1]_.

    Parameters
    ----------
    recompute : str, optional
        Instead of the cut's own.
    dense : bool
        One of the first layers of a mixture of experts, which have none.

    .. [1] Korthikanti et al. 2022, arXiv:2205.05198, table 2.
    """
    w, h, tokens = cut.width, model.hidden_size, cut.tokens
    mode = recompute or cut.recompute
    if mode == "full":
        return w * cut.norm_tokens * h
    query, context = (model.num_heads * columns / cut.tp for columns in (model.head_dim, model.value_head_dim))
    key_value = key_value_width(model, cut.tp)
    experts = bool(model.num_experts) and not dense
    inputs = 2 if model.gated_mlp else 1
    if mode == "per_op":  # the layer's input, the attention's output, and the outputs of every other multiply
        up = (
            routed(model, cut).copies * model.expert_intermediate_size
            if experts
            else tokens * model.intermediate_size / cut.tp
        )
        outputs = w * tokens * (context + query + key_value) + w * inputs * up
        return w * cut.norm_tokens * h + outputs + attention_core_bytes(model, stack, cut)
    mask = 1 if model.dropout else 0
    # Inputs of the norms and of the two column-parallel linears (one, if both read the same), both residual dropouts'
    # masks; an unfused norm also keeps its input and its normalised input in fp32 (and would let go of the former in
    # 16 bits, but which layouts ran says that it stays).
    # Experts read copies of their norm's output, and count that themselves.
    count, linears = model.norms_per_layer, min(model.norms_per_layer, 2) - experts
    norms = 0 if stack.fused_norm else count * (4 + 4)
    # Linears that multiply 8-bit numbers keep their inputs in 8 bits.
    kept = 1 if cut.fp8 else w
    around = cut.norm_tokens * h * (count * w + linears * kept + norms + 2 * mask)
    if cut.sequence_parallel and not stack.regather_sequence:
        around += linears * kept * (tokens - cut.norm_tokens) * h
    # Query, key and value, rotated where positions are (a rotation's gradient needs its angles, not its input); the
    # context; the activation's input and output.
    products = inputs + 1 + (1 if model.gated_mlp and not stack.fused_bias_activation else 0)
    inner = 0.0 if experts else model.intermediate_size / cut.tp
    cut_by_tp = tokens * (w * (query + key_value + (products - 1) * inner) + kept * (context + inner))
    if model.key_value_rank:  # the latent vectors, before and after their norms
        latent = model.query_rank + model.key_value_rank
        around = around + cut.norm_tokens * (w * (latent + model.rotary_head_dim) + kept * latent)
    if experts:
        around = around + experts_activation_bytes(model, stack, cut)
    if model.query_key_norm != "none":  # what they normalise, besides what comes out
        cut_by_tp = cut_by_tp + tokens * w * (query + key_value / 2)
    core = attention_core_bytes(model, stack, cut) if mode == "none" else 0.0
    return around + cut_by_tp + core


def attention_core_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """What the attention core alone keeps: the probabilities and their dropout, or flash's row statistics. [bytes]

    Step by step the softmax is taken in fp32: its output is kept, and the cast to 16 bits that multiplies the values
    (NVIDIA/Megatron-LM:megatron/model/fused_softmax.py, forward_torch_softmax).
    """
    rows = model.num_heads / cut.tp * cut.tokens
    if stack.attention == "flash":
        return 4.0 * rows
    per_score = cut.width + (0 if stack.fused_softmax else 4) + ((1 + cut.width) if model.dropout else 0)
    return per_score * rows * cut.sequence_length


def attention_moment_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """What the backward of one attention core holds for a moment besides what was kept. [bytes]

    The gradients of the probabilities and of the scores; step by step also the first one's cast to fp32 and the fp32
    gradient of the scores, in place of the second.
    """
    if stack.attention == "flash":
        return 0.0
    per_score = 2 * cut.width if stack.fused_softmax else cut.width + 4 + 4
    return per_score * model.num_heads / cut.tp * cut.tokens * cut.sequence_length


def stage_activation_bytes(
    stage: Stage, model: ModelSpec, stack: StackSpec, cut: Cut, offloaded_layers: int = 0
) -> Number:
    """Activations a stage keeps for one micro-batch, without logits. [bytes]

    Parameters
    ----------
    offloaded_layers : int
        Layers of the whole model that keep theirs in host memory; every stage has its share of them.
    """
    kept: Number = (stage.num_layers - stage.num_dense_layers) * layer_activation_bytes(model, stack, cut)
    if stage.num_dense_layers:
        kept = kept + stage.num_dense_layers * layer_activation_bytes(model, stack, cut, dense=True)
    kept = kept * (1.0 - offloaded_layers / model.num_layers)
    if stage.has_embedding and model.dropout:
        kept += cut.norm_tokens * model.hidden_size
    if stage.has_head:  # inputs of the final norm and of the logits' matrix
        kept += 2 * cut.width * cut.norm_tokens * model.hidden_size
    return kept


def logits_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """Logits of one micro-batch: 16-bit, and their fp32 probabilities unless the loss is fused. [bytes]

    A loss on gathered logits holds them whole: 16 bits, and in its backward the cast to fp32, log-probabilities, their
    gradient and the cast's gradient (4 bytes each); the 16-bit gradient takes the place of the second.
    """
    if stack.chunked_loss:
        return 0.0
    if not stack.vocab_parallel_loss:
        return held_logits_bytes(model, stack, cut) + 16 * cut.tokens * model.vocab_size
    per_logit = cut.width + (0 if stack.fused_cross_entropy else 4)
    return per_logit * cut.tokens * model.vocab_size / cut.tp


def held_logits_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """Of the logits, what the training loop still holds while the layers' backward runs: the 16-bit ones. [bytes]"""
    if stack.chunked_loss:
        return 0.0
    own = cut.width / cut.tp
    gathered = cut.width * (np.asarray(cut.tp) > 1) * (not stack.vocab_parallel_loss)
    return cut.tokens * model.vocab_size * (own + gathered)


def rank_memory(
    scenario: Scenario,
    cut: Cut,
    held: tuple[Stage, ...],
    peak_activations: float,
    peak_logits: int = 1,
    weight_versions: int = 1,
) -> MemoryUse:
    """Peak memory of one GPU of a pipeline rank.

    Parameters
    ----------
    scenario : Scenario
    cut : Cut
        The scenario's own.
    held : tuple of Stage
        The stages this rank holds.
    peak_activations : float
        Most bytes of kept activations alive at once, from the schedule's order. [bytes]
    peak_logits : int
        Most micro-batches whose logits are alive at once on the stage with the head.
    weight_versions : int
        Versions of the weights that an asynchronous schedule keeps.
    """
    plan, model = scenario.plan, scenario.model
    params = sum(stage_params(stage, model, plan.tp, plan.ep) for stage in held)
    experts = sum(stage_expert_params(stage, model, plan.ep) for stage in held)
    has_head = any(stage.has_head for stage in held)
    of_cut = cut_memory(scenario, cut)
    return memory_of(scenario, of_cut, params, peak_activations, peak_logits * has_head, weight_versions, experts)


@dataclass(frozen=True, slots=True)
class CutMemory:
    """What of a GPU's memory follows from the cut alone, of one micro-batch; floats or arrays. [bytes]

    working : the largest thing alive for a moment besides what is kept.
    logits, held_logits : all of them, and those still held while the layers' backward runs.
    boundary : activations that one rank sends to the next.
    """

    working: Number
    logits: Number
    held_logits: Number
    boundary: Number


def cut_memory(scenario: Scenario, cut: Cut) -> CutMemory:
    """Sizes of a cut. Takes arrays in the numbers of the cut and of the plan."""
    model, stack = scenario.model, scenario.stack
    return CutMemory(
        _working_bytes(scenario, cut),
        logits_bytes(model, stack, cut),
        held_logits_bytes(model, stack, cut),
        cut.width * cut.norm_tokens * model.hidden_size,
    )


def memory_of(
    scenario: Scenario,
    of_cut: CutMemory,
    params: Number,
    peak_activations: Number,
    peak_logits: Number = 0,
    weight_versions: Number = 1,
    experts: Number = 0.0,
) -> MemoryUse:
    """Peak memory of one GPU that holds so many parameters, `experts` of them of experts; as `rank_memory`.

    Takes arrays, in the plan's numbers too, but for its ZeRO stage.
    """
    plan, stack, training = scenario.plan, scenario.stack, scenario.training
    fp32_shards = stack.fp32_shards and plan.zero_stage == 3
    shards = (params - experts) / plan.num_replicas + experts / plan.num_expert_replicas
    share = shards / params
    shard = [share if plan.zero_stage >= level else 1.0 for level in (1, 2, 3)]
    grad_width = 4 if fp32_shards else GRADIENT_WIDTH[stack.gradient_precision]
    # The unfused optimizer's fp32 copies of the gradients live when the activations are gone: the larger counts.
    copies = 0.0 if stack.fused_optimizer else 4.0 * params * shard[0]
    working = np.maximum(of_cut.working, copies - peak_activations)
    logits = peak_logits * of_cut.logits
    # The fp32 part of the logits is gone before a layer's backward begins.
    freed = logits - of_cut.held_logits * (np.asarray(peak_logits) > 0)
    working = np.maximum(working - freed, 0.0)
    return MemoryUse(
        weights=0.0 if fp32_shards else params * training.activation_bytes * shard[2] * weight_versions,
        gradients=params * grad_width * shard[1],
        optimizer=params * state_bytes_per_param(training, stack) * shard[0],
        activations=peak_activations,
        logits=logits,
        working=working + _gathered_bytes(scenario, params - shards),
        buffers=2.0 * of_cut.boundary * (plan.pp > 1),
        framework=stack.framework_memory_bytes,
        fragmentation=stack.fragmentation * (peak_activations + logits + working),
    )


def _working_bytes(scenario: Scenario, cut: Cut) -> Number:
    """The largest thing alive for a moment besides what is kept."""
    model, stack, plan = scenario.model, scenario.stack, scenario.plan
    everything = layer_activation_bytes(model, stack, cut, "none")
    if model.num_experts:
        to = routed(model, cut)
        widest = to.copies * max(model.expert_intermediate_size, model.hidden_size)
    else:
        widest = cut.tokens * np.maximum(model.intermediate_size / plan.tp, model.hidden_size)
    again = {
        "none": 0.0,
        "selective": attention_core_bytes(model, stack, cut),
        "per_op": everything - layer_activation_bytes(model, stack, cut, "per_op"),
        "full": everything,
    }[plan.recompute]
    # The largest gradients of the backward: the activation's beside its input, or the attention core's.
    backward = 2 * cut.width * widest
    if plan.offloaded_layers:  # one layer's activations on their way to the host or back
        again = again + layer_activation_bytes(model, stack, cut)
    return again + np.maximum(backward, attention_moment_bytes(model, stack, cut))


def _gathered_bytes(scenario: Scenario, most: Number) -> Number:
    """What ZeRO holds whole besides its shards for the layer (or chunk) at work: gradients, and gathered weights.

    Stage 2 sums a visit's gradients before it reduces them; stage 3 also gathers the weights, and those of the next.
    A stack that gathers tensor by tensor holds the largest matrix and the next instead of layers. Never more than
    `most`: all that is sharded away.
    """
    plan, model = scenario.plan, scenario.model
    layers = np.where(np.asarray(plan.num_chunks) == 1, 1, np.ceil(model.num_layers / plan.num_stages))
    experts = stage_expert_params(LAYER, model, plan.ep)
    at_work: Number
    if scenario.stack.gathers_per_layer == 1:
        at_work = layers * ((layer_params(model) - expert_params(model)) / plan.tp + experts)
    elif model.num_experts:  # the first matrices of all experts on a GPU are one tensor
        at_work = experts * (2 if model.gated_mlp else 1) / (3 if model.gated_mlp else 2)
    else:
        at_work = model.hidden_size * model.intermediate_size / plan.tp
    gradients = (
        GRADIENT_WIDTH[scenario.stack.gradient_precision] * np.minimum(at_work, most) if plan.zero_stage >= 2 else 0.0
    )
    weights = scenario.training.activation_bytes * np.minimum(2 * at_work, most) if plan.zero_stage == 3 else 0.0
    return gradients + weights
