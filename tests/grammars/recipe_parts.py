"""Parts of recipes that several grammars put together: models of the hub, adapters, spellings of YAML."""

import json

MODELS = {  # a repository, as people write it -> parameters
    "meta-llama/Llama-3.2-1B": 1235814400,
    "NousResearch/Llama-3.2-1B": 1235814400,
    "meta-llama/Llama-3.2-3B-Instruct": 3212749824,
    "Qwen/Qwen2.5-7B-Instruct": 7615616512,
    "Qwen/Qwen3-8B": 8190735360,
    "mistralai/Mistral-7B-v0.1": 7241732096,
    "google/gemma-2-9b": 9241705984,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1100048384,
    "EleutherAI/pythia-1.4b": 1414647808,
}
TARGETS = [
    (["q_proj", "k_proj", "v_proj", "o_proj"], ["linear_qkv", "linear_proj"]),
    (["q_proj", "v_proj"], ["linear_qkv"]),
    (["gate_proj", "up_proj", "down_proj"], ["linear_fc1", "linear_fc2"]),
    (["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]),
]  # fmt: skip


def shuffled(rng, data):
    """The mapping in another order."""
    items = list(data.items())
    rng.shuffle(items)
    return dict(items)


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


def with_some(rng, data, expected, rows, most=4):
    """Add some rows of a table to a file's data and to what is expected of it: (keys at dotted places, facts)."""
    for keys, facts in rng.sample(rows, min(most, len(rows))):
        for path, value in keys.items():
            *sections, last = path.split(".")
            place = data
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
        expected |= facts
