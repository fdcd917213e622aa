"""Steps of recipes that train from scratch: llm-foundry, OLMo, nanotron, Levanter, LitGPT and GPT-NeoX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sim.foreign.importers.huggingface.config import read_model
from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.pipeline_layouts import take_repeated
from sim.foreign.importers.recipes.finetuning import stored, take_targets
from sim.foreign.importers.recipes.recipe import whole_shape
from sim.foreign.importers.recipes.rows import RecipeRows
from sim.foreign.importers.recipes.sharding import take_strategy


def strategy(rows: RecipeRows, name: str) -> None:
    """FSDP's sharding strategy."""
    take_strategy(rows.recipe, rows.keys, name)


def targets(rows: RecipeRows, names: Iterable[str], usual: Iterable[str] = ()) -> None:
    """The linears beside which adapters stand."""
    take_targets(rows.recipe, rows.keys, *names, usual=usual)


def duration(rows: RecipeRows) -> None:
    """Composer's max_duration: batches (ba), tokens (tok, T); epochs say nothing of them."""
    name, value = rows.keys.take("max_duration")
    found = re.fullmatch(r"([\d_.]+(?:e\d+)?)\s*(ba|tok|T|ep|)", str(value)) if value is not None else None
    if found is None or found[2] == "ep":
        if value is not None:
            why = "the number of tokens depends on the data; see training.tokens"
            rows.keys.ledger.ignore(name, value, why)
        return
    number = float(found[1].replace("_", ""))
    tokens = found[2] in ("tok", "T")
    rows.recipe.put("run.tokens" if tokens else "run.steps", number if found[2] else int(number), name)
    if rows.recipe.says("steps"):
        rows.recipe.run["steps"] = int(rows.recipe.run["steps"])


def olmo_width(rows: RecipeRows) -> None:
    """The MLP's width; of gated ones OLMo counts both matrices' columns."""
    model, keys = rows.recipe.sections["model"], rows.keys
    each = 0.5 if model["gated_mlp"] else 1
    width, ratio = keys.whole("model.mlp_hidden_size"), keys.number("model.mlp_ratio")
    if width is not None:
        model.took("intermediate_size", round(width * each), "model.mlp_hidden_size")
    elif ratio is not None and "hidden_size" in model:
        model.took("intermediate_size", round(ratio * model["hidden_size"] * each), "model.mlp_ratio")


def share_of_layers(rows: RecipeRows) -> None:
    """Layers that run again, by their numbers: the first of each so many, or all but the first."""
    name, known = "activation_checkpointing", table("olmo")["repeated"]
    word = str(rows.keys.ledger.settings.get(name))
    if "_in_" not in word:
        return
    if word not in known:
        raise rows.keys.wrong(name, word, f"must be whole_layer, fine_grained or one of {', '.join(known)}")
    (again, every), layers = known[word], int(whole_shape(rows.sections["model"])["num_layers"])
    firsts = -(-layers // every)
    take_repeated(rows.plan, firsts if again == 1 else layers - firsts, layers, f"{name} {word}")


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


def levanter_model(rows: RecipeRows) -> None:
    """GPT-2, Llama and Mistral by their shapes; the vocabulary is the tokenizer's."""
    model, known, recipe = rows.recipe.sections["model"], table("levanter"), rows.recipe
    kind, tokenizer = rows.known["kind"] or "", rows.known["tokenizer"]
    if rows.file.model is not None or recipe.says("model"):
        return
    if kind not in known["types"]:
        why = "is not read from this file; give --model PRESET or --model config.json"
        raise rows.refused(f"model.type {short(kind)!r} {why}")
    model["name"] = kind
    for field, value in known["types"][kind].items():
        model.took(field, value, f"model.type {kind}")
    for field, value in known["usual"][kind].items():
        if field not in model:
            model.assume(field, value, f"Levanter's default of {kind}")
    model["max_sequence_length"] = recipe.sections["training"].get("sequence_length") or model["max_sequence_length"]
    recipe.default("training.sequence_length", model["max_sequence_length"], "what the model reads")
    found = known_model(tokenizer) if tokenizer is not None else None
    if found is not None:
        model.took("vocab_size", whole_shape(found)["vocab_size"], f"data.tokenizer {short(tokenizer)}")
    elif kind == "gpt2" and tokenizer in (None, "gpt2"):
        model.assume("vocab_size", known["vocabularies"]["usual"], "GPT-2's tokenizer")
    else:
        model.assume("vocab_size", 32000, "the tokenizer's words are not known; --set model.vocab_size=N")


def litgpt_adapters(rows: RecipeRows) -> None:
    """The linears beside which LitGPT's adapters stand, what their base is stored in, and whether GPUs are several."""
    keys, known, training = rows.keys, table("litgpt"), rows.recipe.sections["training"]
    chosen = [name for name in known["linears"] if name in keys and keys.flag(name)]
    if training.get("adapter_rank"):
        chosen = chosen or known["usual_linears"]
        linears = list(dict.fromkeys(known["linears"][name] for name in chosen))
        linears += ["linear_fc2"] * ("linear_fc1" in linears)
        rows.recipe.put("training.adapter_targets", linears, ", ".join(chosen))
    base(rows, "quantize")
    said = rows.recipe.run.get("gpus_per_node", 8) * rows.recipe.run.get("nodes", 1)
    rows.known["several"] = (rows.file.given.gpus or said) > 1


def base(rows: RecipeRows, name: str) -> None:
    """A base whose weights are stored in fewer bits."""
    value = rows.keys.take(name)[1]
    if value is not None:
        stored(rows.recipe.sections["training"], name, value)


def neox_model(rows: RecipeRows) -> None:
    """GPT-NeoX's MLPs: of gated ones a third of the width that is given, so that they have as many parameters."""
    model, keys, llama = rows.recipe.sections["model"], rows.keys, rows.known["mlp_type"] == "llama"
    name = next((each for each in ("moe_num_experts", "num_experts") if each in keys), "moe_num_experts")
    number = keys.whole(name) or 1
    if number > 1:
        rule = "experts of GPT-NeoX are not read from its file; give --model config.json with the same shape"
        raise rows.refused(f"{name} = {number}: {rule}")
    multiple = keys.whole("mlp_multiple_of") or 1
    said, source = keys.whole("intermediate_size"), "intermediate_size"
    if model["gated_mlp"] and "hidden_size" in model:
        if llama:  # mlp_type of 2023
            width, multiple = said or int(8 * model["hidden_size"] / 3), 1 if said else 256
        else:  # megatron/model/transformer.py, ParallelMLP
            width = int((said or 4 * model["hidden_size"]) * 2 / 3) // 2
            source = f"a third of intermediate_size {said}, as gated MLPs have"
        width = -(-width // multiple) * multiple
        model.settle("intermediate_size", said and width, source, width, "GPT-NeoX's default of gated MLPs")
    elif said:
        model.took("intermediate_size", said, source)


def neox_words(rows: RecipeRows) -> None:
    """Rows of the embedding: the tokenizer's words, to a multiple of 128 and of the tensor-parallel degree."""
    model, keys = rows.recipe.sections["model"], rows.keys
    file, kind = short(keys.take("vocab_file")[1] or ""), str(keys.raw("tokenizer_type") or "GPT2BPETokenizer")
    multiple = (keys.whole("make_vocab_size_divisible_by") or 128) * rows.plan.get("tp", 1)
    own = "20B_tokenizer" in file
    words = 50277 if own else 50257
    count, source = -(-words // multiple) * multiple, f"vocab_file {file}" if own else f"tokenizer_type {kind}"
    if own or kind == "GPT2BPETokenizer":
        model.took("vocab_size", count, f"{source}: {words:,} words, to a multiple of {multiple:,}")
    else:
        model.assume("vocab_size", count, f"the words of {kind} {file} are not known; --set model.vocab_size=N")


def neox_attention(rows: RecipeRows) -> None:
    """FlashAttention, where attention_config names it."""
    if "flash" in str(rows.keys.raw("attention_config")):
        rows.recipe.put("stack.attention", "flash", rows.keys.take("attention_config")[0])
