"""Foreign files as scenarios: which kind a file is, its reader, and the scenario that comes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sim.errors import SpecError, nearest
from sim.foreign.importers.deepspeed import is_deepspeed, read_deepspeed
from sim.foreign.importers.defaults import Foreign, Given, with_units_of
from sim.foreign.importers.huggingface.config import given_model, is_huggingface, read_huggingface
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import HEADINGS, Ledger, Section, entry_lines, short
from sim.foreign.importers.megatron.script import is_megatron, read_megatron
from sim.foreign.importers.nemo.recipes import (
    is_megatron_bridge,
    is_nemo,
    is_overrides,
    read_megatron_bridge,
    read_nemo,
    read_overrides,
)
from sim.foreign.importers.nemo.yaml_settings import read_nemo_yaml
from sim.foreign.importers.recipes.launched import PROGRAMS, read_launched, starts
from sim.foreign.importers.recipes.recipe import read_recipe_of
from sim.foreign.importers.recipes.settings import rules_of
from sim.foreign.importers.sources import parse_json, parse_toml, text_of
from sim.foreign.importers.torchtitan.job_config import is_torchtitan, is_torchtitan_python, read_torchtitan
from sim.foreign.logs import printed_arguments
from sim.specs.loading import build_scenario
from sim.specs.presets import model_named
from sim.specs.scenario import Scenario
from sim.specs.yaml12 import dump_yaml, parse_yaml

SIGNS = "recipes"
"""The table of what tells a recipe of each kind."""
RECIPES = {kind: str(signs["title"]) for kind, signs in table(SIGNS).items()}
"""Recipes in YAML, TOML and JSON, and what messages call them."""
KINDS = {
    "huggingface": "Hugging Face config.json",
    "megatron": "Megatron-LM launch script or log",
    "torchtitan": "torchtitan configuration",
    "deepspeed": "DeepSpeed configuration",
    **RECIPES,
    "megatron_bridge": "Megatron-Bridge recipe",
    "nemo": "NeMo recipe",
}
"""Kinds of files, and what messages call them."""
LOGS = (".log", ".out", ".err", ".txt", ".gz")
"""How names of logs end, of any length, into which Megatron-LM may have printed its arguments."""


def has_signs(kind: str, data: Any) -> bool:
    """Whether data are a recipe of a kind."""
    signs = table(SIGNS)[kind]
    return (
        isinstance(data, Mapping)
        and all(any(_has(data, sign) for sign in group) for group in signs["needs"])
        and not any(_has(data, sign) for sign in signs.get("never", ()))
    )


def _telling(kind: str, data: Any) -> int:
    """How many of the file's keys are settings that the kind's table knows: of two kinds the more telling counts."""
    settings = table(kind).get("settings", {}).values()
    known = {name for setting in settings for rule in rules_of(setting) for name in rule["keys"]}
    return sum(_has(data, name) for name in known)


def _has(data: Any, sign: str) -> bool:
    found: Any = data
    for part in sign.removesuffix("=").split("."):
        if not isinstance(found, Mapping) or part not in found:
            return False
        found = found[part]
    return isinstance(found, str) if sign.endswith("=") else True


class Reader(NamedTuple):
    """How files of a kind in one form are told, and read.

    form : "data" of JSON, TOML or YAML; or a text: "script" of a shell, or "python".
    fits : whether data, or a text, are of the kind. The first of a form that fits counts.
    read : to a scenario's sections.
    """

    kind: str
    form: Literal["data", "script", "python"]
    fits: Callable[[Any], bool]
    read: Callable[[Foreign], dict[str, Any]]


def _reader(kind: str) -> Callable[[Foreign], dict[str, Any]]:
    if kind == "torchtitan":
        return read_torchtitan
    return partial(read_nemo_yaml if kind in ("nemo_yaml", "bridge_yaml") else read_recipe_of, kind)


READERS = (
    *(Reader(kind, "data", partial(has_signs, kind), _reader(kind)) for kind in RECIPES),
    Reader("huggingface", "data", is_huggingface, read_huggingface),
    Reader("torchtitan", "data", is_torchtitan, read_torchtitan),
    Reader("deepspeed", "data", is_deepspeed, read_deepspeed),
    Reader("megatron", "data", is_megatron, read_megatron),
    *(Reader(kind, "script", partial(starts, kind), partial(read_launched, kind, _reader(kind))) for kind in PROGRAMS),
    Reader("bridge_yaml", "script", is_overrides, read_overrides),
    Reader("megatron", "script", is_megatron, read_megatron),
    Reader("torchtitan", "python", is_torchtitan_python, read_torchtitan),
    Reader("megatron_bridge", "python", is_megatron_bridge, read_megatron_bridge),
    Reader("nemo", "python", is_nemo, read_nemo),
)


_YAML = re.compile(r"(---|[A-Za-z_][\w.-]*:(\s|$))")
_PYTHON = re.compile(r"(from\s+[\w.]+\s+import|import\s+\w|def\s+\w|class\s+\w|@\w|\"\"\")")
"""First lines of files whose name does not say what they are."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A foreign file as a scenario.

    kind : one of KINDS.
    data : the scenario's sections, as in a file.
    ledger : what was read, filled in and left out.
    """

    kind: str
    source: str
    data: dict[str, Any]
    ledger: Ledger

    def scenario(self) -> Scenario:
        """The scenario, validated. Raises SpecError: what the file and the options say does not go together."""
        return build_scenario(self.data, where=self.source)

    def account_lines(self) -> list[str]:
        """What was read, filled in and left out, in words."""
        lines = [f"From {short(self.source)}, a {KINDS[self.kind]}.", f"{self.ledger.confidence}."]
        for part, heading in HEADINGS.items():
            entries = getattr(self.ledger, part)
            lines += [f"{heading}:"] if entries else []
            lines += [f"  {line}" for line in entry_lines(entries, by_note=part in ("unpriced", "immaterial"))]
        return lines

    def to_yaml(self) -> str:
        """A scenario file; what was read, filled in and left out stands in it as comments."""
        return "".join(f"# {line}\n" for line in self.account_lines()) + dump_yaml(self.data)


def import_file(
    path: Path | str, given: Given | None = None, *, kind: str | None = None, overrides: Sequence[str] = ()
) -> Imported:
    """Read a foreign configuration.

    Parameters
    ----------
    path : path
        A `config.json`, a launch script, torchtitan's TOML, JSON or Python, DeepSpeed's JSON, a recipe in Python.
    given : Given, optional
        GPUs, cluster and model, where the file does not say.
    kind : str, optional
        One of KINDS; told by the content if not given.
    overrides : sequence of str
        "training.sequence_length=8192": fields of the scenario, laid over what was read.

    Raises
    ------
    SpecError
        The file cannot be read, is of no known kind, or describes what flopcast does not model.
    """
    path = Path(path)
    log = path.suffix in LOGS and printed_arguments(path)
    try:
        text = log or text_of(path)
    except SpecError as error:
        why = str(error)
        with suppress(SpecError):
            model_named(str(path))
            plans = f"flopcast plan {path} --gpu h100 --gpus 64 plans its training"
            why += f"; it is the name of a model, not of a file: {plans}"
        raise SpecError(why) from None
    return import_text(text, str(path), given, kind=kind, overrides=overrides, folder=path.parent)


def import_text(
    text: str,
    where: str,
    given: Given | None = None,
    *,
    kind: str | None = None,
    overrides: Sequence[str] = (),
    folder: Path | None = None,
) -> Imported:
    """Read a foreign configuration that is text already; as `import_file` otherwise.

    Parameters
    ----------
    where : str
        What messages call it; its ending tells TOML from JSON and scripts.
    folder : Path, optional
        Where a DeepSpeed file's `config.json` may lie.
    """
    given = given or Given()
    if kind is not None and kind not in KINDS:
        raise SpecError(f"unknown kind of file {kind!r}{nearest(kind, KINDS)}")
    if given.gpus is not None and not 1 <= given.gpus <= 10**8:
        raise SpecError(f"--gpus {short(given.gpus)} must be a whole number from 1 to 100,000,000")
    form, data = _data_in(text, where)
    found = kind or _kind_of(form, data, text, where)
    forms = ("script", "data") if form == "script" else (form,)
    reader = next((each for of in forms for each in READERS if (each.kind, each.form) == (found, of)), None)
    if reader is None:
        raise SpecError(f"{where}: a {KINDS[found]} is read from no file in Python; give the file itself")
    if reader.form == "data" and found != "megatron" and not isinstance(data, Mapping):
        raise SpecError(f"{where} is no {KINDS[found]}: it holds no mapping of keys")
    _check_options(given, found, form, where)
    known = {} if found == "huggingface" else table(found)  # which knows of no tool's release
    ledger = Ledger(where, (known.get("called", ""), known.get("defaults_of", "")))
    model = None if given.model is None else given_model(given.model, ledger)
    try:
        sections = reader.read(Foreign(text, data, ledger, given, model, folder))
    except RecursionError:
        raise SpecError(f"{where} is nested too deeply; no recipe is") from None
    ledger.tell_rest()
    if "cluster" in sections:
        precision = sections["training"].get("precision", "bf16")
        sections["cluster"] = with_units_of(sections["cluster"], precision, given, ledger)
    name = _name(where) if found != "huggingface" else sections["model"]["name"]
    if form == "python":
        name = ledger.told("recipe") or name  # of many in a file
    filled: dict[str, Any] = {"name": name, "description": f"Imported from {short(where)}"}
    for part in ("model", "cluster", "plan", "training", "stack"):
        if part in sections:  # YAML writes plain mappings only
            filled[part] = dict(sections[part]) if isinstance(sections[part], Section) else sections[part]
    for override in overrides:
        _set(filled, override, ledger)
    imported = Imported(found, where, filled, ledger)
    imported.scenario()
    return imported


def _data_in(text: str, where: str) -> tuple[str, Any]:
    """(the form of a text as its name and its first letters tell it, its data; None where it is no data)."""
    begins, ending = text.lstrip()[:1], Path(where).suffix
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    told = ending in (".toml", ".yaml", ".yml", ".json", ".py", ".sh", ".slurm", ".sbatch", ".bash")
    if ending == ".toml" or (not told and begins == "[" and not first.startswith(("[[ ", "[ "))):
        return "data", parse_toml(text, where)
    if ending == ".json" or (begins == "{" and ending not in (".yaml", ".yml")):
        return "data", parse_json(text, where)
    if ending in (".yaml", ".yml") or (not told and _YAML.match(first)):
        return "data", parse_yaml(text, where)
    if ending == ".py" or (not told and _PYTHON.match(first)):
        return "python", None
    return "script", None


def _check_options(given: Given, found: str, form: str, where: str) -> None:
    """Refuse options that would say nothing of a file of this kind."""
    what = f"{where} is a {KINDS[found]}"
    if given.model is not None and found == "huggingface":
        raise SpecError(f"{what}, which describes its model itself; leave --model out")
    if (given.args or given.env) and form != "script":
        raise SpecError(f"{what}; --arg and --env are of scripts that are called: leave them out")
    if given.recipe is not None and form != "python" and found != "bridge_yaml":
        raise SpecError(f"{what}; --recipe chooses one in a Python file: leave it out")


def _kind_of(form: str, data: Any, text: str, where: str) -> str:
    content = data if form == "data" else text
    fitting = [reader.kind for reader in READERS if reader.form == form and reader.fits(content)]
    recipes = [kind for kind in fitting if kind in RECIPES]
    unread = table("unread")["data"] if recipes or not fitting else {}
    why = next((why for why, keys in unread.items() if any(_has(data, key) for key in keys)), None)
    if why is not None:
        raise SpecError(f"{where} {why}")
    if len(recipes) > 1:
        return max(recipes, key=lambda kind: _telling(kind, content))
    kind = next(iter(fitting), None)
    if kind is None:
        texts = table("unread")["texts"] if form != "data" else {}
        why = next((why for words, why in texts.items() if re.search(words, text[:200_000])), None)
        if why is not None:
            raise SpecError(f"{where} {why}")
        if not text.strip():
            raise SpecError(f"{where} is empty")
        if form == "data" and isinstance(data, Mapping) and {"model", "plan"} <= data.keys():
            raise SpecError(f"{where} looks like a scenario, which needs no import: flopcast estimate {where}")
        raise SpecError(
            f"{where} is of no kind that can be imported; known are: {', '.join(KINDS.values())}. --kind NAME "
            "takes a file for one of them"
        )
    return kind


def _set(sections: dict[str, Any], override: str, ledger: Ledger) -> None:
    """Lay `section.field=value` over what was read."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise SpecError(f"--set {override!r} must look like plan.tp=4")
    value = parse_yaml(text, f"--set {override!r}")
    target = sections
    for key in keys[:-1]:
        below = target.get(key)
        target[key] = {"preset": below} if isinstance(below, str) else dict(below) if isinstance(below, Mapping) else {}
        target = target[key]
    target[keys[-1]] = ledger.took(path.strip(), value, "--set")


def _name(where: str) -> str:
    """The scenario's name: the file's, or its folder's where files of the kind all have one name."""
    path = Path(where)
    generic = path.stem in ("config", "ds_config", "train", "run")
    return short(path.parent.name if generic and path.parent.name else path.stem) or "imported"
