"""Mixtures of experts and latent attention in Megatron-LM's arguments.

Defaults are those of megatron/training/arguments.py and megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re
from typing import Any

from sim.errors import SpecError
from sim.specs.importers.arguments import Arguments
from sim.specs.importers.ledger import Ledger, short

_PIECE = re.compile(r"\[([01](?:,[01]){0,999})\](?:\*(\d{1,4}))?")
"""Of a list of layers with (1) and without (0) experts: `[0]*3`, `[0,1]`."""
_MOST_LAYERS = 100_000


def read_latent(arguments: Arguments, model: dict[str, Any], ledger: Ledger) -> None:
    """Latent attention, laid into `model`."""
    if not arguments.has("multi-latent-attention"):
        return

    def take(name: str, default: int) -> int:
        value = arguments.whole(name, least=0)
        if value is not None:
            return int(ledger.took(f"--{name}", value, "latent attention"))
        return int(ledger.assume(f"--{name}", default, "Megatron-LM's default"))

    turning = take("qk-pos-emb-head-dim", 64)
    model["head_dim"] = take("qk-head-dim", 128) + turning
    model["rotary_head_dim"] = turning
    model["value_head_dim"] = take("v-head-dim", 128)
    model["key_value_rank"] = take("kv-lora-rank", 32)
    model["query_rank"] = take("q-lora-rank", 0)
    model.pop("num_kv_heads", None)  # every head has keys and values of its own
    if model.pop("query_key_norm", None) is None:
        ledger.assume("model.key_value_rank", model["key_value_rank"], "latent vectors are normed in flopcast always")


def read_experts(arguments: Arguments, model: dict[str, Any], plan: dict[str, Any], ledger: Ledger) -> None:
    """Experts, laid into `model`, and how they are dealt over GPUs, into `plan`.

    Raises
    ------
    SpecError
        Layers without experts that are not the first, or experts cut over tensor-parallel ranks.
    """
    experts = arguments.whole("num-experts")
    ep = arguments.whole("expert-model-parallel-size")
    cut = arguments.whole("expert-tensor-parallel-size")
    if experts in (None, 1):
        return
    model["num_experts"] = ledger.took("model.num_experts", experts, "--num-experts")
    for field, name in (
        ("experts_per_token", "moe-router-topk"),
        ("expert_intermediate_size", "moe-ffn-hidden-size"),
        ("shared_expert_intermediate_size", "moe-shared-expert-intermediate-size"),
    ):
        value = arguments.whole(name)
        if value is not None:
            model[field] = ledger.took(f"model.{field}", value, f"--{name}")
    if "experts_per_token" not in model:
        default = "Megatron-LM's default of --moe-router-topk"
        model["experts_per_token"] = ledger.assume("model.experts_per_token", 2, default)
    if "expert_intermediate_size" not in model:
        ledger.assume("model.expert_intermediate_size", "like intermediate_size", "no --moe-ffn-hidden-size")
    if arguments.has("moe-shared-expert-gate"):
        model["shared_expert_gate"] = ledger.took("model.shared_expert_gate", True, "--moe-shared-expert-gate")
    frequency = arguments.text("moe-layer-freq")
    if frequency is not None:
        dense = _layers_without(frequency, model["num_layers"], ledger)
        model["num_dense_layers"] = ledger.took("model.num_dense_layers", dense, "--moe-layer-freq")
    if ep is None:
        plan["ep"] = ledger.assume("plan.ep", 1, "Megatron-LM's default of --expert-model-parallel-size")
    else:
        plan["ep"] = ledger.took("plan.ep", ep, "--expert-model-parallel-size")
    if cut is not None and cut > 1:
        raise SpecError(
            f"{ledger.where}: --expert-tensor-parallel-size {cut} cuts each expert over GPUs, which flopcast does not "
            "model; set it to 1 and raise --expert-model-parallel-size instead"
        )
    if plan["tp"] > 1 and cut is None:
        why = "experts are taken whole, as with --expert-tensor-parallel-size 1; Megatron-LM would cut them by tp"
        ledger.assume("plan.ep", plan["ep"], why)


def _layers_without(frequency: str, layers: int, ledger: Ledger) -> int:
    """How many first layers have no experts: of `1`, or of a list such as `([0]*3+[1]*58)`, which is not executed."""

    def wrong(rule: str) -> SpecError:
        return SpecError(f"{ledger.where}: --moe-layer-freq {short(frequency)!r} {rule}")

    text = re.sub(r"[\s'\"]", "", frequency)
    if text == "1":
        return 0
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    found = [_PIECE.fullmatch(piece) for piece in text.split("+")]
    if not all(found):
        raise wrong("must be 1 or a list such as ([0]*3+[1]*58): layers with experts must follow all layers without")
    runs = [(piece[1].split(","), int(piece[2] or 1)) for piece in found if piece is not None]
    if sum(len(marks) * times for marks, times in runs) > _MOST_LAYERS:
        raise wrong(f"lists more than {_MOST_LAYERS:,} layers")
    marks = [mark for marks, times in runs for mark in marks * times]
    if len(marks) != layers:
        raise wrong(f"lists {len(marks)} layers, but --num-layers is {layers}")
    dense = marks.count("0")
    if "1" in marks[:dense]:
        raise wrong(
            "mixes layers with and without experts: flopcast deals such layers only where those without come first"
        )
    return dense


def exchange(arguments: Arguments, ledger: Ledger) -> dict[str, Any]:
    """How tokens travel to experts: fields of the stack."""
    changes: dict[str, Any] = {}
    kind = arguments.text("moe-token-dispatcher-type")
    backend = arguments.text("moe-flex-dispatcher-backend")
    if arguments.has("moe-enable-deepep") or kind == "flex" or backend is not None:
        source = f"--moe-flex-dispatcher-backend {backend}" if backend else "--moe-enable-deepep"
        changes["deduplicated_dispatch"] = ledger.took("stack.deduplicated_dispatch", True, source)
    elif kind == "allgather":
        ledger.ignore("--moe-token-dispatcher-type", kind, "priced as all-to-alls, which send less")
    elif kind is not None:
        ledger.took("stack.deduplicated_dispatch", False, f"--moe-token-dispatcher-type {kind}")
    if arguments.has("overlap-moe-expert-parallel-comm"):
        source = "--overlap-moe-expert-parallel-comm"
        changes["overlap_experts"] = ledger.took("stack.overlap_experts", True, source)
    return changes
