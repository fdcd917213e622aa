"""What a model has, computes and keeps: sums over its operations.

A tensor that several operations keep is in memory once. A module that runs again in the backward keeps what it reads
from outside instead of what its operations keep; one whose output is thrown away does not keep that either.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from sim.arrays import Floats, Number
from sim.specs import LayerKind, ModelSpec, ParallelPlan, StackSpec, TrainingSpec
from sim.specs.plan import GRAPH_MODULES, RECOMPUTE_MODULES
from sim.work.layers import FIRST_KIND, block_operations, layer_operations
from sim.work.operations import Adapters, Block, BlockWork, Cause, Operation, Phase, Tensor, Weight, adapters_of
from sim.work.optimizer import MOMENTS
from sim.work.pieces import Cut
from sim.work.recompute import (
    NOTHING,
    PER_OP_SENT,
    Recompute,
    again,
    per_op_multiplies,
    recompute_of,
    run_again_share,
)

# Work -----------------------------------------------------------------------------------------------------------------


def block_works(block: Block, stack: StackSpec, recomputes: Sequence[Recompute] = (NOTHING,)) -> list[BlockWork]:
    """Return the work of a block under several ways to recompute, which share all other phases.

    Only a layer runs again: a block without one has the same work under all of them.
    """
    layer, around = _passes(block.layer), _passes(block.around)
    if stack.cuda_graph_scope and block.layer:
        # One graph a layer and pass; its backward runs again what the forward's did and is recomputed.
        graphed = {name for each in stack.cuda_graph_scope for name in GRAPH_MODULES[each]}
        layer = [phase.in_graph(graphed, graphs) for phase, graphs in zip(layer, (1, 1, 0), strict=True)]
    forward = around[0] + layer[0]
    gradients = (layer[1] + around[1], layer[2] + around[2])
    recomputes = recomputes if block.layer else (NOTHING,)
    return [BlockWork(forward, *gradients, again(layer[0], each, stack)) for each in recomputes]


def _passes(operations: Sequence[Operation]) -> list[Phase]:
    """Forward, input gradient and weight gradient of operations; backward they run in the reverse order."""
    back = operations[::-1]

    def of(several: Sequence[Operation], part: str) -> tuple[Any, ...]:
        return tuple(item for each in several for item in getattr(each, part))

    return [
        Phase(of(operations, "forward"), of(operations, "sent"), waits=any(each.waits for each in operations)),
        Phase(of(back, "input_grad"), of(back, "sent_back")),
        Phase(of(back, "weight_grad")),
    ]


# Parameters -----------------------------------------------------------------------------------------------------------


def params(
    operations: Iterable[Operation], *, experts: bool = False, adapters: bool = False, stored: bool = False
) -> Number:
    """Return the parameters of operations on one GPU.

    experts : of these alone. adapters : of these, which other numbers leave out.
    stored : as many numbers in compute precision as they take in memory.
    """
    weights = (weight for each in operations for weight in each.weights if weight.of_adapters == adapters)
    if experts:
        weights = (weight for weight in weights if weight.of_experts)
    return sum(weight.params * weight.stored if stored else weight.params for weight in weights)


def num_tensors(operations: Iterable[Operation]) -> int:
    """Return how many tensors of parameters operations have: a matrix each and its biases, of a norm gain and bias."""
    found = 0
    for each in operations:
        matrices = any(weight.columns is not None for weight in each.weights)
        found += matrices + (1 if matrices else 2) * any(weight.columns is None for weight in each.weights)
    return found


def matrices(operations: Iterable[Operation], tables: bool = False) -> list[Weight]:
    """Return the weight matrices of operations, adapters apart, and tables if asked for.

    Query, key, value, gate and up are matrices of their own, as Muon and Adafactor take them. Muon orthogonalises those
    within layers. A tensor-parallel group's GPUs each take the block of a matrix that they hold (Megatron-Core's
    muon-tp-mode blockwise, its default).
    """
    weights = (weight for each in operations for weight in each.weights)
    found = [weight for weight in weights if weight.columns is not None and not weight.of_adapters]
    return [weight for weight in found if tables or not weight.is_table]


def moments(operations: Sequence[Operation], optimizer: str) -> Number:
    """Return the moments that an optimizer keeps of operations' parameters on one GPU, as numbers."""
    numbers = MOMENTS[optimizer] * params(operations)
    if optimizer == "adafactor":
        for each in matrices(operations, tables=True):
            numbers = numbers - each.params + each.count * (each.rows + each.columns)
    return numbers - sum(each.params for each in matrices(operations)) if optimizer == "muon" else numbers


_PLAIN = StackSpec.model_validate({"kernel_launch_s": 0.0})
"""A stack of fused kernels, whose launches take no time."""


def held_blocks(
    model: ModelSpec, tp: Number = 1, ep: Number = 1, etp: Number = 1, adapters: Adapters | None = None
) -> tuple[Block, ...]:
    """Return the blocks of a model for what they hold, whatever the tokens."""
    return block_operations(model, _PLAIN, Cut(tp, 1, 1, False, ep=ep, etp=etp, adapters=adapters))


def part_params(
    part: Floats, model: ModelSpec, tp: Number = 1, ep: Number = 1, etp: Number = 1, *, experts: bool = False
) -> Number:
    """Return the parameters of a part of a model (`sim.work.layers.Stage.part`) on one GPU, or its experts' alone."""
    table = 0.0 if experts else model.vocab_size * model.hidden_size / tp
    return part @ [*(params(each.operations, experts=experts) for each in held_blocks(model, tp, ep, etp)), -table]


@lru_cache(maxsize=256)
def model_blocks(
    model: ModelSpec, batch: float = 1, sequence: float = 1, packed: int | None = None, adapters: Adapters | None = None
) -> tuple[tuple[int, Block], ...]:
    """Return the blocks of a model on a single GPU, for so many tokens, each with how often the model has it."""
    cut = Cut(1, batch, sequence, False, packed=packed, adapters=adapters)
    counts = (1, 1, *(model.layers_of(kind) for kind in model.layer_kinds), model.num_mtp_layers)
    return tuple(zip(counts, block_operations(model, _PLAIN, cut), strict=True))


def model_layers(
    model: ModelSpec, batch: float = 1, sequence: float = 1, adapters: Adapters | None = None
) -> list[tuple[int, LayerKind, tuple[Operation, ...]]]:
    """Return the kinds of layers of a model: how many there are, the kind, its operations on a single GPU."""
    blocks = model_blocks(model, batch, sequence, None, adapters)[FIRST_KIND:]
    return [(count, kind, block.layer) for (count, block), kind in zip(blocks, model.layer_kinds, strict=False)]


@lru_cache(maxsize=256)
def total_params(model: ModelSpec, with_mtp: bool = True) -> int:
    """Return all parameters of a model, tied ones once, with its modules of multi-token prediction or without them."""
    blocks = model_blocks(model) if with_mtp else model_blocks(model)[:-1]
    # There is one table for all that look tokens up, and for the head where it is tied.
    tables = with_mtp * model.num_mtp_layers + model.tied_embeddings
    held = sum(count * params(block.operations) for count, block in blocks)
    return int(held) - tables * model.vocab_size * model.hidden_size


@lru_cache(maxsize=256)
def active_params(model: ModelSpec) -> int:
    """Return the parameters used per token: all but the experts that it is not sent to."""
    experts = int(sum(count * params(block.operations, experts=True) for count, block in model_blocks(model)))
    idle = experts // max(model.num_experts, 1) * (model.num_experts - model.experts_per_token)
    return total_params(model) - idle


@lru_cache(maxsize=256)
def layer_params(model: ModelSpec, kind: LayerKind | None = None) -> int:
    """Return the parameters of one transformer layer, its norms and experts included. Default: the last layer."""
    return int(params(layer_operations(model, _PLAIN, Cut(1, 1, 1, False), kind)))


# FLOPs ----------------------------------------------------------------------------------------------------------------


def forward_flop(
    operations: Iterable[Operation], modules: Container[str] | None = None, cause: Cause | None = None
) -> float:
    """Return what a formula for model FLOPs credits a forward with. [FLOP]

    modules, cause : of those operations alone, and of those kernels.
    """
    kernels = (kernel for each in operations if modules is None or each.module in modules for kernel in each.forward)
    return float(sum(kernel.model_flop for kernel in kernels if cause in (None, kernel.cause)))


def _step(model: ModelSpec, training: TrainingSpec) -> tuple[tuple[int, Block], ...]:
    """Blocks of a model with the tokens of a whole step."""
    of_step = training.global_batch_size, training.sequence_length, training.packed_length
    return model_blocks(model, *of_step, adapters_of(training))


CORE = ("core_attn",)
"""The module of scores, softmax and values."""


def model_flop(model: ModelSpec, training: TrainingSpec) -> float:
    """Return the FLOPs of one step without recomputation (MFU's numerator). [FLOP]

    Three times the forward, with attention that is not halved for the mask, as Megatron-LM counts it. Frozen weights
    have no gradients: twice the forward, but for what mixes the tokens, and adapters' three times.
    """
    passes = ((count, _passes(block.operations)) for count, block in _step(model, training))
    return float(sum(count * sum(phase.model_flop for phase in phases) for count, phases in passes))


def causal_flop(model: ModelSpec, training: TrainingSpec) -> float:
    """Return `model_flop` with half of the scores and values, as causal attention needs them. [FLOP]"""
    cores = sum(count * forward_flop(block.layer, CORE) for count, block in _step(model, training))
    return model_flop(model, training) - 1.5 * cores


def hardware_flop(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> float:
    """Return the FLOPs of one step with what recomputation runs again (HFU's numerator). [FLOP]

    The HFU printed in [1]_ counts the attention core that runs again three times; ours counts it once.

    .. [1] Korthikanti et al. 2022, arXiv:2205.05198, appendix A.
    """
    recompute, more = recompute_of(plan, model), 0.0
    for count, block in _step(model, training)[FIRST_KIND:]:
        if recompute.mode == "selective":
            more += count * forward_flop(block.layer, recompute.modules)
        elif recompute.mode == "full":
            more += count * recompute.share * forward_flop(block.operations)
        elif recompute.mode == "per_op":
            kernels = [kernel for each in block.layer for kernel in each.forward]
            again = (run_again_share(*each) * each[0].model_flop for each in per_op_multiplies(kernels))
            more += count * float(sum(again))
    return model_flop(model, training) + more


# Memory ---------------------------------------------------------------------------------------------------------------

THROWN_AWAY = {"layernorm", "mla_up_proj", "moe_act"}
"""Modules that throw their output away and find it again (NVIDIA/Megatron-LM:megatron/core/transformer/
transformer_config.py, recompute_modules); others run again from their input."""


def kept_bytes(block: Block, recompute: Recompute) -> Number:
    """Return what a block keeps of one micro-batch for the backward. [bytes]

    Of layers that are treated differently it is the mean.
    """
    around = _sizes(each for operation in block.around for each in operation.kept)
    return around + layer_bytes(block.layer, recompute) if block.layer else around


def layer_bytes(operations: Sequence[Operation], recompute: Recompute = NOTHING) -> Number:
    """Return what one layer keeps. [bytes]"""
    if recompute.share < 1.0:
        return sum(share * layer_bytes(operations, each) for each, share in recompute.mixed)
    return (recompute.kept if recompute.mode == "full" else 1.0) * _sizes(_kept_tensors(operations, recompute))


def _sizes(tensors: Iterable[Tensor]) -> Number:
    """Bytes of tensors, each once."""
    return sum(each.nbytes * each.mean for each in {tensor.name: tensor for tensor in tensors}.values())


def _kept_tensors(operations: Sequence[Operation], recompute: Recompute) -> list[Tensor]:
    """Tensors that are in memory until the backward; some of them several times."""
    first = next(tensor for each in operations for tensor in each.reads)
    if recompute.mode == "full":
        return [first]
    if recompute.mode == "per_op":
        return _kept_per_op(operations, first)
    modules = recompute.modules
    kept = [tensor for each in operations if each.module not in modules for tensor in each.kept]
    gone: set[str] = set()
    parts = {name: frozenset(RECOMPUTE_MODULES[name]) for name in recompute.names}
    for name in recompute.names:
        if any(parts[name] < each for each in parts.values()):
            continue  # it is a part of another that runs again
        region = [each for each in operations if each.module in RECOMPUTE_MODULES[name]]
        made = {tensor.name for each in region for tensor in each.writes}
        read = [tensor for each in region for tensor in each.reads if tensor.name not in made]
        if name == "moe_act":  # from the copy in 8 bits, where the activation keeps that
            copies = {tensor.copy_of: tensor for each in region for tensor in each.kept}
            read = [copies.get(tensor.name, tensor) for tensor in read]
        kept += read
        gone |= made if name in THROWN_AWAY else set()
    return [tensor for tensor in kept if not {tensor.name, tensor.copy_of} & gone]


def _kept_per_op(operations: Sequence[Operation], first: Tensor) -> list[Tensor]:
    """The layer's input, the results that `per_op` saves, and what only attention has.

    What the last multiply gives goes into a sum, whose backward does not read it, and a compiler leaves it out.
    """
    multiplies = per_op_multiplies(kernel for each in operations for kernel in each.forward)
    saved = {id(kernel): places for kernel, places in multiplies[:-1]}
    cores = [each for each in operations if any(kernel.cause is Cause.ATTENTION for kernel in each.forward)]
    results = []
    for each, kernel in ((of, kernel) for of in operations for kernel in of.forward):
        places, written = saved.get(id(kernel), ()), each.writes
        if len(written) == (len(kernel.parts) or 1):  # what the matrices give are tensors of their own
            results += [written[place] for place in places]
        elif places:  # or parts of one
            share = 1.0 - run_again_share(kernel, places)
            results += [tensor.like(tensor.name, tensor.columns * share) for tensor in written]
    sent = [each for each in operations if any(item.kind in PER_OP_SENT for item in each.sent)]
    read = {tensor.name for each in cores for tensor in each.reads}
    own = [tensor for each in cores for tensor in each.kept if not {tensor.name, tensor.copy_of} & read]
    return [first, *results, *(tensor for each in (*sent, *cores) for tensor in each.writes), *own]


def gradients_alive(operations: Sequence[Operation]) -> Number:
    """Return the most that gradients of a layer's activations take at once in its backward. [bytes]

    A gradient is alive from the operation that gives its first summand to the one that wrote its tensor. Both summands
    of a sum have the gradient of that, but for one behind a dropout. An operation that kept a part of what it reads has
    it gathered again; what another holds for a moment it lets go before it gives its inputs their gradients.
    """
    alive: dict[str, Number] = {}
    most: Number = 0.0
    for each in reversed(operations):
        if each.name in ("residual", "sum of experts"):
            (first, last), (total,) = each.reads, each.writes
            alive[first.name] = first.nbytes if each.kept else 0.0
            alive[last.name] = alive.get(total.name, total.nbytes)
        else:
            most = np.maximum(most, sum(alive.values()) + each.scratch)
            for tensor in each.reads:
                alive.setdefault(tensor.name, tensor.nbytes)
            kept = {name for tensor in each.kept for name in (tensor.name, tensor.copy_of)}
            if kept and not any(tensor.name in kept for tensor in each.reads):  # it kept a part of what it reads
                again = sum(tensor.in_bytes(each.kept[0].width).nbytes for tensor in each.reads)
                most = np.maximum(most, sum(alive.values()) + again)
            most = np.maximum(most, sum(alive.values()))
        for tensor in each.writes:
            alive.pop(tensor.name, None)
    return most
