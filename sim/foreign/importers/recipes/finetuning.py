"""What recipes of fine-tuning have in common, whatever they call it: adapters, bases in fewer bits, packing, FSDP or
DeepSpeed around transformers, fused kernels.

A kind's table says under `finetuning` which keys say what: adapter, rank, targets, all_linear, quantised, packing,
stage, deepspeed, compile, checkpointing, and liger: switches of all fused kernels, or of each by the field it sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sim.foreign.importers.keys import Keys, flat, table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.recipes.settings import Settings
from sim.foreign.importers.sources import beside, parse_json, text_of

_NODE = 8
"""GPUs of a node, within which hybrid strategies shard."""
_FSDP, _TABLE = "fsdp_config", "adapters"


def deepspeed(recipe: Recipe, *names: str) -> bool:
    """What a DeepSpeed configuration says of sharding; whether there is one.

    It stands in the recipe, or in a file that this names and that lies beside it; of one that is not there, the stage
    is told by its name. Raises SpecError: a file that cannot be read, or a stage that DeepSpeed does not have.
    """
    keys, file = recipe.keys, recipe.file
    name = next((each for each in names if each in keys), None)
    nested = [each for each in names if any(key.startswith(f"{each}.") for key in keys.rest())]
    if name is None and not nested:
        return False
    recipe.stack.took("framework", "deepspeed", name or nested[0])
    if nested:
        zero = keys.below(f"{nested[0]}.zero_optimization")
        _zero(recipe, zero, f"{nested[0]}.zero_optimization")
        return True
    assert name is not None
    said = keys.text(name) or ""
    path = beside(said, file.folder)
    if path is None and not said.startswith(("/", "~")) and ".." not in said:
        path = beside(said.rpartition("/")[2], file.folder)
    if path is not None:
        data = parse_json(text_of(path), str(path))
        inside = Keys(dict(flat(data)) if isinstance(data, Mapping) else {}, file.ledger, "deepspeed", f"{path.name}: ")
        _zero(recipe, inside.below("zero_optimization"), f"{path.name}: zero_optimization")
        inside.leave()
        return True
    told = re.search(r"z(?:ero)?[_-]?(?:stage)?[_-]?([0-3])", said.lower())
    why = f"{name} {short(said)} is not beside this file"
    if told is None:
        recipe.default("plan.zero_stage", 3, f"{why}, and its name says no stage")
    else:
        recipe.put("plan.zero_stage", int(told[1]), f"{why}; so its name says")
    if "offload" in said.lower() and "param" not in said.lower():
        recipe.put("plan.optimizer_offload", 1.0, f"{why}; so its name says")
    if "offload" in said.lower() and (told is None or told[1] == "3"):
        keys.ledger.ignore(name, said, "weights that wait in host memory are not priced", matters=True)
    return True


def _zero(recipe: Recipe, zero: Keys, source: str) -> None:
    inside = recipe.beside(zero, "deepspeed", source=source)
    inside.read("zero")
    group = zero.take("mics_shard_size")[1]
    if isinstance(group, int) and group > 0 and recipe.plan["zero_stage"] == 3:
        recipe.put("run.sharded", group, f"{source}.mics_shard_size")
    inside.read("overlaps")
    zero.leave()


def fsdp(recipe: Recipe) -> bool:
    """What the keys of FSDP say, of accelerate and of the Trainer; whether there are any. Raises SpecError: a strategy
    that FSDP does not have."""
    keys = recipe.keys
    _, words = keys.take("fsdp")
    words = words if isinstance(words, list) else str(words or "").split()
    for word in words:
        if str(word).lower() not in (*table("fsdp")["strategies"], "auto_wrap", "offload"):
            keys.ledger.ignore("fsdp", word, "a setting of FSDP that is not known", matters=True)
    inner = keys.below(_FSDP)
    there = bool(words) or bool(inner.rest()) or "fsdp_version" in keys
    keys.take("fsdp_version")
    if not there:
        return False
    plan, stage = recipe.plan, _shard(recipe, inner, *_strategy(words, inner))
    offload = inner.flag("fsdp_offload_params", "offload_params") or "offload" in words
    if offload:
        plan.took("optimizer_offload", 1.0, "FSDP's offload of parameters, priced as that of the optimizer's state")
    again = inner.flag("fsdp_activation_checkpointing", "activation_checkpointing")
    if again and keys.ledger.told("plan.recompute") != "full":
        recipe.plan.took("recompute", "full", "fsdp_config: activation_checkpointing")
    for key, value in inner.rest().items():
        matters = key.removeprefix("fsdp_") in table("fsdp")["paced"] and value not in (False, None, "NO_PREFETCH")
        why = "when FSDP gathers, and in which precision, is the stack's; see stack.*"
        if not matters:
            why = "about FSDP's wrapping, loading and saving; does not change the time of a step"
        keys.ledger.ignore(f"{_FSDP}.{key}", value, why, matters)
    return bool(stage)


def _strategy(words: list[Any], inner: Settings) -> tuple[str, Any]:
    """(where it stands, the strategy's word): FSDP's full shard where nothing is said."""
    key, said = inner.take("fsdp_sharding_strategy", "sharding_strategy")
    other, reshard = inner.take("fsdp_reshard_after_forward", "reshard_after_forward")
    if said is not None and (reshard is None or str(said).lower() != "full_shard"):
        return f"{_FSDP}.{key}", said
    if reshard is not None:
        return f"{_FSDP}.{other}", reshard
    named = (word for word in words if str(word).lower() in table("fsdp")["strategies"])
    return "fsdp", next(named, "full_shard")


def strategy(recipe: Recipe, name: str) -> None:
    """Composer's and OLMo's sharding_strategy of FSDP; without FSDP's section every GPU holds the whole model."""
    keys, section = recipe.keys, name.partition(".")[0]
    said = keys.text(name)
    if said is not None:
        _shard(recipe, keys, name, said)
    elif any(key.startswith(f"{section}.") for key in keys.rest()):
        recipe.default("plan.zero_stage", 3, f"FSDP's without {name}")
    else:
        recipe.default("plan.zero_stage", 0, f"no {section}: every GPU holds the whole model")


def _shard(recipe: Recipe, keys: Keys, source: str, said: Any) -> int:
    """What a strategy's word says of the plan; its ZeRO stage. Raises SpecError: no strategy of FSDP's."""
    word, known = str(said).lower(), table("fsdp")["strategies"]
    if word not in known:
        raise keys.wrong(source, said, f"must be one of {', '.join(known)}")
    stage, reshard = int(known[word][0]), known[word][1]
    recipe.put("plan.zero_stage", stage, source)
    if not reshard:
        recipe.put("plan.reshard_after_forward", False, f"{source}: gathered weights stay until the backward")
    if "hybrid" in word:
        recipe.put("run.sharded", _NODE, f"{source}, within a node of {_NODE} GPUs")
    return stage


_EAGER = ("fused_norm", "fused_rotary", "fused_bias_activation", "fused_cross_entropy")
_CHUNKED = ("linear_cross_entropy", "CutCrossEntropy", "liger_kernel", "use_liger")
"""Parts of the names of switches whose loss comes in pieces with the head; other fused losses do not."""


def finetuning(recipe: Recipe) -> None:
    """Fields that follow from the keys of a table's `finetuning`. Raises SpecError: a stage that is no plain training
    of the model, adapters of another kind, or a value that breaks a rule."""
    keys = recipe.keys
    roles = table(recipe.kind)["finetuning"]
    if "stage" in roles:
        recipe.take_settings({"run.stage": {"keys": roles["stage"], **table(_TABLE)["stages"]}})
    adapters(recipe)
    quantised(recipe, *roles.get("quantised", ()))
    packing(recipe, *roles.get("packing", ()))
    _checkpointing(recipe, roles)
    sharded = deepspeed(recipe, *roles.get("deepspeed", ())) or fsdp(recipe)
    if sharded and (recipe.run.get("weights") != "16 bits" or recipe.stack.get("framework") == "deepspeed"):
        recipe.run["weights"] = "32 bits"
    around_transformers = table(recipe.kind)["framework"] == "pytorch"
    if around_transformers:
        _kernels(recipe, roles)
    if "precision" not in recipe.training and {"bf16", "fp16"} & keys.ledger.settings.keys():
        recipe.put("training.precision", "fp32", "neither bf16 nor fp16 is on")
    if not sharded and around_transformers:
        recipe.default("plan.zero_stage", 0, "neither DeepSpeed nor FSDP: every GPU holds the whole model")


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
    rule = {"keys": names, **table(_TABLE)["packing"]}
    if any(name in recipe.keys for name in names):
        recipe.take_settings({"run.packed": rule})
    elif names:
        recipe.keys.ledger.ignore(names[0], "", rule["near"]["false"], matters=True)


def _checkpointing(recipe: Recipe, roles: Mapping[str, Any]) -> None:
    """Layers computed again, which transformers does whole; where nothing is said the table's default holds."""
    keys, off = recipe.keys, roles.get("not_checkpointing", ())
    if off and keys.flag(*off):
        recipe.put("plan.recompute", "none", off[0])
    names, rule = roles.get("checkpointing", ()), table(_TABLE)["checkpointing"]
    if any(name in keys for name in names):
        words = {word: ours for word, ours in rule["words"].items() if not off or ours != "none"}
        left = dict.fromkeys(rule["words"].keys() - words.keys())  # which another key alone turns off
        recipe.take_settings({"plan.recompute": {**rule, "keys": names, "words": {**words, **left}}})
    elif where := next((each for each in roles.get("checkpointed_where", ()) if each in keys.ledger.settings), None):
        recipe.default("plan.recompute", "full", f"the default of today's tool, whose key {where} is")


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
