"""Low-rank adapters (LoRA): the model's weights are frozen, and only narrow matrices beside some linears are trained.

A linear y = x W becomes y = x W + x A B, with A of k × r and B of r × n [1]_. Frozen weights have no gradients, nothing
to sum over replicas and no optimizer state; gradients of the inputs go through them as before, and inputs are kept only
for linears with adapters. Experts on a GPU share one adapter (NVIDIA-NeMo/Megatron-Bridge:src/megatron/bridge/peft/
lora.py, which wraps the grouped linear as one).

.. [1] Hu et al. 2021, arXiv:2106.09685, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from sim.arrays import Number
from sim.specs import LayerKind, ModelSpec, TrainingSpec
from sim.work.operations import BlockWork, Operation, Phase, matmul, memory
from sim.work.params import counted_kinds, recurrent_widths
from sim.work.stages import ModelPart

TARGETS = {
    "linear_qkv": (
        "query, key, value", "queries", "queries' latent", "keys' and values' latent", "keys and values from latent",
    ),
    "linear_proj": ("attention output",),
    "linear_fc1": ("MLP up", "experts up", "shared expert up"),
    "linear_fc2": ("MLP down", "experts down", "shared expert down"),
    "in_proj": ("mamba2 in", "gated_delta_net in", "kimi_delta_attention in"),
    "out_proj": ("mamba2 out", "gated_delta_net out", "kimi_delta_attention out"),
}  # fmt: skip
"""Linears that can have adapters, by Megatron-Core's names, and what `sim.work.pieces.linear` calls them."""
_OF_WEIGHTS = " weight gradient"


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters of one rank beside linears of some names; of each linear so many, of which a token meets one."""

    rank: int
    targets: tuple[str, ...]
    count: int = 1

    @property
    def linears(self) -> frozenset[str]:
        """As `linear` calls them."""
        return frozenset(name for target in self.targets for name in TARGETS[target])


def adapters_of(training: TrainingSpec) -> Adapters | None:
    """Of a training; None where all weights are trained."""
    if not training.adapter_rank:
        return None
    return Adapters(training.adapter_rank, training.adapter_targets, training.num_adapters)


def with_adapters(work: BlockWork, adapters: Adapters | None, width: int, stall_s: float = 0.0) -> BlockWork:
    """A block's work with its weights frozen and adapters beside its linears, in whose forward the GPU may stall."""
    if adapters is None:
        return work
    forward: list[Operation] = []
    backward: list[Operation] = []
    weights: list[Operation] = []
    for item in work.weight_grad.operations:
        name = item.name.removesuffix(_OF_WEIGHTS)
        if name not in adapters.linears or name == item.name:
            continue
        # The weights' gradient of a linear is k × n out of its tokens; experts' tokens are taken together.
        k, n, tokens, r = item.m, item.n, item.k * item.batch, adapters.rank
        own, cause, module = f"{name} adapter", item.cause, item.module
        for phase, shapes in (
            (forward, ((tokens, r, k), (tokens, n, r))),
            (backward, ((tokens, r, n), (tokens, k, r))),
            (weights, ((k, r, tokens), (r, n, tokens))),
        ):
            phase += [matmul(own, m, j, i, width, cause=cause, module=module) for m, j, i in shapes]
        # Scaled and added to what the linear gives; and to its input's gradient.
        added = memory(f"{own} added", 5 * width * tokens * n, 2, sort="add", module=module)
        forward.append(replace(added, stall_s=stall_s))
        backward.append(memory(f"{own} added", 5 * width * tokens * k, 2, sort="add", module=module))
    return BlockWork(
        work.forward + Phase(tuple(forward)),
        Phase(tuple(backward)) + work.input_grad,
        Phase(tuple(weights), work.weight_grad.collectives),
        work.recompute,
    )


class _Linear(NamedTuple):
    """A linear's name among targets, its rows and columns, and whether it belongs to routed experts."""

    target: str
    k: int
    n: int
    routed: bool = False


def adapters_forward_flop(model: ModelSpec, adapters: Adapters, tokens: float) -> float:
    """Forward multiplies of all adapters. [FLOP]"""
    flop = 0.0
    for count, kind in counted_kinds(model):
        for linear in _linears(model, kind):
            if linear.target in adapters.targets:
                met = model.experts_per_token if linear.routed else 1
                flop += count * met * 2.0 * tokens * adapters.rank * (linear.k + linear.n)
    return flop


def _linears(model: ModelSpec, kind: LayerKind) -> Iterator[_Linear]:
    """Linears of one layer, uncut."""
    h, inputs = model.hidden_size, 2 if model.gated_mlp else 1
    values = model.num_heads * model.value_head_dim
    if kind.recurs:
        wide = recurrent_widths(model, kind)
        yield _Linear("in_proj", h, wide.mixed + wide.gates)
        yield _Linear("out_proj", wide.values, h)
    elif kind.attends and model.key_value_rank:
        turning, queries = model.rotary_head_dim, model.num_heads * model.head_dim
        if model.query_rank:
            yield _Linear("linear_qkv", h, model.query_rank)
        yield _Linear("linear_qkv", model.query_rank or h, queries)
        yield _Linear("linear_qkv", h, model.key_value_rank + turning)
        yield _Linear("linear_qkv", model.key_value_rank, queries - model.num_heads * turning + values)
    elif kind.attends:
        keys = model.num_kv_heads * (model.head_dim + model.value_head_dim)
        yield _Linear("linear_qkv", h, model.num_heads * model.head_dim + keys + values * model.attention_gate)
    if kind.attends:
        yield _Linear("linear_proj", values, h)
    widths = {
        "dense": [(model.intermediate_size, False)],
        "sparse": [(model.expert_intermediate_size, True), (model.shared_expert_intermediate_size, False)],
    }
    for inner, routed in widths.get(kind.mlp, []):
        if inner:
            yield _Linear("linear_fc1", h, inputs * inner, routed)
            yield _Linear("linear_fc2", inner, h, routed)


def adapter_params(
    part: ModelPart, model: ModelSpec, adapters: Adapters, tp: Number, etp: Number = 1
) -> tuple[Number, Number]:
    """Adapters' parameters of a part of the model on one GPU, and those of them that stand beside experts.

    Tensor parallelism cuts them; beside experts every GPU has one, cut as these are.
    """
    others: Number = 0.0
    experts: Number = 0.0
    for count, kind in zip((*part.layers, part.mtps), (*model.layer_kinds, model.mtp_kind), strict=False):
        for linear in _linears(model, kind):
            rank = adapters.count * adapters.rank
            held = count * rank * (linear.k + linear.n) * (linear.target in adapters.targets)
            experts, others = experts + held / etp * linear.routed, others + held / tp * (not linear.routed)
    return others + experts, experts


def spared_bytes(
    model: ModelSpec,
    adapters: Adapters,
    kind: LayerKind,
    tokens: Number,
    own: Number,
    tp: Number,
    etp: Number,
    kept: float,
    width: int,
) -> Number:
    """Of what a layer keeps for its weights' gradients, what frozen weights spare; less what adapters keep. [bytes]

    The norm's output before a linear without an adapter and the activation's output; before one with an adapter it is
    kept in 16 bits, whatever the linear multiplies in.

    Parameters
    ----------
    tokens, own : that one GPU works on, and that it norms.
    kept, width : bytes of a number that a linear's input is kept in, and of an activation.
    """
    h, narrow = model.hidden_size, width * adapters.rank
    targets = set(adapters.targets)

    def input_of(target: str, columns: Number) -> Number:
        return columns * (kept if target not in targets else kept - width) - narrow * own * (target in targets)

    spared: Number = 0.0
    if kind.mixer != "none":
        spared = spared + input_of("in_proj" if kind.recurs else "linear_qkv", own * h)
    if kind.mlp == "dense":
        inner = tokens * model.intermediate_size / tp
        spared = spared + input_of("linear_fc1", own * h) + input_of("linear_fc2", inner)
    elif kind.mlp == "sparse":
        copies = own * model.experts_per_token * etp
        spared = spared + input_of("linear_fc1", copies * h)
        spared = spared + input_of("linear_fc2", copies * model.expert_intermediate_size / etp)
    return spared
