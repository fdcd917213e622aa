"""Steps of recipes: which model is trained, by its name, builder or numbers, for how long, and MaxText's mesh."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from sim.foreign.importers.huggingface.config import read_model
from sim.foreign.importers.huggingface.hub_models import known_model, whole_shape
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.recipes.finetuning import adapted, stored
from sim.foreign.importers.recipes.rows import Recipe


def shape(recipe: Recipe) -> None:
    """Learn `layers` and `experts` of the scenario's model, the caller's, or the one that the file names; None where
    none is known."""
    found = recipe.scenario.get("model", recipe.file.model) or known_model(recipe.run.get("model", ""))
    whole = whole_shape(found) if found else {}
    recipe.known |= {"layers": whole.get("num_layers"), "experts": whole.get("num_experts")}


def vocabulary(recipe: Recipe) -> None:
    """Learn `words` of the model of the hub that the tokenizer is named after; None where it is not known."""
    found = known_model(recipe.known["tokenizer"] or "")
    recipe.known["words"] = whole_shape(found)["vocab_size"] if found else None


def duration(recipe: Recipe) -> None:
    """Composer's max_duration: batches (ba), tokens (tok, T); epochs say nothing of them."""
    name, value = recipe.keys.take("max_duration")
    found = re.fullmatch(r"([\d_.]+(?:e\d+)?)\s*(ba|tok|T|)", str(value))
    if found is not None:
        number, tokens = float(found[1].replace("_", "")), found[2] in ("tok", "T")
        recipe.put("run.tokens" if tokens else "run.steps", number if tokens else int(number), name)
    elif value is not None:
        recipe.keys.ledger.ignore(name, value, "the number of tokens depends on the data; see training.tokens")


def nanotron_model(recipe: Recipe) -> None:
    """nanotron's model_config, which is that of a model of the hub."""
    model, known, file = recipe.file.data.get("model"), table("nanotron")["configs"], recipe.file
    found = model.get("model_config") if isinstance(model, Mapping) else None
    config: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    if file.model is not None:
        return
    kind = next((ours for name, ours in known.items() if config.get(name)), None)
    if kind is None or config.get("moe_config") or config.get("num_experts"):
        what = "has experts" if kind is not None else "is of no architecture that is known"
        raise recipe.refused(f"model.model_config {what}; give --model config.json with the same shape")
    plain = {
        key: int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,9}(_\d{3})+", value) else value
        for key, value in config.items()
        if key not in known and not str(key).startswith("_")
    }
    window = plain.pop("sliding_window_size", None)
    if window is not None:
        why = "priced as attention to everything before"
        file.ledger.ignore("model.model_config.sliding_window_size", window, why, matters=True)
    section = read_model({"model_type": kind, **plain}, file.ledger)
    if kind == "qwen2" and config.get("attention_bias") is False:
        section.pop("qkv_bias", None)
    recipe.model.update(section)


def torchtune_model(recipe: Recipe) -> None:
    """The model by its builder's name, whether its base is quantised, and the linears beside which adapters stand."""
    keys, training = recipe.keys, recipe.training
    model = recipe.run.get("model", "")
    builder = model.rpartition(".")[2]
    quantised = builder.startswith("qlora_") or keys.raw("model.quantize_base") is True
    builder = builder.removeprefix("qlora_").removeprefix("lora_")
    named = recipe.run["model"] = table("torchtune")["builders"].get(builder, builder).replace("_", "-")
    if recipe.file.model is None and known_model(named, by_letters=True) is None:
        why = "it sees images, which flopcast does not model" if "vision" in builder else "it is not known"
        why += "; give --model PRESET or --model config.json"
        raise recipe.refused(f"model._component_ {short(model)}: {why}")
    if quantised:
        stored(training, "model._component_", "quantize_base")
    _, modules = keys.take("model.lora_attn_modules")
    mlp = keys.flag("model.apply_lora_to_mlp")
    if training.get("adapter_rank"):
        names = [str(each) for each in modules] if isinstance(modules, list) else []
        names += ["gate_proj", "up_proj", "down_proj"] if mlp else []
        found = adapted(names, "model.lora_attn_modules", training)
        recipe.put("training.adapter_targets", found, "model.lora_attn_modules and model.apply_lora_to_mlp")


_MAXTEXT = "maxtext"
_DEFAULT = "MaxText's default: configs/base.yml"


def _is_named(recipe: Recipe) -> bool:
    """Whether model_name is a known model's, whose own file is laid over this one's keys (src/MaxText/pyconfig.py,
    update_model_vars)."""
    name = recipe.run.get("model", "default")
    known = table(_MAXTEXT)["models"].get(name.lower(), name)
    found = None if name == "default" else known_model(known, by_letters=True)
    shape = {} if found is None else whole_shape(found)
    for field, value in recipe.model.items():
        if field in shape and shape[field] != value:
            why = f"model_name {short(name)} says {shape[field]}, and counts"
            recipe.file.ledger.ignore(f"model.{field}", value, why)
    return found is not None


def maxtext_model(recipe: Recipe) -> None:
    """The shape, from base_*, or the name's; the block says what its layers are."""
    keys, file, known = recipe.keys, recipe.file, table(_MAXTEXT)
    model, block = recipe.model, keys.text("decoder_block")
    gates, tied = keys.take("mlp_activations")[1], keys.flag("logits_via_embedding")
    if _is_named(recipe) or "num_layers" not in model or file.model is not None:
        model.clear()
        if recipe.run.get("model") == "default":
            recipe.run.pop("model")
        return
    recipe.run.pop("model", None)
    if block is not None and block not in known["blocks"]:
        why = "is not described by the numbers of this file; give --model PRESET or --model config.json"
        raise recipe.refused(f"decoder_block {short(block)!r} {why}")
    model["name"] = block or "maxtext"
    for field, value in known["blocks"][block or "default"].items():
        model.took(field, value, f"decoder_block {block or 'llama2'}")
    if model["position"] == "learned":
        model["max_sequence_length"] = recipe.training.get("sequence_length", 2048)
    for field, value in known["usual"].items():
        if field not in model:
            model.assume(field, value, _DEFAULT)
    model.settle("gated_mlp", len(gates) == 2 if isinstance(gates, list) else None, "mlp_activations", True, _DEFAULT)
    model.settle("tied_embeddings", tied, "logits_via_embedding", False, _DEFAULT)
    if model.get("num_experts", 1) < 2:
        for field in ("num_experts", "experts_per_token", "expert_intermediate_size"):
            model.pop(field, None)


def mesh(recipe: Recipe) -> None:
    """Degrees from the axes of the mesh, inside a slice or node and between them. -1 stands for all GPUs that are left.
    Experts' axis takes GPUs of its own, which are replicas to attention."""
    known, keys, found = table(_MAXTEXT), recipe.keys, dict[str, int]()
    for degree, names in known["axes"].items():
        axes = [f"{where}{name}" for name in names for where in ("ici_", "dcn_")]
        values = [(keys.whole(axis, least=-1), known["left_axes"].get(axis, 1)) for axis in axes]
        whole = [usual if value is None else value for value, usual in values]
        found[degree] = -1 if -1 in whole else prod(whole)
        if degree in ("tp", "cp", "pp", "experts", "single") and found[degree] < 1:
            raise recipe.refused(f"one of {', '.join(axes)} is -1, all GPUs left; write its number")
        if degree in ("tp", "cp", "pp"):
            recipe.put(f"plan.{degree}", found[degree], f"the mesh's axes {', '.join(names)}")
    if found["single"] > 1:
        raise recipe.refused(f"axes of {', '.join(known['axes']['single'])} are not modelled")
    data, fsdp, experts, source = found["replicated"], found["sharded"], found["experts"], "the mesh's axes"
    recipe.put("plan.zero_stage", 0 if fsdp == 1 else 3, f"{source} of fsdp")
    if fsdp > 1:
        recipe.put("run.sharded", fsdp * experts, f"{source} of fsdp and experts")
    if fsdp == 1 and data > 0:
        recipe.put("run.sharded", data * experts, f"{source} of data and experts")
    elif data > 1:
        recipe.put("run.replicated", data, f"{source} of data")
    recipe.known["experts"] = experts
