"""Files of every kind at random, as people write them: recipes of the table, others by a module of their own."""

import importlib
import json
from pathlib import Path

from sim.specs.yaml12 import load_yaml

RECIPES = load_yaml(Path(__file__).with_name("recipes.yaml"))
SMALL, OTHERS, OPTIONS, ROWS = (RECIPES[part] for part in ("small", "others", "options", "rows"))
BASES = {**SMALL, **OTHERS}
OWN = ("megatron", "megatron_bridge", "nemo")
"""Kinds whose files are programs, or of many shapes: each has a module of its own, with a function `write(rng)`."""
KINDS = sorted({*SMALL, *OWN, "deepspeed", "huggingface", "torchtitan"})
FORMS = sorted(
    {"flagscale", "megatron_yaml_cfg", *(path.stem for path in Path(__file__).parent.glob("forms/[a-z]*.py"))}
)
"""Other forms of some kinds."""
OF_TOKENS = (
    "training.global_batch_size", "num_microbatches", "plan.microbatch_size", "training.sequence_length", "plan.tp", "plan.cp",
    "plan.pp",
)  # fmt: skip
"""Facts that change how many tokens a step has."""


def write(kind, rng):
    """A file of a kind or a form: its name, its text, the facts that an import must find, and the options it needs."""
    if kind not in ROWS:
        return importlib.import_module(f"{'.' if kind in OWN else '.forms.'}{kind}", __package__).write(rng)
    data, facts = drawn(rng, BASES[kind], ROWS[kind])
    name, text = written(kind, data, rng)
    return name, text, facts, OPTIONS.get(kind, {"gpus": 8})


def written(kind, data, rng):
    """A recipe's settings as a file: its name and its text."""
    if kind in ("prime_rl", "torchtitan"):
        return "train.toml", as_toml(shuffled(rng, data))
    if kind == "huggingface":
        whole = shuffled(rng, within(rng, data) if rng.random() < 0.4 else data)
        return "config.json", json.dumps(whole, indent=2)
    if kind == "deepspeed" or (kind in SMALL and rng.random() < 0.3):
        return "recipe.json", json.dumps(shuffled(rng, data), indent=1)
    return "recipe.yaml", as_yaml(rng, data)


def within(rng, data):
    """A model's configuration inside that of a model of pictures and text, which may say whether embeddings are tied."""
    section, kind = rng.choice(
        [("text_config", "llava"), ("llm_config", "internvl_chat"), ("language_config", "new_vl")]
    )
    outer = {"model_type": kind, "vision_config": {"hidden_size": 1024, "model_type": "clip_vision_model"}}
    if "tie_word_embeddings" in data and rng.random() < 0.5:
        outer["tie_word_embeddings"] = data["tie_word_embeddings"]
        data = {key: value for key, value in data.items() if key != "tie_word_embeddings"}
    return {**outer, section: data, "image_token_index": 32000, "projector_hidden_act": "gelu"}


def drawn(rng, base, rows, most=4):
    """A smallest file's data with some rows that have nothing to do with each other, and the facts of them all."""
    (_, facts), *more = rows
    keys, met = {}, set()
    for said, known in rng.sample(more, len(more)):
        names = {*said, *known, *(OF_TOKENS if "training.tokens" in known else ())}
        if most and not any(alike(one, other) for one in names for other in met):
            keys, facts, met, most = keys | said, facts | known, met | names, most - 1
    return with_keys(base, keys), facts


def alike(one, other):
    """Whether two dotted names are the same, or one is within the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def with_keys(base, keys):
    """Nested settings with values at dotted places; None takes a setting away."""
    data = json.loads(json.dumps(base))
    for path, value in keys.items():
        *sections, last = path.split(".")
        place = data
        for name in sections:
            place[name] = place[name] if isinstance(place.get(name), dict) else {}
            place = place[name]
        place[last] = value
        if value is None:
            del place[last]
    return data


def shuffled(rng, data):
    """The mapping in another order."""
    return dict(rng.sample(list(data.items()), len(data)))


def as_toml(data, above=""):
    """TOML, sections below plain values."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in data.items() if not isinstance(value, dict)]
    sections = [
        f"[{above}{key}]\n{as_toml(value, f'{above}{key}.')}" for key, value in data.items() if isinstance(value, dict)
    ]
    return "\n".join([*plain, *sections])


def as_yaml(rng, data, depth=0):
    """YAML as people write it: in another order, true or True, numbers with underscores or in scientific notation."""
    lines = []
    for key, value in shuffled(rng, data).items():
        if isinstance(value, dict) and value:
            lines += [f"{'  ' * depth}{key}:", as_yaml(rng, value, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{key}: {scalar(rng, value)}")
        if rng.random() < 0.1:
            lines.append(f"{'  ' * depth}# a remark: not a key")
    return "\n".join(lines)


def scalar(rng, value):
    """A value as people write it."""
    if isinstance(value, bool):
        return rng.choice([str(value), str(value).lower()])
    if value is None:
        return rng.choice(["null", "", "~"])
    if isinstance(value, int) and value >= 1000 and rng.random() < 0.2:
        return f"{value:_}"
    if isinstance(value, str):
        return rng.choice([value, json.dumps(value)]) if value.replace("_", "").isalnum() else json.dumps(value)
    return json.dumps(value)
