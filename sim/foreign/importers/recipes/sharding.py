"""What shards a model that transformers trains: DeepSpeed, by a file beside the recipe or inside it, or FSDP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sim.foreign.importers.keys import Keys, flat, table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.recipes.settings import Settings
from sim.foreign.importers.sources import beside, parse_json, text_of

_NODE = 8
"""GPUs of a node, within which hybrid strategies shard."""
_FSDP = "fsdp_config"


def deepspeed(recipe: Recipe, *names: str) -> bool:
    """What a DeepSpeed configuration says of sharding; whether there is one.

    It stands in the recipe, or in a file that this names and that lies beside it; of one that is not there, the stage
    is told by its name. Raises SpecError: a file that cannot be read, or a stage that DeepSpeed does not have.
    """
    keys, file = recipe.keys, recipe.file
    name = next((each for each in names if each in keys), None)
    nested = [each for each in names if any(key.startswith(f"{each}.") for key in keys.names())]
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


def fsdp(recipe: Recipe, recomputed: bool | None = None) -> bool:
    """What the keys of FSDP say, of accelerate and of the Trainer; whether there are any. Raises SpecError: a strategy
    that FSDP does not have."""
    keys = recipe.keys
    _, words = keys.take("fsdp")
    words = words if isinstance(words, list) else str(words or "").split()
    for word in words:
        if str(word).lower() not in (*table("fsdp")["strategies"], "auto_wrap", "offload"):
            keys.ledger.ignore("fsdp", word, "a setting of FSDP that is not known", matters=True)
    inner = keys.below(_FSDP)
    there = bool(words) or bool(inner.names()) or "fsdp_version" in keys
    keys.take("fsdp_version")
    if not there:
        return False
    plan, stage = recipe.plan, _shard(recipe, inner, *_strategy(words, inner))
    offload = inner.flag("fsdp_offload_params", "offload_params") or "offload" in words
    if offload:
        plan.took("optimizer_offload", 1.0, "FSDP's offload of parameters, priced as that of the optimizer's state")
    again = inner.flag("fsdp_activation_checkpointing", "activation_checkpointing")
    if again and not recomputed:
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
    elif any(key.startswith(f"{section}.") for key in keys.names()):
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
