"""What the fuzzer tries: every verb that the command line has, with odd options and damaged files.

Verbs, options and their types are asked of the command line itself, so that a new one is tried without a word here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import typer
import yaml

from tests.fuzz.mutations import changed_data, changed_text, odd_value
from tests.grammars.writing import FORMS, KINDS, write

ROOT = Path(__file__).parents[2]
SKIPPED = (
    "calibrate run", "validate job", "schema", "validate rl", "mcp",
)  # fmt: skip
"""Verbs that measure this machine, take nothing and compare hundreds of estimates with a paper, or wait for a client."""
UNTRIED = ("transfer",)
"""Options that rewrite what ships, or compare hundreds of estimates."""
SELDOM = {
    "validate": 0.5, "search": 0.3, "shortest": 0.2, "report": 0.2, "timeline": 0.4, "train": 0.6, "simulate": 0.6,
    "compare-schedules": 0.4, "anchor": 0.5, "calibrate from-runs": 0.1, "scaling fit": 0.4,
    "validate claims": 0.05, "validate steps": 0.05,
}  # fmt: skip
"""How often a verb is tried, where that is not once: those that take longer, or read no file."""
SMALL = {
    "name": "small",
    "model": {
        "num_layers": 8, "hidden_size": 1024, "num_heads": 16, "vocab_size": 32000, "position": "rotary", "norm": "rmsnorm",
        "gated_mlp": True, "bias": False, "tied_embeddings": False, "intermediate_size": 2816, "num_kv_heads": 4,
        "max_sequence_length": 2048,
    },
    "cluster": {"preset": "selene", "num_nodes": 4},
    "plan": {"tp": 2, "pp": 4, "dp": 2, "schedule": "interleaved", "num_chunks": 2, "microbatch_size": 1, "zero_stage": 1},
    "training": {"global_batch_size": 32, "sequence_length": 2048, "precision": "bf16", "tokens": 1e10},
    "stack": {"preset": "megatron-core", "overlap_grad_reduce": True},
    "profile": "a100",
}  # fmt: skip
WORDS = (
    "12 GB", "1 TB/s", "60 d", "10 min", "64..4096", "1,2,4", "15T", "300e9", "70B", "0.5", "1e6", "llama3-70b", "selene", "a100",
    "1f1b", "interleaved", "zb_v", "all", "best", "own", "plan.tp=2", "rank1", "1.2@rank1", "leaf0.cable1", "0", "-1",
)  # fmt: skip

FILES = {
    "scenario", "scenarios", "first", "second", "files", "file", "runs", "source", "profile", "profiles", "log",
}  # fmt: skip
"""Arguments that are files."""
GOOD = {
    "to": ("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed"),
    "cluster": ("selene", "superpod-h100", "ethernet-25"), "profile": ("a100", "h100"), "engine": ("dag", "des"),
    "measured": ("1.2 s", "900 ms"), "budget": ("1e24", "1e21"), "loss": ("2.0", "1.9"), "tokens": ("1T", "300e9"),
    "schedules": ("1f1b,zb_h1", "interleaved"), "workers": ("4", "2x4"),
    "bandwidths": ("10 Gbit/s", "10 Gbit/s,12 GB/s"), "rollout_gpus": ("8", "4"),
    "stack": ("megatron-core", "torchtitan"), "gpu": ("a100-sxm-80gb", "h100-sxm-80gb"), "longest": ("8k",),
    "gpus": ("64", "64..256", "8"), "samples": ("10k", "2000"), "within": ("30d", "400 h"), "response": ("2k",),
}  # fmt: skip
"""Values that options of these names can have."""


@dataclass(frozen=True)
class Case:
    """A command line of a verb, and the files that it reads, by their names in an empty folder."""

    verb: str
    words: list[str]
    files: dict[str, bytes] = field(default_factory=dict)


class Parameter(NamedTuple):
    """An argument or option of a verb.

    spelled : how it is written; empty for an argument.
    kind : the type that its annotation names.
    choices : words of which it takes one, if so.
    """

    name: str
    spelled: tuple[str, ...]
    kind: type
    choices: tuple[str, ...]
    required: bool
    several: bool


@cache
def verbs() -> dict[str, tuple[Parameter, ...]]:
    """Parameters of every verb by the words that one types."""
    from sim.cli import app

    return {
        name: tuple(_parameters(command))
        for name, command in _leaves(typer.main.get_command(app), "")
        if name not in SKIPPED
    }


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "list_commands"):
        if name and command.invoke_without_command:
            yield name, command
        for below in command.list_commands(None):
            yield from _leaves(command.get_command(None, below), f"{name} {below}".strip())
    else:
        yield name, command


def _parameters(command: Any) -> Iterator[Parameter]:
    annotations = get_type_hints(command.callback)
    for each in command.params:
        if each.name not in annotations or each.name in UNTRIED:
            continue
        kinds = [
            kind for kind in (get_args(annotations[each.name]) or (annotations[each.name],)) if kind is not type(None)
        ]
        several = get_origin(annotations[each.name]) is list or each.nargs == -1 or each.multiple
        inner = get_args(kinds[0]) if get_origin(kinds[0]) is list else kinds
        literal = get_origin(annotations[each.name]) is Literal
        option = each.param_type_name == "option"
        yield Parameter(
            each.name, (*each.opts, *each.secondary_opts) if option else (),
            str if literal or not isinstance(inner[0], type) else inner[0], tuple(map(str, kinds)) if literal else (),
            each.required, several,
        )  # fmt: skip


def draw(rng: random.Random) -> Case:
    """A command line."""
    names = sorted(verbs())
    name = rng.choices(names, [SELDOM.get(each, SELDOM.get(each.split()[0], 1.0)) for each in names])[0]
    words, files = name.split(), dict[str, bytes]()
    seldom = min(0.12, 0.7 / len(verbs()[name])) if verbs()[name] else 0.0  # of many odd options one is refused first
    for each in verbs()[name]:
        if not each.spelled:
            number = rng.choice([1, 1, 2]) if each.several else 1
            for _ in range(number if each.required or rng.random() < 0.3 else 0):
                words.append(_argument(name, each, files, rng))
        elif (name, each.name) == ("validate", "runs") or rng.random() < (
            0.95 if each.required or _always(name, each) else seldom
        ):
            words += _option(name, each, files, rng)
    if "--json" not in words and rng.random() < 0.3 and any("--json" in each.spelled for each in verbs()[name]):
        words += ["--json"] if not name.startswith("validate") else ["--json", "-"]
    return Case(name, words, files)


def _always(name: str, option: Parameter) -> bool:
    """Options without which a verb takes long, or does nothing."""
    return option.name in ("output", "out") or (name, option.name) in (
        ("rl", "rollout_gpus"), ("rl", "longest"), ("rl", "response"), ("shortest", "gpus"), ("plan", "gpus"),
        ("plan", "gpu"), ("finetune", "gpus"), ("finetune", "gpu"), ("finetune", "samples"), ("shape", "gpu"),
        ("plan-pipeline", "workers"), ("plan-pipeline", "bandwidths"),
    )  # fmt: skip


def _argument(name: str, argument: Parameter, files: dict[str, bytes], rng: random.Random) -> str:
    verb, what = name.split()[0], argument.name
    if rng.random() < 0.02:
        return str(odd_value(rng))[:6000]
    if what in FILES:
        return _file(name, what, files, rng)
    if name == "presets show":
        return rng.choice(["models", "clusters", "stacks", "gpt3-175b", "selene", "megatron-lm", str(odd_value(rng))])
    if verb in ("plan", "finetune", "shape", "shortest", "topology", "scaling", "schedule", "fields", "presets"):
        models = ["gpt3-175b", "llama3-8b", "70B"]
        good = {"shortest": models, "scaling": models, "topology": ["selene"], "schedule": ["1f1b", "zb_v"]}
        good |= {each: ["qwen3-4b", "llama3-8b", "qwen3-30b-a3b"] for each in ("plan", "finetune", "shape")}
        return rng.choice([*good.get(verb, WORDS), *good.get(verb, WORDS), str(odd_value(rng))])
    return rng.choice([*WORDS, str(odd_value(rng))])


def _option(name: str, option: Parameter, files: dict[str, bytes], rng: random.Random) -> list[str]:
    spelled = rng.choice(option.spelled)
    if option.kind is bool:
        return [spelled]
    if option.name in ("overrides", "set", "settings"):
        return [spelled, _override(rng)]
    if option.kind is Path or option.name in ("png", "figure", "trace", "output", "out"):
        if option.name in ("runs", "memory", "profile"):
            return [spelled, _file(name, option.name, files, rng)]
        endings = {"png": ".png", "figure": ".png", "trace": ".json"}
        ending = ".html" if name == "report" else endings.get(option.name, ".yaml")
        return [spelled, rng.choice([f"out{ending}", f"out{ending}", f"no/such/out{ending}", "/dev/full", ""])]
    if option.name in GOOD and rng.random() < 0.75:
        return [spelled, rng.choice(GOOD[option.name])]
    if option.choices:
        return [spelled, rng.choice([*option.choices, str(odd_value(rng))])]
    if option.kind in (int, float):
        return [spelled, str(rng.choice([1, 2, 4, 8, 16, 64, 0.5, odd_value(rng), odd_value(rng)]))[:400]]
    return [spelled, rng.choice([*WORDS, *WORDS, str(odd_value(rng))])]


@cache
def _fields() -> tuple[str, ...]:
    from sim.report.fields import scenario_sections

    return tuple(entry.path for section in scenario_sections() for entry in section.fields)


def _override(rng: random.Random) -> str:
    path = (
        rng.choice(_fields()) if rng.random() < 0.95 else rng.choice(["plan", "plan.", "x.y", "cluster.node.gpu", ""])
    )
    value = rng.choice([1, 2, 4, 8, 64, "true", "none", odd_value(rng), odd_value(rng)])
    return f"{path}{rng.choice(['='] * 20 + ['', '=='])}{value}"


def _file(name: str, what: str, files: dict[str, bytes], rng: random.Random) -> str:
    """A damaged file of the kind that a verb reads; its name."""
    kind = _kind_of_file(name, what)
    if kind == "foreign" and rng.random() < 0.8:
        own, whole, _, _ = write(rng.choice([*KINDS, *FORMS]), rng)
        text, ending = changed_text(whole, rng) if rng.random() < 0.9 else whole.encode(), Path(own).suffix
    elif kind == "scenario" and rng.random() < 0.5:
        data = changed_data(SMALL, rng) if rng.random() < 0.6 else SMALL
        text, ending = yaml.safe_dump(data, sort_keys=False).encode(), ".yaml"
    else:
        path = rng.choice(_originals(kind))
        text, ending = _damaged(path, rng), path.suffix
    given = f"given{len(files)}{ending}"
    files[given] = text
    return given


def _damaged(path: Path, rng: random.Random) -> bytes:
    """A file's content with one fault or a few; data that can be read are sometimes changed as data."""
    text = path.read_text()
    if path.suffix == ".csv" and text.count("\n") > 40:
        lines = text.splitlines(keepends=True)
        text = "".join([lines[0], *rng.sample(lines[1:], 12)])
    if rng.random() < 0.2:
        return text.encode()
    if rng.random() < 0.5:
        try:
            if path.suffix == ".json":
                return json.dumps(changed_data(json.loads(text), rng)).encode()
            if path.suffix in (".yaml", ".yml"):
                return yaml.safe_dump(changed_data(yaml.safe_load(text), rng), sort_keys=False).encode()
            if path.suffix == ".jsonl":
                lines = text.splitlines()
                at = rng.randrange(len(lines))
                lines[at] = json.dumps(changed_data(json.loads(lines[at]), rng))
                return "\n".join(lines).encode()
        except (ValueError, OverflowError, yaml.YAMLError):
            pass
    return changed_text(text, rng)


KINDS_OF_FILES = {
    ("import", ""): "foreign", ("calibrate fit", ""): "measurements", ("calibrate from-runs", ""): "runs",
    ("calibrate matters", "scenario"): "scenario", ("calibrate", ""): "profile", ("scaling", ""): "losses",
    ("validate", "memory"): "memory", ("validate", ""): "runs", ("", "profile"): "profile", ("", "log"): "log",
    ("plan-pipeline", ""): "layers", ("rl", ""): "rl",
}  # fmt: skip
"""Kinds of files by how a verb and an argument begin, the first that fits; scenarios elsewhere."""


def _kind_of_file(name: str, what: str) -> str:
    found = (kind for (verb, named), kind in KINDS_OF_FILES.items() if name.startswith(verb) and what.startswith(named))
    return next(found, "scenario")


@cache
def _originals(kind: str) -> tuple[Path, ...]:
    places = {
        "scenario": ("scenarios/*.yaml", "scenarios/papers/*.yaml"),
        "log": ("tests/foreign/logs/*",),
        "foreign": ("tests/foreign/files/*", "tests/foreign/logs/megatron.log", "scenarios/gpt3-175b-1024-a100.yaml"),
        "measurements": ("calibration/data/*",),
        "profile": ("sim/presets/profiles/*.yaml",),
        "runs": ("tests/fuzz/runs.csv",),
        "memory": ("tests/fuzz/memory.csv",),
        "losses": ("tests/fuzz/losses.csv",),
        "rl": ("scenarios/qwen3-30b-a3b-rl-32-h100.yaml",),
        "layers": ("scenarios/layers/*",),
    }
    return tuple(path for pattern in places[kind] for path in sorted(ROOT.glob(pattern)) if path.is_file())
