"""Nothing in a file is without effect in silence: a setting that is changed changes the scenario or the account."""

import copy
import json
import random
import tomllib

import pytest
from grammars.writing import SMALL, write
from rows import forms, rows

from sim.errors import SpecError
from sim.foreign.importers import Given, import_text
from sim.foreign.importers.imported import KINDS
from sim.foreign.importers.keys import Arguments, table
from sim.specs.yaml12 import parse_yaml

SAID_AS_A_WHOLE = ("vision_config",)
"""Parts of a file that the account names as a whole: models beside the language model."""
SAME = {  # keys of which two words mean the same to us, which the account says
    ("olmo", "model.flash_attention"): "both are fused kernels of PyTorch's",
    ("olmo", "model.alibi"): "rope goes before it",
}
DATA = [kind for kind in KINDS if kind not in ("megatron", "megatron_bridge", "nemo")]
SCRIPT = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 256 --num-attention-heads 8 --seq-length 512 "
    "--bf16 --pipeline-model-parallel-size 2 --num-experts 8 --moe-ffn-hidden-size 128"
)


def leaves(data, path=()):
    """(path, value) of everything that no mapping holds."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def others(value):
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value or 1, value + 1]
    if isinstance(value, float):
        return [2 * value or 0.5]
    if isinstance(value, str):
        return [f"x{value}", f"{value}x"]
    return [[*value, "x"]] if isinstance(value, list) else [1]


def changed(data, path, value):
    data = copy.deepcopy(data)
    place = data
    for name in path[:-1]:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            return None
    place[path[-1]] = value
    return data


def outcome(text, name, given, kind=None):
    """The scenario with its account, or why there is none."""
    try:
        return import_text(text, name, given, kind=kind).to_yaml()
    except SpecError as error:
        return str(error)


@forms("seeds", range(1), range(2))
@pytest.mark.parametrize("kind", DATA)
def test_a_value_that_is_changed_is_seen(kind, seeds):
    rows("seed", seeds)(the_change_is_seen)(kind=kind)


def the_change_is_seen(kind, seed):
    name, text, _, options = write(kind, random.Random(seed))
    if name.endswith((".py", ".sh")):
        return
    given = Given(**{key: value for key, value in options.items() if key != "set"})
    data = tomllib.loads(text) if name.endswith(".toml") else parse_yaml(text, name)

    def said(other):
        return outcome(json.dumps(other, default=str), "c.json", given, kind)

    usual = said(data)
    silent = [
        ".".join(map(str, path))
        for path, value in leaves(data)
        if path[0] not in SAID_AS_A_WHOLE and all(said(changed(data, path, each)) == usual for each in others(value))
    ]
    assert not [name for name in silent if (kind, name) not in SAME], silent


KEYS = [
    (kind, key)
    for kind in SMALL
    for rule in table(kind).get("settings", {}).values()
    for each in ([rule] if isinstance(rule, dict) else rule if isinstance(rule[0], dict) else [{"keys": rule}])
    for key in each["keys"]
]


@forms("every", 5, 1)
def test_every_key_of_a_table_is_seen(every):
    rows(("kind", "key"), KEYS[::every])(the_key_is_seen)()


def the_key_is_seen(kind, key):
    given = Given(gpus=8, model="llama2-7b" if kind == "accelerate" else None)
    values = [2, 4, "x", "y", True, False]
    files = [changed(SMALL[kind], key.split("."), value) for value in values]
    found = (outcome(json.dumps(data), "c.json", given, kind) for data in files if data is not None)
    first = next(found, None)
    assert first is None or any(each != first for each in found)


def arguments_that_are_asked_for():
    """Every argument that the readers of Megatron-LM's scripts ask for, and all that their table names."""
    asked = set()
    pop = Arguments._pop

    def noted(self, name):
        asked.add((self.kind, name))
        return pop(self, name)

    Arguments._pop = noted
    try:
        for more in ("", "--deepspeed", "--multi-latent-attention", "--hybrid-layer-pattern M*-M", "--window-size 8,0"):
            outcome(f"{SCRIPT} {more}", "run.sh", Given())
    finally:
        Arguments._pop = pop
    return sorted({name for kind, name in asked if kind == "megatron" and len(name) > 2})


LAUNCHERS = {
    "gpus", "gpus-per-node", "gpus-per-task", "gres", "nnodes", "nodes", "nproc-per-node", "nproc-per-rank", "npernode",
    "ntasks", "ntasks-per-node", "num-gpus", "num-machines", "num-nodes", "num-processes", "ppn", "tasks-per-node",
}  # fmt: skip


@forms("every", 4, 1)
def test_every_argument_of_megatron_lm_is_seen(every):
    rows("name", arguments_that_are_asked_for()[::every])(the_argument_is_seen)()


def the_argument_is_seen(name):
    """Whether it is a switch, a number or a word."""
    if name in LAUNCHERS:
        return
    words = ["", f"--{name}", *(f"--{name} {value}" for value in ("2", "4", "x"))]
    given, script = Given(gpus=8), SCRIPT.replace(" --bf16", "") if name == "bf16" else SCRIPT
    found = (outcome(f"{script} {word}", "run.sh", given) for word in words)
    usual = next(found)
    assert any(each != usual for each in found)
