"""Steps of recipes that say which model is trained, by its name, its builder or its numbers, and for how long."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sim.foreign.importers.huggingface.config import read_model
from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.recipes.finetuning import adapted, stored
from sim.foreign.importers.recipes.recipe import whole_shape
from sim.foreign.importers.recipes.rows import RecipeRows


def shape(rows: RecipeRows) -> None:
    """Learn `layers` and `experts` of the scenario's model, the caller's, or the one that the file names; None where
    none is known."""
    found = rows.sections.get("model", rows.file.model) or known_model(rows.recipe.run.get("model", ""))
    whole = whole_shape(found) if found else {}
    rows.known |= {"layers": whole.get("num_layers"), "experts": whole.get("num_experts")}


def vocabulary(rows: RecipeRows) -> None:
    """Learn `words` of the model of the hub that the tokenizer is named after; None where it is not known."""
    found = known_model(rows.known["tokenizer"] or "")
    rows.known["words"] = whole_shape(found)["vocab_size"] if found else None


def duration(rows: RecipeRows) -> None:
    """Composer's max_duration: batches (ba), tokens (tok, T); epochs say nothing of them."""
    name, value = rows.keys.take("max_duration")
    found = re.fullmatch(r"([\d_.]+(?:e\d+)?)\s*(ba|tok|T|)", str(value))
    if found is not None:
        number, tokens = float(found[1].replace("_", "")), found[2] in ("tok", "T")
        rows.recipe.put("run.tokens" if tokens else "run.steps", number if tokens else int(number), name)
    elif value is not None:
        rows.keys.ledger.ignore(name, value, "the number of tokens depends on the data; see training.tokens")


def nanotron_model(rows: RecipeRows) -> None:
    """nanotron's model_config, which is that of a model of the hub."""
    model, known, file = rows.file.data.get("model"), table("nanotron")["configs"], rows.file
    found = model.get("model_config") if isinstance(model, Mapping) else None
    config: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    if file.model is not None:
        return
    kind = next((ours for name, ours in known.items() if config.get(name)), None)
    if kind is None or config.get("moe_config") or config.get("num_experts"):
        what = "has experts" if kind is not None else "is of no architecture that is known"
        raise rows.refused(f"model.model_config {what}; give --model config.json with the same shape")
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
    rows.recipe.sections["model"].update(section)


def torchtune_model(rows: RecipeRows) -> None:
    """The model by its builder's name, whether its base is quantised, and the linears beside which adapters stand."""
    recipe, keys, training = rows.recipe, rows.keys, rows.recipe.sections["training"]
    model = recipe.run.get("model", "")
    builder = model.rpartition(".")[2]
    quantised = builder.startswith("qlora_") or keys.raw("model.quantize_base") is True
    builder = builder.removeprefix("qlora_").removeprefix("lora_")
    named = recipe.run["model"] = table("torchtune")["builders"].get(builder, builder).replace("_", "-")
    if rows.file.model is None and known_model(named, by_letters=True) is None:
        why = "it sees images, which flopcast does not model" if "vision" in builder else "it is not known"
        why += "; give --model PRESET or --model config.json"
        raise rows.refused(f"model._component_ {short(model)}: {why}")
    if quantised:
        stored(training, "model._component_", "quantize_base")
    _, modules = keys.take("model.lora_attn_modules")
    mlp = keys.flag("model.apply_lora_to_mlp")
    if training.get("adapter_rank"):
        names = [str(each) for each in modules] if isinstance(modules, list) else []
        names += ["gate_proj", "up_proj", "down_proj"] if mlp else []
        found = adapted(names, "model.lora_attn_modules", training)
        recipe.put("training.adapter_targets", found, "model.lora_attn_modules and model.apply_lora_to_mlp")


def prime_rl_model(rows: RecipeRows) -> None:
    """What prime-rl's [model] says by its sections: of what is computed again, compiled and adapted."""
    trainer = rows.file.data.get("trainer")
    model = {**_mapping(rows.file.data, "model"), **_mapping(trainer, "model")}
    ac = _mapping(model, "ac")
    lora = model.get("lora") or _mapping(model, "experimental").get("lora")
    rows.known |= {
        "again": "ac" in model or "ac_offloading" in model,
        "mode": ac.get("mode", "full"),
        "every": ac.get("freq", 1),
        "chosen": ac.get("targets"),
        "norms": ac.get("targets") == ["norm"],
        "compiled": model.get("compile") not in (None, False),
        "adapted": isinstance(lora, Mapping),
    }


def fewer_layers(rows: RecipeRows) -> None:
    """A model cut short to so many `layers`."""
    model = rows.sections["model"]
    number = rows.file.ledger.took("model.num_layers", rows.known["layers"], "model.debug.num_layers")
    rows.sections["model"] = {**({"preset": model} if isinstance(model, str) else model), "num_layers": number}


def _mapping(data: Any, name: str) -> Mapping[str, Any]:
    found = data.get(name) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}
