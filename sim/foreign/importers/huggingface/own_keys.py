"""Keys that one architecture alone has in Hugging Face's `config.json`, and fields that follow from several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.foreign.importers.huggingface.layer_kinds import KIND, ConfigKeys, blocks, layers_with_experts
from sim.foreign.importers.keys import Keys, table
from sim.foreign.importers.recipes.rows import Recipe

Fields = dict[str, Any]


_COUNT = ["num_local_experts", "num_experts", "n_routed_experts"]
_CHOSEN = ["num_experts_per_tok", "num_experts_per_token", "experts_per_token"]


def experts(rule: Mapping[str, Any], keys: ConfigKeys) -> Fields:
    """Experts by a row of the table's `experts`; intermediate_size is an expert's where the row names no width."""
    groups, some = (keys.whole(name, least=0) or 1 for name in ("n_group", "topk_group"))
    found: Fields = {
        "num_experts": keys.needed(*rule.get("experts", _COUNT)),
        "experts_per_token": keys.needed(*rule.get("chosen", _CHOSEN)),
        "num_expert_groups": groups if some < groups else None,
        "expert_groups_per_token": some if some < groups else None,
    }
    if "width" in rule:
        found["expert_intermediate_size"] = keys.needed(rule["width"])
    shared = rule.get("shared")
    number = 1 if shared == "one" else (keys.whole(*shared, least=0) or 0) if shared else None
    if "layers" in rule:
        found |= layers_with_experts(rule["layers"], keys)
    if "dense" in rule:
        found["intermediate_size"] = keys.needed(rule["dense"])
    width = found.get("expert_intermediate_size") or found.get("intermediate_size", 0)
    if "own_dense" in rule:
        found["intermediate_size"] = keys.whole(rule["own_dense"]) or width
    if number is not None:
        found["shared_expert_intermediate_size"] = number * width
    other = keys.whole(rule["same_width"]) if "same_width" in rule else None
    if other not in (None, width):
        raise keys.wrong(rule["same_width"], other, "is not an expert's, which flopcast cannot count")
    return found


def _one_for_all(keys: Keys, *names: str) -> int | None:
    """A whole number, be it written once for each layer."""
    key, value = keys.take(*names)
    if value is None:
        return None
    each = value if isinstance(value, list) else [value]
    if len({str(item) for item in each}) != 1:
        raise keys.wrong(key, value, "differs from layer to layer, which flopcast cannot count")
    if type(each[0]) is not int or each[0] < 0:
        raise keys.wrong(key, value, "must be a whole number, or one for each layer")
    return each[0]


def fields_of(reader: str, keys: ConfigKeys) -> Fields:
    """What a reader of an architecture finds, by a row of the table."""
    known = table(KIND)
    if reader in known["experts"]:
        return experts(known["experts"][reader], keys)
    if reader in known["positions"]:
        return {"position": "rotary" if any(keys.raw(name) for name in known["positions"][reader]) else "none"}
    if reader in known["sizes"]:
        return {field: _size(names, keys) for field, names in known["sizes"][reader].items()}
    recipe = Recipe(keys, steps=STEPS)
    recipe.follow(known["readers"][reader])
    return dict(recipe.model)


def _experts(recipe: Recipe) -> None:
    recipe.model.update(experts({}, recipe.keys))


def _same(recipe: Recipe, name: str, *keys: str) -> None:
    recipe.known[name] = _one_for_all(recipe.keys, *keys)


def _blocks(recipe: Recipe) -> None:
    found = blocks(recipe.keys)
    recipe.known["sparse"] = "sparse" in found["mlp_layer_types"]
    recipe.model.update(found)


STEPS: dict[str, Callable[..., None]] = {"experts": _experts, "same": _same, "blocks": _blocks}
"""What the table's rows call by `step`."""


def _size(names: Sequence[str | int], keys: ConfigKeys) -> int:
    """A number by the keys that may hold it; it must be there unless a number behind them says what it is else."""
    *said, last = names
    if isinstance(last, str):
        return keys.needed(*map(str, names))
    return keys.whole(*map(str, said), least=min(1, last)) or last
