"""Launch scripts of trainers, whose arguments are the settings of a recipe: `--name value` or `name=value`, over the
file that they name. Which program is of which kind stands in the table `launchers`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.keys import NOT_RUN, UNKNOWN, put_at, reason_to_ignore, table
from sim.foreign.importers.ledger import Ledger, short
from sim.foreign.importers.megatron.launch import started_by
from sim.foreign.importers.shell.reader import read_script
from sim.foreign.importers.shell.script import Files, Started
from sim.foreign.importers.shell.tree import MARK
from sim.foreign.importers.sources import parse_json, parse_toml
from sim.specs.yaml12 import parse_yaml

PROGRAMS: dict[str, list[str]] = table("launchers")["programs"]
_DATA = (".yaml", ".yml", ".json", ".toml")
_METHOD = re.compile(r"^(?:finetune_)?(?:lora|full|adapter)(?:_\w+)?$")
_NAMED = re.compile(r"[+~]{0,2}([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)


def starts(kind: str, text: str) -> bool:
    """Whether a script starts a program of a kind, and none of Megatron-LM's."""
    plain = re.sub(r"\\?\n\s*|[ \t]+", " ", text)
    return not re.search(r"--num[-_]layers", text) and _program(kind, plain) is not None


def _program(kind: str, command: str) -> int | None:
    """Where the words of the program end; None where it is of another kind."""
    found = (re.search(pattern, command, re.DOTALL) for pattern in PROGRAMS[kind])
    return next((each.end() for each in found if each), None)


def read_launched(kind: str, read: Callable[[Foreign], dict[str, Any]], file: Foreign) -> dict[str, Any]:
    """A scenario's sections from the last command that starts a program of a kind. Raises SpecError: no such command,
    or settings in a file that is not beside the script."""
    ledger = file.ledger
    script = read_script(file.text, ledger, file.given, file.folder)
    found = [(each, at) for each in script.commands if (at := _program(kind, " ".join(each.words))) is not None]
    if not found:
        raise ledger.error("no command that starts the program was found; give the script that starts it")
    started, end = next((each for each in reversed(found) if not each[0].doubt), found[-1])
    at = len(" ".join(started.words)[:end].split(" "))
    own = started.words[at:]
    behind = own.index("--") if "--" in own else len(own)
    inner = ["torchrun", *own[behind:]] if "--" in own else []  # as Axolotl starts it, or accelerate's
    names = table("launchers")["exported"].get(kind, ())
    exported = [f"{name}={value}" for name in names if (value := script.variable(name)) is not None]
    launcher = [*started.directives, *exported, *started.environment, *started.words[:at], *inner]
    started = replace(started, words=started.words[: at + behind])
    ledger.took("command", short(MARK.sub("?", " ".join(started.words[:at]))), f"line {started.line}")
    data = _settings(kind, started, at, script.files, ledger)
    if kind == "trl" and (name := data.pop("accelerate_config", None)) is not None:  # of a file, or of TRL's own
        launcher += ["--config_file", str(name)]
    if kind == "litgpt":
        _take_method(data, started.words, at, ledger)
    if kind in ("trl", "llama_factory", "swift"):
        data = {**_sharded_by(launcher, script.files), **data}
    gpus, source = started_by(script, launcher, ledger)
    return read(replace(file, data=data, started=None if gpus is None else (gpus, source)))


def _settings(kind: str, started: Started, at: int, files: Files, ledger: Ledger) -> dict[str, Any]:
    """The arguments of a command, laid over the file that they name."""
    known, data, said = table("launchers"), dict[str, Any](), list(_said(started.words[at:]))
    for name, value in said:
        if name in ("", *known["files"]) and str(value).endswith(_DATA):
            path = str(value)
            text = files.text(path)
            if text is None and path.rpartition("/")[2] not in known["bases"]:
                named = short(MARK.sub("?", path))
                raise ledger.error(
                    f"line {started.line} starts a trainer whose settings stand in {named}, which is "
                    "not beside the script; import that file"
                )
            data = dict(_parsed(text, path)) if text is not None else {"base_config": path}
    for name, value in said:
        if UNKNOWN in str(value) or UNKNOWN in name:
            why, matters = reason_to_ignore(kind, name)
            ledger.ignore(MARK.sub("?", name), "?", f"its value {NOT_RUN}" if matters else why, matters)
        elif name and name not in known["files"]:
            put_at(data, name.split("."), value)
    return data


def _take_method(data: dict[str, Any], words: Sequence[str], at: int, ledger: Ledger) -> None:
    """What LitGPT's command says by its words: of which model, and how it is fine-tuned, by LoRA where nothing is said
    (litgpt/__main__.py, litgpt/finetune/lora.py)."""
    places = [words[at - 1], *takewhile(lambda word: not word.startswith("-"), words[at:])]
    tunes, method = "pretrain" not in places[0], next((each for each in places[:2] if _METHOD.search(each)), "lora")
    if tunes and "adapter" in method:
        raise ledger.error(f"{short(method)} trains LLaMA-Adapters, which flopcast does not model")
    if places[-1] not in (places[0], method):
        data.setdefault("checkpoint_dir" if tunes else "model_name", places[-1])
    if tunes and "lora" in method and "lora_r" not in data:
        data["lora_r"] = ledger.assume("lora_r", 8, "LitGPT's default where it fine-tunes by LoRA")


def _sharded_by(launcher: Sequence[str], files: Files) -> dict[str, Any]:
    """What accelerate's launcher, or the file that it names, says of sharding, in the Trainer's own words."""
    said = {name: value[0] if isinstance(value, list) else value for name, value in _said(launcher)}
    path = str(said.get("config_file", ""))
    text = files.text(path) if path else None
    if text is None:
        deepspeed = (said.get("use_deepspeed") and f"zero{said.get('zero_stage', 2)}") or path
        if said.get("use_fsdp") or "fsdp" in path.lower():
            return {"fsdp": f"full_shard{' offload' if 'offload' in path else ''}"}
        return {"deepspeed": deepspeed} if re.search(r"z(?:ero)?[_-]?(?:stage)?[_-]?\d", deepspeed) else {}
    data = _parsed(text, path)
    known, inner = str(data.get("distributed_type", "")).lower(), data.get("deepspeed_config")
    more = {name: data[name] for name in ("num_processes", "mixed_precision") if name in data}
    if known == "deepspeed":
        inner = inner if isinstance(inner, dict) else {}
        zero = {"zero_optimization": {"stage": inner.get("zero_stage", 2)}}
        return {**more, "deepspeed": inner.get("deepspeed_config_file") or zero}
    return {**more, "fsdp_config": data.get("fsdp_config"), "fsdp": "full_shard"} if known == "fsdp" else more


def _said(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(name, value) of arguments; "" for a word that is of none."""
    name, values = "", list[str]()
    for word in (*words, "--"):
        found = _NAMED.fullmatch(word.removeprefix("--"))
        if not word.startswith("--") and (found is None or name):
            if name:
                values.append(word)
            else:
                yield "", word
            continue
        if name:
            yield name, _value(values)
        name, values = "", []
        if found is not None:
            yield _plain(found[1]), _value([found[2]])
        else:
            name = _plain(word.removeprefix("--"))


def _plain(name: str) -> str:
    return name if "." in name else name.replace("-", "_")


def _value(words: Sequence[str]) -> Any:
    """A value as YAML reads it; true where there is none, a list of several."""
    if len(words) != 1:
        return list(words) or True
    text = words[0].strip("'\"")
    try:
        return parse_yaml(text, "")
    except SpecError:
        return text


def _parsed(text: str, path: str) -> Any:
    parse = parse_json if path.endswith(".json") else parse_toml if path.endswith(".toml") else parse_yaml
    data = parse(text, path)
    if not isinstance(data, dict):
        raise SpecError(f"{path} holds no mapping of keys")
    return data
