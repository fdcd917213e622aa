"""Kinds of layers in Hugging Face's `config.json`: which see a window or a piece, carry a state, or have experts; and
keys that one architecture alone has.

A file says it in `layer_types` and `mlp_layer_types`, or by its architecture's older keys; what a scenario says is the
shortest list that repeats. What a key is by default stands in presets/importers/huggingface_defaults.yaml: the answer
does not depend on what is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.foreign.importers.keys import Keys, reason_to_ignore, table
from sim.foreign.importers.ledger import Ledger
from sim.foreign.importers.recipes.rows import Recipe

KIND = "huggingface"


class ConfigKeys(Keys):
    """The keys of a config, with those of the model's class behind them.

    inside : whether it is a model's part of a larger config. There, transformers leaves out every key that is as the
        class has it, sizes too (LLaVA's text_config may say no more than the vocabulary). At the top of a file it
        writes them all, and a size that is missing there was lost: it is refused, not taken for the class's.
    """

    def __init__(self, data: Mapping[str, Any], ledger: Ledger, label: str = "", *, inside: bool = False) -> None:
        super().__init__(data, ledger, KIND, label)
        self.inside = inside
        self._own = ""
        self._defaults: dict[str, Any] = {}

    def fall_back_on(self, defaults: Mapping[str, Any]) -> None:
        """Take keys that the file leaves out from here; one that it says in another word, or as null, it does not."""
        groups = [*table(KIND)["fields"].values(), *table(KIND)["alike"]]
        said = {name for group in groups if any(name in self._data for name in group) for name in group}
        self._defaults = {key: value for key, value in defaults.items() if key not in said | self._data.keys()}

    def raw(self, key: str) -> Any:
        """A value as it stands, or as the class has it, without taking it."""
        return self._data.get(key, self._defaults.get(key))

    def of_class(self, *names: str) -> bool:
        """Whether one of these is not in the file but the class has it."""
        return any(name in self._defaults for name in names)

    def forget(self, *names: str) -> None:
        """Leave out, without a word, what the class has for these."""
        for name in names:
            self._defaults.pop(name, None)

    def take(self, *names: str) -> tuple[str, Any]:
        """(key, value) of the first of several names for the same thing; the class's where the file has none."""
        said = any(name in self._data for name in names)
        usual = next(((name, self._defaults[name]) for name in names if name in self._defaults), None)
        self.forget(*names)
        found = super().take(*names)
        if said or usual is None:
            return found
        key, value = usual
        if value or key == "tie_word_embeddings":  # what is off, or none, changes nothing
            self.ledger.assume(f"{self.label}{key}", value, "default of the model's class in transformers")
        return key, value

    def section(self, name: str) -> ConfigKeys:
        """The keys of a mapping inside; none where there is no such mapping."""
        value = self._data.pop(name, None)
        if not isinstance(value, Mapping | None):
            raise self.wrong(name, value, "must hold keys of its own")
        found = ConfigKeys(value or {}, self.ledger, f"{self.label}{name}.", inside=self.inside)
        found._own = f"{self._own}{name}."
        return found

    def reason(self, key: str, value: Any = None) -> tuple[str, bool]:
        """Why a key is left out, and whether it matters; around which model its model stands says nothing of it."""
        asked = (name.removeprefix(self.label) for name in self._asked)
        return reason_to_ignore(self.kind, f"{self._own}{key}", (f"{self._own}{name}" for name in asked))

    def needed(self, *names: str, least: int = 1) -> int:
        """A whole number that the file must say, unless it is a part of a larger config."""
        if not self.inside:
            self.forget(*names)
        return super().needed(*names, least=least)


Fields = dict[str, Any]
Words = list[str]
FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
_OLDER: dict[str, str] = {"attention": FULL, "mamba": LINEAR, "global": FULL, "local": SLIDING}
"""Older words for the same (transformers: configuration_utils.py)."""
BLOCKS = {"M": "mamba2", "*": FULL, "G": "gated_delta_net", "-": "dense", "E": "sparse"}
"""Letters of hybrid models, whose layers are one block each: a mixer or an MLP (Megatron-Core's
mamba_hybrid_layer_allocation.py; Nemotron-H's hybrid_override_pattern has all but G)."""
_NAMED_BLOCKS = {"mamba": "M", LINEAR: "M", "attention": "*", FULL: "*", "mlp": "-", "moe": "E"}
MOST_LAYERS = 100_000


def number_of_layers(keys: Keys) -> int:
    """What the file says, or 0: reading the sizes complains of it."""
    found = (keys.raw(name) for name in table("huggingface")["fields"]["num_layers"])
    count = next((value for value in found if value is not None), 0)
    return count if isinstance(count, int) and 0 <= count <= MOST_LAYERS else 0


def shortest(items: Sequence[str]) -> Words:
    """The shortest list that, repeated and cut, gives these; all of them where none repeats."""
    for length in range(1, max(1, len(items) // 2) + 1):
        if all(item == items[place % length] for place, item in enumerate(items)):
            return list(items[:length])
    return list(items)


def mixers(rule: Mapping[str, Any], keys: ConfigKeys) -> Fields:
    """Fields that say what mixes the tokens of each layer.

    rule : the architecture's `layers`: `pattern`, a name of `PATTERNS`, with what it needs; `state`, what carries one
        where a layer has linear attention; `switch`, a key without which there are no windows.
    """
    listed = _listed("layer_types", keys)
    words = PATTERNS[rule.get("pattern", "every")](rule, keys, number_of_layers(keys)) if listed is None else listed
    off = "switch" in rule and not keys.flag(rule["switch"])
    named = rule.get("key_of_window", "sliding_window")
    window, said = _width_of(named, SLIDING in words and not off, keys)
    window = None if off else window
    piece, _ = _width_of("attention_chunk_size", CHUNKED in words, keys)
    known = {FULL: FULL, SLIDING: SLIDING if window else FULL, CHUNKED: CHUNKED if piece else FULL}
    if "state" in rule:
        known[LINEAR] = rule["state"]
    strange = next(((place, word) for place, word in enumerate(words) if word not in known), None)
    if strange is not None:
        raise keys.wrong("layer_types", strange[1], f"of layer {strange[0]} is none of {', '.join(known)}")
    kinds = [known[word] for word in words]
    if set(kinds) <= {FULL}:
        if said and window:
            keys.ledger.ignore(named, window, "no layer sees a window")
        return {}
    return {
        "layer_types": shortest(kinds),
        **({"sliding_window": window} if SLIDING in kinds else {}),
        **({"attention_chunk_size": piece} if CHUNKED in kinds else {}),
    }


def _width_of(name: str, seen: bool, keys: ConfigKeys) -> tuple[int | None, bool]:
    """(tokens of a window or a piece, whether the file says so); what the class has counts where a layer sees it."""
    said = keys.says(name)
    if not said and not seen:
        keys.forget(name)
    return keys.whole(name, least=0), said


def _listed(name: str, keys: Keys) -> Words | None:
    """A list of words, one a layer, or None."""
    words: Any = keys.take(name)[1]
    if words is None:
        return None
    layers = number_of_layers(keys)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or len(words) > MOST_LAYERS:
        raise keys.wrong(name, words, "must list the kinds of layers")
    if len(words) != layers:
        raise keys.wrong(name, words, f"lists {len(words)} layers, but there are {layers}")
    return [_OLDER.get(str(word), str(word)) for word in words]


def _every(rule: Mapping[str, Any], keys: Keys, layers: int) -> Words:
    """Full attention in every `full`-th layer, windows or what `of` says in the others."""
    other, every = rule.get("of", SLIDING if rule else FULL), rule.get("full", 0)
    if "key" in rule:
        key, said = keys.take(rule["key"])
        if isinstance(said, str):  # a piece that repeats, L for local and G for global (EXAONE 4)
            if not said or set(said) - {"L", "G"} or len(said) > MOST_LAYERS:
                raise keys.wrong(key, said, "must be a whole number, or letters L and G")
            return [(SLIDING, FULL)[said[layer % len(said)] == "G"] for layer in range(layers)]
        if said is not None and (isinstance(said, bool) or not isinstance(said, int) or said < 0):
            raise keys.wrong(key, said, "must be a whole number from 0")
        every = every if said is None else said
    ahead = 0 if rule.get("first") else 1
    return [FULL if every and (layer + ahead) % every == 0 else other for layer in range(layers)]


def _must_list(rule: Mapping[str, Any], keys: Keys, layers: int) -> Words:
    """Nothing that a short rule would say."""
    raise keys.ledger.error(f"{keys.label}layer_types is missing; it says which layers see a window")


def _above(rule: Mapping[str, Any], keys: Keys, layers: int) -> Words:
    """Windows from layer `max_window_layers` on (Qwen 2 and 3), or in every other one before it (`even`, Qwen2-MoE)."""
    said = keys.whole("max_window_layers", least=0)
    first = 28 if said is None else said
    seen = range(layers)[:first:2] if "even" in rule else range(layers)[first:]
    return [SLIDING if layer in seen else FULL for layer in range(layers)]


def _with_positions(rule: Mapping[str, Any], keys: Keys, layers: int) -> Words:
    """Words that say whether each layer turns queries and keys: `turned` or `unturned` (Llama 4, SmolLM 3)."""
    _, turned = keys.take("no_rope_layers")
    interval = keys.whole("no_rope_layer_interval") or 4
    if not turned:
        turned = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if not isinstance(turned, list) or len(turned) < layers:
        raise keys.wrong("no_rope_layers", turned, f"must list the {layers} layers")
    return [rule["turned"] if turned[layer] else rule["unturned"] for layer in range(layers)]


def _attention_types(rule: Mapping[str, Any], keys: Keys, layers: int) -> Words:
    """GPT-Neo's `[[["global", "local"], 12]]`: pieces, and how often each."""
    _, pieces = keys.take("attention_types")
    words: Words = []
    if pieces is None:
        return [(FULL, SLIDING)[layer % 2] for layer in range(layers)]
    try:
        for piece, times in pieces:
            words += [_OLDER[word] for word in piece] * min(times, MOST_LAYERS)
    except (KeyError, TypeError, ValueError):
        raise keys.wrong("attention_types", pieces, "must be pieces of global and local, with their numbers") from None
    if len(words) != layers:
        raise keys.wrong("attention_types", pieces, f"lists {len(words)} layers, but there are {layers}")
    return words


def _numbered(rule: Mapping[str, Any], keys: Keys, layers: int) -> Words:
    """Full attention in the layers that `attn_layer_indices` numbers (Bamba)."""
    full = _numbers("attn_layer_indices", keys) or []
    return [FULL if layer in full else LINEAR for layer in range(layers)]


def _kimi(rule: Mapping[str, Any], keys: Keys, layers: int) -> Words:
    """Full attention in the layers that `linear_attn_config` numbers from 1, else in every fourth but the first."""
    numbers = keys.raw("linear_attn_config")
    full = numbers.get("full_attn_layers") if isinstance(numbers, Mapping) else None
    if full is None:
        return [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(layers)]
    if not isinstance(full, list):
        raise keys.wrong("linear_attn_config.full_attn_layers", full, "must list numbers of layers")
    return [FULL if layer + 1 in full else LINEAR for layer in range(layers)]


def _numbers(name: str, keys: Keys) -> list[int] | None:
    numbers: list[int] | None = keys.take(name)[1]
    good = isinstance(numbers, list) and all(type(number) is int for number in numbers)
    if numbers is not None and not good:
        raise keys.wrong(name, numbers, "must list numbers of layers")
    return numbers


PATTERNS: dict[str, Callable[[Mapping[str, Any], Keys, int], Words]] = {
    "every": _every,
    "listed": _must_list,
    "above": _above,
    "with_positions": _with_positions,
    "attention_types": _attention_types,
    "numbered": _numbered,
    "kimi": _kimi,
}
"""What a file means that does not list its layers' types, by the name that the table gives it."""


def blocks_of(letters: str) -> Fields:
    """Fields of a hybrid model whose layers are these blocks, one a letter."""
    mixes = [BLOCKS[letter] if letter in "M*G" else "none" for letter in letters]
    mlps = [BLOCKS[letter] if letter in "-E" else "none" for letter in letters]
    return {"num_layers": len(letters), "layer_types": shortest(mixes), "mlp_layer_types": shortest(mlps)}


def blocks(keys: Keys) -> Fields:
    """Nemotron-H, whose layers are one block each: a state, attention, an MLP or experts."""
    _, words = keys.take("layers_block_type", "layer_types")
    key, letters = keys.take("hybrid_override_pattern")
    if words is None:
        if not isinstance(letters, str) or not letters or set(letters) - {*"M*-E"}:
            raise keys.wrong(key, letters, "must say the layers, each one of M * - E")
        return blocks_of(letters)
    listed = words if isinstance(words, list) else []
    strange = next((word for word in listed if word not in _NAMED_BLOCKS), None)
    if not listed or strange is not None or len(listed) > MOST_LAYERS:
        known = ", ".join(sorted({FULL, LINEAR, "mlp", "moe"}))
        raise keys.wrong("layers_block_type", strange, f"must list the layers, each one of {known}")
    return blocks_of("".join(_NAMED_BLOCKS[word] for word in listed))


def dealt_experts(sparse: Sequence[bool]) -> Fields:
    """Fields that say which layers have experts: behind so many first layers, or in a pattern."""
    dense = list(sparse).index(True) if any(sparse) else len(sparse)
    if all(sparse[dense:]):
        return {"num_dense_layers": dense}
    return {"mlp_layer_types": shortest(["sparse" if each else "dense" for each in sparse])}


def layers_with_experts(rule: Mapping[str, str], keys: Keys) -> Fields:
    """Which layers have experts, by the keys that the rule names; `mlp_layer_types` overrules all of them.

    rule : `first` and `last` layer (`from`, the first where nothing is said), `step`, of which every so many-th has
        experts, `without`, layers that have none, `named`, all that have, and `marks`, one a layer.
    """

    def number(part: str, least: int, usual: int) -> int:
        value = keys.whole(rule[part], least=least) if part in rule else None
        return usual if value is None else value

    layers = range(number_of_layers(keys))
    first, last, step = number("first", 0, int(rule.get("from", 0))), number("last", -1, -1), number("step", 1, 1)
    without, named = (_numbers(rule[part], keys) if part in rule else None for part in ("without", "named"))
    if "marks" in rule:
        sparse = _marks(rule["marks"], first, keys)
    elif named is not None:
        sparse = [layer in named for layer in layers]
    else:
        behind = layers[first:] if last == -1 else range(last + 1)[first:]
        sparse = [layer in behind and (layer + 1) % step == 0 and layer not in (without or ()) for layer in layers]
    listed = _listed("mlp_layer_types", keys)
    wrong = next((word for word in listed or () if word not in ("dense", "sparse")), None)
    if wrong is not None:
        raise keys.wrong("mlp_layer_types", wrong, "must be dense or sparse")
    return dealt_experts(sparse if listed is None else [word == "sparse" for word in listed])


def _marks(name: str, first: int, keys: Keys) -> list[bool]:
    """Marks of layers: a 0 or a 1 for each, or behind the first so many those whose number a number divides."""
    layers, (_, frequency) = number_of_layers(keys), keys.take(name)
    if isinstance(frequency, list):
        if len(frequency) != layers or not set(map(str, frequency)) <= {"0", "1"}:
            raise keys.wrong(name, frequency, f"must have a 0 or a 1 for each of {layers} layers")
        return [mark == 1 for mark in frequency]
    every = 1 if frequency is None else frequency
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise keys.wrong(name, frequency, "must be a whole number from 1, or a list of 0 and 1")
    return [layer >= first and layer % every == 0 for layer in range(layers)]


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


def _same(recipe: Recipe, name: str, *names: str) -> None:
    """A whole number, be it written once for each layer."""
    key, value = recipe.keys.take(*names)
    each = value if isinstance(value, list) else [value]
    if len({str(item) for item in each}) != 1:
        raise recipe.keys.wrong(key, value, "differs from layer to layer, which flopcast cannot count")
    if value is not None and (type(each[0]) is not int or each[0] < 0):
        raise recipe.keys.wrong(key, value, "must be a whole number, or one for each layer")
    recipe.known[name] = each[0]


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
