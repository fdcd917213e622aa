"""The weight matrices of a model's blocks, one by one, as one GPU holds them: what optimizers that look at shapes need.

Query, key, value, gate and up are matrices of their own, as Muon and Adafactor take them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Number
from sim.specs import LayerKind, ModelSpec
from sim.work.params import recurrent_widths
from sim.work.stages import ModelPart


@dataclass(frozen=True, slots=True)
class Matrix:
    """Some matrices that are alike, on one GPU; numbers may be arrays.

    of_experts : they belong to experts. is_table : it is the embedding's or the head's.
    """

    rows: Number
    columns: Number
    count: Number = 1
    of_experts: bool = False
    is_table: bool = False

    @property
    def params(self) -> Number:
        """Numbers in them."""
        return self.count * self.rows * self.columns


def matrices_of(part: ModelPart, model: ModelSpec, tp: Number, ep: Number = 1, etp: Number = 1) -> tuple[Matrix, ...]:
    """The matrices of a block (`sim.work.stages.blocks_of`) on one GPU. Takes arrays of degrees.

    Each of a tensor-parallel group's GPUs has its share of a matrix, cut as `sim.work.stages.part_params` says.
    """
    tables = (Matrix(model.vocab_size / tp, model.hidden_size, is_table=True),)
    if np.any(part.embeddings) or np.any(part.heads):
        # A tied head on another stage than the embedding has a copy of the table.
        return tables
    mtp = bool(np.any(part.mtps))
    kinds = (kind for count, kind in zip(part.layers, model.layer_kinds, strict=True) if np.any(count))
    matrices = _layer(model.mtp_kind if mtp else next(kinds), model, tp, ep, etp)
    h = model.hidden_size
    return (*tables, Matrix(h / tp, 2 * h), *matrices) if mtp else matrices


def _layer(kind: LayerKind, model: ModelSpec, tp: Number, ep: Number, etp: Number) -> tuple[Matrix, ...]:
    mixer: tuple[Matrix, ...] = ()
    if kind.recurs:
        mixer = _recurrent(kind, model, tp)
    elif kind.attends:
        mixer = _attention(model, tp)
    if kind.sparse:
        return (*mixer, *_experts(model, tp, ep, etp))
    return (*mixer, *_mlp(model.intermediate_size, model, tp)) if kind.mlp == "dense" else mixer


def _recurrent(kind: LayerKind, model: ModelSpec, tp: Number) -> tuple[Matrix, ...]:
    h, wide = model.hidden_size, recurrent_widths(model, kind)
    narrow = wide.narrow / 2
    gates = (Matrix(narrow, h, 2), Matrix(wide.values / tp, narrow, 2)) if narrow else ()
    return (Matrix((wide.mixed + wide.gates) / tp, h), *gates, Matrix(h, wide.values / tp))


def _attention(model: ModelSpec, tp: Number) -> tuple[Matrix, ...]:
    h, heads = model.hidden_size, model.num_heads / tp
    output = Matrix(h, heads * model.value_head_dim)
    if not model.key_value_rank:
        kept = np.maximum(model.num_kv_heads / tp, 1)  # each GPU holds at least one key/value head
        return (
            Matrix(heads * model.head_dim, h),
            Matrix(kept * model.head_dim, h),
            Matrix(kept * model.value_head_dim, h),
            output,
        )
    queries = [Matrix(heads * model.head_dim, model.query_rank or h)]
    if model.query_rank:
        queries.append(Matrix(model.query_rank, h))
    up = heads * (model.head_dim - model.rotary_head_dim + model.value_head_dim)
    down = model.key_value_rank + model.rotary_head_dim
    return (*queries, Matrix(down, h), Matrix(up, model.key_value_rank), output)


def _mlp(width: int, model: ModelSpec, tp: Number) -> tuple[Matrix, ...]:
    return (
        Matrix(width / tp, model.hidden_size, 2 if model.gated_mlp else 1),
        Matrix(model.hidden_size, width / tp),
    )


def _experts(model: ModelSpec, tp: Number, ep: Number, etp: Number) -> tuple[Matrix, ...]:
    count, width, h = model.num_experts / ep, model.expert_intermediate_size / etp, model.hidden_size
    latent = model.expert_latent_size
    shared = model.shared_expert_intermediate_size
    return (
        Matrix(width, latent or h, count * (2 if model.gated_mlp else 1), of_experts=True),
        Matrix(latent or h, width, count, of_experts=True),
        Matrix(model.num_experts, h),
        *([Matrix(latent, h, 2)] if latent else []),
        *(_mlp(shared, model, tp) if shared else ()),
    )
