"""Experts in the arguments of Megatron-LM, Pai-Megatron-Patch and MindSpeed, and how they are dealt over GPUs."""

from __future__ import annotations

from sim.errors import SpecError
from sim.foreign.importers.huggingface.layer_kinds import dealt_experts
from sim.foreign.importers.keys import Arguments
from sim.foreign.importers.ledger import Section
from sim.foreign.importers.megatron.deepspeed_file import is_deepspeed_mixture, read_mixture
from sim.foreign.importers.megatron.layers import layer_marks, take_fields


def take_experts(arguments: Arguments, model: Section, plan: Section) -> None:
    """Take experts into the model, and how GPUs share them into the plan.

    Raises
    ------
    SpecError
        A value that breaks a rule, or experts whose width is not known.
    """
    if is_deepspeed_mixture(arguments):
        read_mixture(arguments, model, plan)
        return
    experts = arguments.whole("num-experts")
    ep, cut = arguments.whole("expert-model-parallel-size"), arguments.whole("expert-tensor-parallel-size")
    if experts in (None, 1):
        return
    model.took("num_experts", experts, "--num-experts")
    take_fields(arguments, model, "expert_fields")
    _shared(arguments, model)
    if "experts_per_token" not in model:
        model.assume("experts_per_token", 2, "Megatron-LM's default of --moe-router-topk")
    if "expert_intermediate_size" not in model:
        why = "no --moe-ffn-hidden-size"
        model.ledger.assume("model.expert_intermediate_size", "like intermediate_size", why)
    _layers(arguments, model)
    named = "--expert-model-parallel-size"
    if arguments.has("moe-tp-extend-ep"):  # MindSpeed's: the tensor-parallel ranks hold experts of their own
        plan.took("ep", (ep or 1) * plan["tp"], f"{named} times tp, --moe-tp-extend-ep")
        return
    deal_experts(plan, ep, cut)


def deal_experts(plan: Section, ep: int | None, cut: int | None) -> None:
    """How many GPUs share the experts, and a single one."""
    named = "--expert-model-parallel-size"
    plan.settle("ep", ep, named, 1, f"Megatron-LM's default of {named}")
    named, default = "--expert-tensor-parallel-size", plan["tp"]
    if (cut or default) > 1:
        plan.settle("etp", cut, named, default, f"Megatron-LM's default of {named}: as --tensor-model-parallel-size")
    elif cut is not None:
        plan.ledger.took("plan.etp", cut, named)


def _shared(arguments: Arguments, model: Section) -> None:
    """Experts that every token goes through: by their width, or by how many there are of the others' width."""
    named, shared = "--num-shared-experts", arguments.whole("num-shared-experts")
    if shared is None:
        named, shared = "--n-shared-experts", arguments.whole("n-shared-experts", least=0)
    if arguments.has("enable-shared-expert") and shared is None and "shared_expert_intermediate_size" not in model:
        raise SpecError(
            f"{model.ledger.where}: --enable-shared-expert without --num-shared-experts: their width is not known; "
            "give --moe-shared-expert-intermediate-size"
        )
    if shared and "shared_expert_intermediate_size" not in model:
        width = shared * model.get("expert_intermediate_size", model.get("intermediate_size", 4 * model["hidden_size"]))
        model.took("shared_expert_intermediate_size", width, f"{named} of the experts' width")
        first = arguments.raw("moe-layer-freq") or ["1"]
        if named == "--num-shared-experts" and first[0].isdigit():
            # megatron_patch/model/deepseek_v2/transformer_layer.py
            arguments.take("moe-layer-freq")
            why = "--moe-layer-freq: Pai-Megatron-Patch's DeepSeek has an MLP in so many first layers"
            model.took("num_dense_layers", int(first[0]), why)
    if arguments.has("moe-shared-expert-gate"):
        model.took("shared_expert_gate", True, "--moe-shared-expert-gate")


def _layers(arguments: Arguments, model: Section) -> None:
    """Which layers have experts: by a frequency or a list, behind MindSpeed's first dense layers."""
    raw = arguments.raw("moe-layer-freq")
    if raw == ["-1"]:  # MindSpeed's default: all
        arguments.has("moe-layer-freq")
    first = 0
    if arguments.raw("first-k-dense-replace") in (["-1"], ["0"]):
        arguments.has("first-k-dense-replace")
    elif "first-k-dense-replace" in arguments:
        first = arguments.whole("first-k-dense-replace") or 0
    layers, named = model["num_layers"], "--moe-layer-freq"
    sparse = layer_marks(arguments, "moe-layer-freq", layers, every=lambda layer, step: layer % step == 0)
    if first:
        sparse, named = (
            [mark and layer >= first for layer, mark in enumerate(sparse or [True] * layers)],
            ("--first-k-dense-replace"),
        )
    if sparse is not None and "mlp_layer_types" not in model:
        for field, value in dealt_experts(sparse).items():
            model.took(field, value, named)
