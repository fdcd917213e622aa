"""What configuration classes of Hugging Face transformers have for keys that a config.json leaves out.

    python tests/oracles/class_defaults.py > sim/presets/importers/huggingface_defaults.yaml

writes the table that ships; `test_transformers_defaults.py` holds the two equal.
"""

import dataclasses
import re
from pathlib import Path

from sim.foreign.importers.huggingface import layer_kinds
from sim.foreign.importers.keys import table

KNOWN = table("huggingface")
ARCHITECTURES = {**KNOWN["dense"], **KNOWN["mixtures"], **KNOWN["hybrids"]}
HEAD = """\
# What the configuration classes of Hugging Face transformers have for keys that a config.json leaves out, of those that
# flopcast reads: those of `columns`, ~ where it has nothing, then others. Written by tests/oracles/class_defaults.py
# with transformers {version}; do not edit.

"""
COLUMNS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size", "max_position_embeddings", "tie_word_embeddings", "attention_bias",
)  # fmt: skip


def keys_that_are_read():
    """Keys of the table, and words in quotes in the functions that read the others."""
    named = {key for keys in KNOWN["fields"].values() for key in keys} | {*KNOWN["dropout"], "tie_word_embeddings"}
    for entry in ARCHITECTURES.values():
        named |= {*entry.get("switches", {}), *entry.get("forbidden", {})}
        named |= {value for value in entry.get("layers", {}).values() if isinstance(value, str)}
        named |= entry.get("equal", {}).keys()
    named |= {key for keys in KNOWN["positions"].values() for key in keys}
    named |= {word for group in ("experts", "sizes", "readers") for word in words_in(KNOWN[group])}
    named |= set(re.findall(r'"(\w+)"', Path(layer_kinds.__file__).read_text()))
    return named - {"model_type", "layer_types", "mlp_layer_types", "layers_block_type"}


def words_in(data):
    """All texts in nested mappings and lists, but for the names of the mappings' keys."""
    if isinstance(data, str):
        return {data}
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return {word for part in parts for word in words_in(part)}


def class_defaults():
    """Model type -> key -> the class's own value, where it has one that is a number, a word or a switch."""
    from transformers import CONFIG_MAPPING

    read, found = keys_that_are_read(), {}
    for kind in sorted(ARCHITECTURES):
        if kind not in CONFIG_MAPPING:
            continue
        # As declared: an instance also has what follows from other keys, such as head_dim.
        values = {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[kind])}
        plain = {
            key: value for key, value in values.items() if key in read and isinstance(value, (bool, int, float, str))
        }
        found[kind] = dict(sorted(plain.items()))
    return found


def written(found):
    """The table as YAML, one model type a row."""
    import transformers

    lines = [*_wrapped(f"columns: [{', '.join(COLUMNS)}]"), "classes:"]
    for kind, values in found.items():
        rest = ", ".join(f"{key}: {_plain(value)}" for key, value in values.items() if key not in COLUMNS)
        row = [_plain(values[key]) if key in values else "~" for key in COLUMNS] + [f"{{{rest}}}"] * bool(rest)
        lines += _wrapped(f"  {kind}: [{', '.join(row)}]")
    return HEAD.format(version=transformers.__version__) + "\n".join(lines) + "\n"


def _wrapped(line):
    import textwrap

    return textwrap.wrap(line, 118, subsequent_indent="    ", break_long_words=False)


def _plain(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(written(class_defaults()), end="")
