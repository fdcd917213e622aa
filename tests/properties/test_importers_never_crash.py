"""Whatever stands in a foreign file, an importer reads it or refuses it with a message; nothing else ever comes out."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import FlopcastError
from sim.foreign.importers import Given, import_text
from sim.foreign.importers.huggingface.architectures import known_architectures
from sim.specs.yaml12 import parse_yaml

FOREIGN = Path(__file__).parents[1] / "foreign" / "files"
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1024, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
TITAN = json.loads((FOREIGN / "torchtitan_llama3_405b.json").read_text())
DEEPSPEED = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"},
}  # fmt: skip
KINDS = (*known_architectures(), "x")
numbers = st.integers() | st.just(10**400) | st.floats() | st.sampled_from([0, -1, 1, 7, 8, 64, 2**40, 1e-300, 1e300])
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8) | st.sampled_from(["auto", *KINDS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def attempt(text, where, **given_):
    """Import; what comes out can be written and read again."""
    with suppress(FlopcastError):
        imported = import_text(text, where, Given(**given_))
        parse_yaml(imported.to_yaml(), "")


@st.composite
def changed(draw, base):
    """The data with a few keys, on any level, given other values or taken away."""
    data = json.loads(json.dumps(base))
    for _ in range(draw(st.integers(1, 4))):
        place = data
        inner = [key for key in place if isinstance(place[key], dict)]
        if inner and draw(st.booleans()):
            place = place[draw(st.sampled_from(inner))]
        key = draw(st.sampled_from(sorted(place) or ["a"]) | st.text(max_size=6))
        if draw(st.integers(0, 4)):
            place[key] = draw(values)
        else:
            place.pop(key, None)
    return data


@given(changed(CONFIG), st.sampled_from(KINDS))
def test_huggingface(data, kind):
    data.setdefault("model_type", kind)
    attempt(json.dumps({**data, "model_type": kind}), "config.json")
    attempt(json.dumps(data), "config.json")
    attempt(json.dumps({"model_type": "llava", "text_config": {**data, "model_type": kind}}), "config.json")


@given(changed(TITAN), st.none() | st.integers(1, 4096))
def test_torchtitan(data, gpus):
    attempt(json.dumps(data), "titan.json", gpus=gpus)


@given(changed(DEEPSPEED), st.none() | st.integers(1, 64))
def test_deepspeed(data, gpus):
    attempt(json.dumps(data), "ds.json", gpus=gpus, model="llama2-7b")


PIECES = (
    "$A", "${A}", "${A:-$B}", "$((", "))", "$(", ")", "(", "`", "'", '"', "\\", "\n", " ", ";", "&&", "||", "#", "[[", "]]",
    "[", "]", "if ", "then ", "else ", "fi", "for ", "do ", "done", "case ", "esac", "f() {", "}", "<<EOF\n", "EOF\n", "<", ">",
    "A=", "A+=", "A=(", "export ", "1", "2*A", "**", "%", "/0", "--num-layers 2 ", "--hidden-size 64 ", "--num-attention-heads 4 ",
    "--seq-length 64 ", "--micro-batch-size ", "--bf16 ", "python pretrain_gpt.py ", "torchrun --nnodes 2 ", "#SBATCH -N 2\n",
    "${A[@]}", '"${A[@]}"', "$@", "$1", "${#A[@]}", "é", "<path to it>", "--fp8-format", "--tensor-model-parallel-size=", "=",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_shell(text):
    attempt(f"{text}\npretrain_gpt.py", "run.sh")
    attempt(
        f"A=1\npython pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 {text}",
        "run.sh",
    )


@pytest.mark.parametrize("text", ["case ", "function ", "case\nfunction", "for ", "if ", "while ", "select "])
def test_words_that_lack_what_they_open(text):
    attempt(f"{text}\npretrain_gpt.py", "run.sh")


@given(st.text(max_size=60))
@pytest.mark.parametrize("where", ["a.json", "a.toml", "a.sh"])
def test_any_text(where, text):
    attempt(text, where)


SCRIPTS = [path.read_text() for path in sorted(FOREIGN.glob("*.sh"))]


@given(st.sampled_from(SCRIPTS), st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES)), min_size=1, max_size=5))
def test_scripts_with_something_in_them(text, insertions):
    for place, piece in insertions:
        at = int(place * len(text))
        text = text[:at] + piece + text[at:]
    attempt(text, "run.sh")
