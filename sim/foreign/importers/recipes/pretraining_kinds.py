"""Recipes of trainers from scratch: llm-foundry, OLMo, nanotron, Levanter, LitGPT, GPT-NeoX. What tables cannot say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.huggingface.config import read_model
from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.pipeline_layouts import take_repeated
from sim.foreign.importers.recipes.finetuning import stored, take_targets
from sim.foreign.importers.recipes.interpolations import resolved
from sim.foreign.importers.recipes.recipe import scenario_of, whole_shape
from sim.foreign.importers.recipes.settings import Recipe, Settings, flat_keys, read_settings, take_settings
from sim.foreign.importers.recipes.sharding import take_strategy


def opened(file: Foreign, kind: str) -> tuple[Settings, Recipe]:
    """A file's keys, and what its kind's table finds in them."""
    keys = flat_keys(resolved(file.data), file, kind)
    return keys, read_settings(keys, file)


def closed(keys: Settings, recipe: Recipe, file: Foreign) -> dict[str, Any]:
    """The scenario's sections; what nobody took is noted."""
    sections = scenario_of(recipe, file)
    keys.leave()
    return sections


def _duration(recipe: Recipe, keys: Settings) -> None:
    """Composer's max_duration: batches (ba), tokens (tok, T); epochs say nothing of them."""
    name, value = keys.take("max_duration")
    found = re.fullmatch(r"([\d_.]+(?:e\d+)?)\s*(ba|tok|T|ep|)", str(value)) if value is not None else None
    if found is None or found[2] == "ep":
        if value is not None:
            keys.ledger.ignore(name, value, "the number of tokens depends on the data; see training.tokens")
        return
    number = float(found[1].replace("_", ""))
    recipe.put("run.tokens" if found[2] in ("tok", "T") else "run.steps", number if found[2] else int(number), name)
    if recipe.says("steps"):
        recipe.run["steps"] = int(recipe.run["steps"])


def _width(recipe: Recipe, keys: Settings, *names: str, each: float = 1) -> None:
    """The MLP's width from a multiple of the hidden size."""
    model, ratio = recipe.sections["model"], keys.number(*names)
    if ratio is not None and "hidden_size" in model and "intermediate_size" not in model:
        model.took("intermediate_size", round(ratio * model["hidden_size"] * each), names[0])


def read_llm_foundry(file: Foreign) -> dict[str, Any]:
    """llm-foundry's YAML: MPT by its shape, or a model of the hub by its name. Raises SpecError: a model that is no
    decoder, has experts of MegaBlocks, or is not known."""
    keys, recipe = opened(file, "llm_foundry")
    kind, model = keys.text("model.name"), recipe.sections["model"]
    if kind in ("mpt_causal_lm", "mosaic_gpt"):
        _mpt(recipe, keys)
    elif kind in ("hf_causal_lm", "fms_causal_lm"):
        model.clear()
    elif file.model is None:
        raise SpecError(f"{file.ledger.where}: model.name {short(kind)!r} is no decoder that flopcast knows")
    take_strategy(recipe, keys, "fsdp_config.sharding_strategy")
    if any(name.startswith("compile_config") for name in keys.names()):
        recipe.put("stack.compiled", True, "compile_config")
    _duration(recipe, keys)
    take_targets(recipe, keys, "model.peft_config.target_modules", "lora.args.target_modules", usual=["Wqkv"])
    return closed(keys, recipe, file)


def _mpt(recipe: Recipe, keys: Settings) -> None:
    """MPT, as MPTConfig means it: biases and learned positions unless it says otherwise."""
    model, where = recipe.sections["model"], keys.ledger.where
    for field in ("num_layers", "hidden_size", "num_heads"):
        if field not in model:
            raise SpecError(f"{where}: model.{field} is missing; MPT is described by d_model, n_heads and n_layers")
    model["name"] = "mpt"
    take_settings(recipe, keys, table("llm_foundry")["shape"])


def read_olmo(file: Foreign) -> dict[str, Any]:
    """OLMo's YAML. Its gated MLPs count both of their matrices' columns as the MLP's width."""
    keys, recipe = opened(file, "olmo")
    model = recipe.sections["model"]
    kind = keys.text("model.block_type")
    if kind not in (None, "sequential", "llama") and file.model is None:
        raise SpecError(f"{file.ledger.where}: model.block_type {short(kind)!r} is no layer that flopcast knows")
    model["name"] = "olmo"
    gated, old = keys.text("model.activation_type"), "fsdp_config" in file.data
    usual = "GELU of 2023" if old else "SwiGLU"
    said = None if gated is None else gated == "swiglu"
    model.settle("gated_mlp", said, "model.activation_type", not old, f"OLMo's default: {usual}")
    each = 0.5 if model["gated_mlp"] else 1
    width = keys.whole("model.mlp_hidden_size")
    if width is not None:
        model.took("intermediate_size", round(width * each), "model.mlp_hidden_size")
    _width(recipe, keys, "model.mlp_ratio", each=each)
    take_settings(recipe, keys, table("olmo")["shape"])
    model["max_sequence_length"] = recipe.sections["training"].get("sequence_length", 1024)
    take_strategy(recipe, keys, "fsdp_config.sharding_strategy" if old else "fsdp.sharding_strategy")
    if recipe.sections["plan"].get("zero_stage") and not old:
        recipe.default("stack.gradient_precision", "bf16", "OLMo's default: olmo/config.py, FSDPConfig.precision")
    compiled = any(name.startswith("compile") for name in keys.names())
    recipe.put("stack.compiled", compiled, "compile" if compiled else "no compile")
    _duration(recipe, keys)
    word = str(keys.ledger.settings.get("activation_checkpointing"))
    sections = closed(keys, recipe, file)
    if "_in_" in word:
        _share_of_layers(sections, word, keys)
    return sections


def _share_of_layers(sections: Mapping[str, Any], word: str, keys: Settings) -> None:
    """Layers that run again, by their numbers: the first of each so many, or all but the first."""
    known, layers = table("olmo")["repeated"], int(whole_shape(sections["model"])["num_layers"])
    if word not in known:
        raise keys.wrong(
            "activation_checkpointing", word, f"must be whole_layer, fine_grained or one of {', '.join(known)}"
        )
    again, every = known[word]
    firsts = -(-layers // every)
    take_repeated(
        sections["plan"], firsts if again == 1 else layers - firsts, layers, f"activation_checkpointing {word}"
    )


def read_nanotron(file: Foreign) -> dict[str, Any]:
    """nanotron's YAML: its model_config is that of a model of the hub. Raises SpecError: a config of no architecture
    that is known, or experts."""
    keys, recipe = opened(file, "nanotron")
    model = file.data.get("model")
    config = model.get("model_config") if isinstance(model, Mapping) else None
    config = config if isinstance(config, Mapping) else {}
    if file.model is None:
        recipe.sections["model"].update(_config(config, file))
    mode = keys.text("parallelism.tp_mode")
    if mode is not None and mode.lower() not in (*table("nanotron")["sequence_parallel"], "all_reduce"):
        raise keys.wrong("parallelism.tp_mode", mode, "must be ALL_REDUCE or REDUCE_SCATTER")
    if recipe.sections["plan"].get("tp", 1) > 1 and mode is not None:
        whole = mode.lower() in table("nanotron")["sequence_parallel"]
        recipe.put("plan.sequence_parallel", whole, "parallelism.tp_mode")
    if recipe.sections["plan"].get("ep", 1) > 1:
        why = "priced as spread over the data-parallel replicas, which it takes no GPUs beside"
        file.ledger.ignore("parallelism.expert_parallel_size", recipe.sections["plan"]["ep"], why, matters=True)
    return closed(keys, recipe, file)


def _config(config: Mapping[str, Any], file: Foreign) -> dict[str, Any]:
    known = table("nanotron")["configs"]
    kind = next((ours for name, ours in known.items() if config.get(name)), None)
    experts = config.get("moe_config")
    where = file.ledger.where
    if kind is None or experts or config.get("num_experts"):
        what = "has experts" if kind is not None else "is of no architecture that is known"
        raise SpecError(f"{where}: model.model_config {what}; give --model config.json with the same shape")
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
    return section


def read_levanter(file: Foreign) -> dict[str, Any]:
    """Levanter's YAML: GPT-2 and Llama by their shapes; the vocabulary is the tokenizer's."""
    keys, recipe = opened(file, "levanter")
    model, known, kind = recipe.sections["model"], table("levanter"), keys.text("model.type") or ""
    tokenizer, checkpoint = keys.text("data.tokenizer"), keys.take("initialize_from_hf")[1]
    if isinstance(checkpoint, str):
        recipe.put("run.model", checkpoint, "initialize_from_hf")
    if file.model is None and not recipe.says("model"):
        if kind not in known["types"]:
            raise SpecError(
                f"{file.ledger.where}: model.type {short(kind)!r} is not read from this file; give --model PRESET or "
                "--model config.json"
            )
        model["name"] = kind
        for field, value in known["types"][kind].items():
            model.took(field, value, f"model.type {kind}")
        for field, value in known["usual"][kind].items():
            if field not in model:
                model.assume(field, value, f"Levanter's default of {kind}")
        length = recipe.sections["training"].get("sequence_length")
        model["max_sequence_length"] = length or model["max_sequence_length"]
        recipe.default("training.sequence_length", model["max_sequence_length"], "what the model reads")
        _vocabulary(model, tokenizer, kind, file)
    take_targets(recipe, keys, "lora.target_modules")
    each = keys.whole("trainer.per_device_parallelism", least=-1) or -1
    if each > 0:  # sequences that a device of the data axis takes at once (src/levanter/trainer.py)
        recipe.put("plan.microbatch_size", each, "trainer.per_device_parallelism")
        recipe.put("run.batch_per_gpu", each, "trainer.per_device_parallelism")
    file.ledger.assume("hardware", "GPUs", "Levanter's own is a TPU, which flopcast does not have; --cluster NAME")
    return closed(keys, recipe, file)


def _vocabulary(model: Any, tokenizer: str | None, kind: str, file: Foreign) -> None:
    found = known_model(tokenizer) if tokenizer is not None else None
    if found is not None:
        model.took("vocab_size", whole_shape(found)["vocab_size"], f"data.tokenizer {short(tokenizer)}")
    elif kind == "gpt2" and tokenizer in (None, "gpt2"):
        model.assume("vocab_size", table("levanter")["vocabularies"]["usual"], "GPT-2's tokenizer")
    else:
        model.assume("vocab_size", 32000, "the tokenizer's words are not known; --set model.vocab_size=N")


def read_litgpt(file: Foreign) -> dict[str, Any]:
    """LitGPT's YAML: fine-tuning in eager PyTorch, pre-training compiled; several GPUs under FSDP."""
    keys, recipe = opened(file, "litgpt")
    if "model.n_layer" in keys and file.model is None:
        raise SpecError(
            f"{file.ledger.where}: model.n_layer: a model of LitGPT's own numbers is not read; give --model PRESET or "
            "--model config.json"
        )
    known, stack, training = table("litgpt"), recipe.sections["stack"], recipe.sections["training"]
    pretraining = recipe.sources.get("model") in ("model_name", "model_config.name") or not recipe.says("model")
    framework = "pytorch-fsdp" if pretraining else "pytorch"
    stack.took("framework", framework, "LitGPT compiles what it pre-trains" if pretraining else "not compiled")
    chosen = [name for name in known["linears"] if name in keys and keys.flag(name)]
    if training.get("adapter_rank"):
        chosen = chosen or known["usual_linears"]
        linears = list(dict.fromkeys(known["linears"][name] for name in chosen))
        linears += ["linear_fc2"] * ("linear_fc1" in linears)
        recipe.put("training.adapter_targets", linears, ", ".join(chosen))
    name, format = keys.take("quantize")
    if format is not None:
        stored(training, name, format)
    said = recipe.run.get("gpus_per_node", 8) * recipe.run.get("nodes", 1)
    several = (file.given.gpus or said) > 1
    recipe.default("plan.zero_stage", 3 if several else 0, "FSDP where there are several GPUs")
    full = several and not pretraining
    recipe.default("plan.recompute", "full" if full else "none", "LitGPT's FSDP of fine-tuning" if full else "LitGPT's")
    return closed(keys, recipe, file)


def read_gpt_neox(file: Foreign) -> dict[str, Any]:
    """GPT-NeoX's YAML: the model by its shape, degrees, and DeepSpeed's settings beside them."""
    plain = {str(key).replace("-", "_"): value for key, value in file.data.items()}
    off = ("pipe_parallel_size", "model_parallel_size", "num_gpus", "num_nodes")  # zero: there is no such cut
    plain = {key: value for key, value in plain.items() if not (key in off and value in (0, -1))}
    keys, recipe = opened(replace(file, data=plain), "gpt_neox")
    model, known, activation = recipe.sections["model"], table("gpt_neox"), keys.text("activation") or "gelu"
    model["name"] = "gpt-neox"
    gated, llama = activation in known["gated"], keys.raw("mlp_type") == "llama"
    model.took("gated_mlp", gated or llama, f"activation {activation}" + ", mlp_type llama" * llama)
    if file.model is None:
        _refuse_experts(keys)
    _width_of_neox(recipe, keys, llama)
    if keys.raw("use_bias_in_mlp") is False or llama:
        model.took("bias", False, "use_bias_in_mlp" if not llama else "mlp_type llama")
    if keys.raw("gpt_j_residual") and not keys.raw("gpt_j_tied"):
        keys.take("gpt_j_residual")  # attention and MLP side by side, each behind a norm of its own
    if "flash" in str(keys.raw("attention_config")):
        recipe.put("stack.attention", "flash", keys.take("attention_config")[0])
    _rows(recipe, keys)
    return closed(keys, recipe, file)


def _refuse_experts(keys: Settings) -> None:
    name = next((each for each in ("moe_num_experts", "num_experts") if each in keys), "moe_num_experts")
    number = keys.whole(name) or 1
    if number > 1:
        rule = "experts of GPT-NeoX are not read from its file; give --model config.json with the same shape"
        raise SpecError(f"{keys.ledger.where}: {name} = {number}: {rule}")


def _width_of_neox(recipe: Recipe, keys: Settings, llama: bool) -> None:
    """The MLP's width; of gated ones a third of what is given, so that they have as many parameters as others."""
    model, multiple = recipe.sections["model"], keys.whole("mlp_multiple_of") or 1
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


def _rows(recipe: Recipe, keys: Settings) -> None:
    """Rows of the embedding: the tokenizer's words, to a multiple of 128 and of the tensor-parallel degree."""
    model, tp = recipe.sections["model"], recipe.sections["plan"].get("tp", 1)
    file, kind = short(keys.take("vocab_file")[1] or ""), str(keys.raw("tokenizer_type") or "GPT2BPETokenizer")
    multiple = (keys.whole("make_vocab_size_divisible_by") or 128) * tp
    own = "20B_tokenizer" in file
    words = 50277 if own else 50257
    rows, source = -(-words // multiple) * multiple, f"vocab_file {file}" if own else f"tokenizer_type {kind}"
    if own or kind == "GPT2BPETokenizer":
        model.took("vocab_size", rows, f"{source}: {words:,} words, to a multiple of {multiple:,}")
    else:
        model.assume("vocab_size", rows, f"the words of {kind} {file} are not known; --set model.vocab_size=N")
