"""What recipes of fine-tuning have in common, whatever they call it: adapters, bases in fewer bits, packing, FSDP or
DeepSpeed around transformers, fused kernels.

A kind's table says under `finetuning` which keys say what: adapter, rank, targets, all_linear, quantised, packing,
stage, deepspeed, compile, checkpointing, and liger: switches of all fused kernels, or of each by the field it sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.recipes.settings import Settings
from sim.foreign.importers.recipes.sharding import deepspeed, fsdp

_TABLE = "adapters"
_EAGER = ("fused_norm", "fused_rotary", "fused_bias_activation", "fused_cross_entropy")
_CHUNKED = ("linear_cross_entropy", "CutCrossEntropy", "liger_kernel", "use_liger")
"""Parts of the names of switches whose loss comes in pieces with the head; other fused losses do not."""


def finetuning(recipe: Recipe) -> None:
    """Fields that follow from the keys of a table's `finetuning`. Raises SpecError: a stage that is no plain training
    of the model, adapters of another kind, or a value that breaks a rule."""
    keys = recipe.keys
    roles = table(recipe.kind)["finetuning"]
    _stage(keys, roles.get("stage", ()))
    adapters(recipe)
    quantised(recipe, *roles.get("quantised", ()))
    packing(recipe, *roles.get("packing", ()))
    recomputed = _checkpointing(recipe, roles)
    sharded = deepspeed(recipe, *roles.get("deepspeed", ())) or fsdp(recipe, recomputed)
    if sharded and (recipe.run.get("weights") != "16 bits" or recipe.stack.get("framework") == "deepspeed"):
        recipe.run["weights"] = "32 bits"
    around_transformers = table(recipe.kind)["framework"] == "pytorch"
    if around_transformers:
        _kernels(recipe, roles)
    if "precision" not in recipe.training and {"bf16", "fp16"} & keys.ledger.settings.keys():
        recipe.put("training.precision", "fp32", "neither bf16 nor fp16 is on")
    if not sharded and around_transformers:
        recipe.default("plan.zero_stage", 0, "neither DeepSpeed nor FSDP: every GPU holds the whole model")


def _stage(keys: Settings, names: Iterable[str]) -> None:
    """Training on single samples is priced; pairs of them are left out openly, rollouts refused."""
    name, stage = keys.take(*names) if names else ("", None)
    if stage is None:
        return
    known = table(_TABLE)["stages"]
    word = str(stage).lower()
    if word in known["plain"]:
        return
    if word in known["pairs"]:
        why = "pairs of answers and a model of reference are not priced: a step is priced as one of plain training"
        keys.ledger.ignore(name, stage, why, matters=True)
        return
    why = known["refused"].get(word, "is no training that flopcast models")
    raise keys.ledger.error(f"{name} {short(stage)!r} {why}")


def adapters(recipe: Recipe) -> None:
    """Read the rank of adapters, and the linears beside which they stand, by the keys of a table's `finetuning`. Raises
    SpecError: adapters of another kind than LoRA's."""
    keys, roles, training = recipe.keys, table(recipe.kind)["finetuning"], recipe.training
    ledger, known = keys.ledger, table(_TABLE)
    name, kind = keys.take(*roles["adapter"])
    kind = known["kinds"].get(str(kind).lower(), kind) if kind is not None else roles.get("without")
    if roles.get("switch"):
        on = keys.flag(*roles["switch"])
        kind = (kind or "lora") if (roles.get("switched", False) if on is None else on) else None
    rank_name = next((each for each in roles["rank"] if each in keys), roles["rank"][0])
    rank, targets = keys.whole(*roles["rank"]), _names(keys, roles["targets"])
    everything = bool(keys.flag(*roles["all_linear"])) if "all_linear" in roles else False
    if kind in (None, "full"):
        return
    if kind not in ("lora", "qlora"):
        rule = "trains neither all weights nor LoRA's adapters, which are what flopcast models"
        raise ledger.error(f"{name} {short(kind)!r} {rule}")
    training.settle("adapter_rank", rank, rank_name, roles.get("default_rank"), f"the default of {rank_name}")
    source, default = roles["targets"][0], roles.get("default_targets")
    if not targets and not everything and default is not None:
        targets = default
        ledger.assume(source, ", ".join(targets), "the default")
    linears = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    found = linears if everything or not targets else adapted(targets, source, training)
    if tuple(found) != linears:
        training.took("adapter_targets", list(found), source)
    else:
        ledger.took("training.adapter_targets", "all linears of layers", source)
    if kind == "qlora":
        stored(training, name, kind)


def adapted(
    targets: Iterable[str], source: str, training: Section, linears: Mapping[str, Iterable[str]] | None = None
) -> list[str]:
    """Linears by our names that the modules' names stand for; what they do not is left out.

    linears : ours -> modules of a framework that names its own; else those of the hub and of most frameworks.

    Raises SpecError: none of the names is known.
    """
    known = table(_TABLE)
    linears = linears or known["linears"]
    words = {word: ours for ours, names in linears.items() for word in names}
    found: dict[str, set[str]] = {}
    strange = []
    for target in targets:
        if target.lower() in known["everything"]:
            return list(linears)[:4]
        parts = _modules(target)
        hits = [part for part in parts if part in words]
        for part in hits:
            found.setdefault(words[part], set()).add(part)
        if not hits:
            strange.append(target)
    if not found:
        raise training.ledger.error(
            f"{source} {short(', '.join(targets))!r} names no linear that flopcast knows; say "
            "which: --set training.adapter_targets='[linear_qkv]'"
        )
    for each in strange:
        training.ledger.ignore(source, each, "not one of the linears that flopcast gives adapters", matters=True)
    few = found.get("linear_qkv", set())
    if few and few <= {"q_proj", "k_proj", "v_proj", "q", "k", "v"} and len(few) < 3:
        why = "priced as adapters on queries, keys and values alike"
        training.ledger.ignore(source, ", ".join(sorted(few)), why, matters=True)
    return [ours for ours in linears if ours in found]


def targets(recipe: Recipe, names: Iterable[str], usual: Iterable[str] = ()) -> None:
    """The linears beside which a recipe's low-rank adapters stand, by the first of these keys that is there."""
    source, said = recipe.keys.take(*names)
    training = recipe.training
    found = said if isinstance(said, list) else list(usual) if said is None else [said]
    if training.get("adapter_rank") and found and "*_proj" not in found:  # which are all of them
        recipe.put("training.adapter_targets", adapted(map(str, found), source, training), source)


def _modules(target: str) -> list[str]:
    """Names of modules in a name or in a regular expression, (q|k)_proj being two."""
    if not re.search(r"[()|\\*\[]", target):
        return [target.rpartition(".")[2].lower()]
    text = target[:2000].lower()
    for group, ending in re.findall(r"\(([a-z_|]{1,80})\)(_proj|_a_proj|_b_proj)", text):
        text += " " + " ".join(f"{part}{ending}" for part in group.split("|"))
    return re.findall(r"[a-z][a-z0-9_]*(?:_proj|_mqa)\b|\b(?:wqkv|qkv|fc[12]|w[123])\b", text)


def _names(keys: Settings, names: Iterable[str]) -> list[str]:
    """A list of names, or one text of them between commas; a regular expression is one."""
    _, value = keys.take(*names)
    if value is None:
        return []
    if isinstance(value, list):
        return [str(each) for each in value]
    text = str(value)
    return [text] if re.search(r"[()|\\\[]", text) else [each.strip() for each in text.split(",") if each.strip()]


def quantised(recipe: Recipe, *names: str) -> None:
    """A base whose weights are stored in fewer bits."""
    for name in names:
        _, value = recipe.keys.take(name)
        if value not in (None, False, "false", "none", ""):
            stored(recipe.training, name, value)


def stored(training: Section, name: str, value: Any) -> None:
    """Matrices that lie in 4 bits beside adapters; other formats of a base, and bases that are trained, are not priced.

    name, value : of a key; where the value is true, its name says the format.
    """
    word = str(name if value in (True, "true") else value).lower()
    if word not in table(_TABLE)["four_bits"] or not training.get("adapter_rank"):
        training.ledger.ignore(name, value, table(_TABLE)["fewer_bits"], matters=True)
    elif "frozen_precision" in training:
        training.ledger.took("training.frozen_precision", "nf4", f"{name}, and keys beside it")
    else:
        training.took("frozen_precision", "nf4", name)


def packing(recipe: Recipe, *names: str) -> None:
    """Whether samples are packed into full sequences, or each is one of the longest allowed."""
    keys, name = recipe.keys, next((each for each in names if each in recipe.keys), "")
    if names and keys.flag(*names):
        why = "attention is priced over whole sequences; how long the samples are: --set training.packed_length=N"
        keys.ledger.ignore(name, True, why, matters=True)
    elif names:
        why = "each sample is priced as long as the longest allowed; --set training.sequence_length=N"
        keys.ledger.ignore(name or names[0], "false" if name else "", why, matters=True)


def _checkpointing(recipe: Recipe, roles: Mapping[str, Any]) -> bool | None:
    """Layers computed again, which transformers does whole; where nothing is said the table's default holds."""
    keys, off = recipe.keys, roles.get("not_checkpointing", ())
    if off and keys.flag(*off):
        recipe.put("plan.recompute", "none", off[0])
    name, value = keys.take(*roles.get("checkpointing", ()))
    if value is None:
        where = next((each for each in roles.get("checkpointed_where", ()) if each in keys.ledger.settings), None)
        if where is not None:
            recipe.default("plan.recompute", "full", f"the default of today's tool, whose key {where} is")
        return None
    word = str(value).lower()
    if word in ("offload", "offload_disk", "unsloth"):
        keys.ledger.ignore(name, value, "the layers' inputs wait in host memory, which is not priced", matters=True)
    if word not in ("true", "false", "yes", "no", "offload", "offload_disk", "unsloth"):
        raise keys.wrong(name, value, "must be true or false")
    on = word not in ("false", "no")
    if off and not on:
        return None
    recipe.put("plan.recompute", "full" if on else "none", name)
    return on


def _kernels(recipe: Recipe, roles: dict[str, Any]) -> None:
    """The framework that runs the same code: transformers, eager or compiled, under DeepSpeed or PyTorch's own."""
    keys, stack, named = recipe.keys, recipe.stack, roles.get("liger", ())
    by_field = named if isinstance(named, dict) else dict.fromkeys(_EAGER, named)
    on = {name: _on(keys, name) for name in dict.fromkeys(name for names in by_field.values() for name in names)}
    fused = {field: name for field, names in by_field.items() for name in reversed(names) if on[name]}
    compiled = next((name for name in roles.get("compile", ()) if _on(keys, name)), None)
    called = table(recipe.kind)["called"]
    if "framework" not in stack:
        how = "transformers, not compiled" if compiled is None else f"{compiled}: transformers, compiled"
        stack.took("framework", "pytorch" if compiled is None else "pytorch-fsdp", f"{how}, as {called} runs them")
    if compiled is not None and "compiled" not in stack:
        stack.took("compiled", True, compiled)
    for field in _EAGER if compiled is None else ():
        if field in fused:
            stack.took(field, True, fused[field])
        elif field != "fused_norm" or stack.get("framework") == "deepspeed":
            stack.assume(field, False, "transformers' own kernels, one by one")
    chunked = next((name for name in fused.values() if any(part in name for part in _CHUNKED)), None)
    if chunked is not None:
        stack.took("chunked_loss", True, chunked)
    elif stack.get("framework") == "deepspeed":
        stack.assume("chunked_loss", False, "no fused loss is asked for")


def _on(keys: Settings, name: str) -> bool:
    """Whether a switch is on; a list of plugins is where it names what the key does behind `=`."""
    key, equals, part = name.partition("=")
    if not equals:
        return keys.take(key)[1] == "auto" if keys.raw(key) == "auto" else bool(keys.flag(key))
    value = keys.raw(key)
    return any(part in str(each) for each in value) if isinstance(value, list) else part in str(value)
