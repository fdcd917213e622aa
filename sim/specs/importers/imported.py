"""Foreign files as scenarios: which kind a file is, its reader, and the scenario that comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import SpecError, nearest
from sim.specs.importers.deepspeed import is_deepspeed, read_deepspeed
from sim.specs.importers.defaults import (
    Given,
    assume_batch,
    assume_sequence,
    cluster_of,
    cluster_section,
    deal_experts,
    fewest_gpus,
)
from sim.specs.importers.huggingface import is_huggingface, read_model
from sim.specs.importers.ledger import Ledger, Section, entry_lines, short
from sim.specs.importers.megatron import is_megatron, read_megatron
from sim.specs.importers.sources import parse_json, parse_toml, text_of
from sim.specs.importers.torchtitan import is_torchtitan, read_torchtitan
from sim.specs.loading import build_scenario
from sim.specs.presets import load_preset
from sim.specs.scenario import Scenario
from sim.specs.yaml12 import parse_yaml

KINDS = {
    "huggingface": "Hugging Face config.json",
    "megatron": "Megatron-LM launch script",
    "torchtitan": "torchtitan configuration",
    "deepspeed": "DeepSpeed configuration",
}


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
        """The scenario, validated.

        Raises
        ------
        SpecError
            What the file and the options say does not go together.
        """
        return build_scenario(self.data, where=self.source)

    def to_yaml(self) -> str:
        """A scenario file; what was read, filled in and left out stands in it as comments."""
        import yaml

        lines = [f"# From {short(self.source)}, a {KINDS[self.kind]}."]
        for title, entries in (
            ("Read from it", self.ledger.read),
            ("Filled in, because it does not say", self.ledger.defaulted),
            ("Left out", self.ledger.ignored),
        ):
            lines += [f"# {title}:"] if entries else []
            lines += [f"#   {line}" for line in entry_lines(entries, by_note=entries is self.ledger.ignored)]
        body = yaml.safe_dump(self.data, sort_keys=False, allow_unicode=True, width=120)
        return "\n".join(lines) + "\n" + body


def import_file(
    path: Path | str, given: Given | None = None, *, kind: str | None = None, overrides: Sequence[str] = ()
) -> Imported:
    """Read a foreign configuration.

    Parameters
    ----------
    path : path
        A `config.json`, a launch script, torchtitan's TOML or JSON, or DeepSpeed's JSON.
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
    return import_text(text_of(path), str(path), given, kind=kind, overrides=overrides, folder=path.parent)


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
    data = _data_in(text, where)
    found = kind or _kind_of(data, text, where)
    if found != "megatron" and not isinstance(data, Mapping):
        raise SpecError(f"{where} is no {KINDS[found]}: it holds no mapping of keys")
    ledger = Ledger(where)
    model = None if given.model is None else _given_model(given.model, ledger)
    sections = _READERS[found](data, text, ledger, given, model, folder)
    name = _name(where) if found != "huggingface" else sections["model"]["name"]
    # YAML writes plain mappings only.
    plain = {key: dict(value) if isinstance(value, Section) else value for key, value in sections.items()}
    sections = {"name": name, "description": f"Imported from {short(where)}", **plain}
    for override in overrides:
        _set(sections, override, ledger)
    imported = Imported(found, where, sections, ledger)
    imported.scenario()
    return imported


def _data_in(text: str, where: str) -> Any:
    """Data of JSON or TOML; None for a script."""
    begins = text.lstrip()[:1]
    if where.endswith(".toml"):
        return parse_toml(text, where)
    if where.endswith(".json") or begins == "{":
        return parse_json(text, where)
    if begins == "[" and not text.lstrip().startswith(("[[ ", "[ ")):
        return parse_toml(text, where)
    return None


def _kind_of(data: Any, text: str, where: str) -> str:
    tests = {"huggingface": is_huggingface, "torchtitan": is_torchtitan, "deepspeed": is_deepspeed}
    kind = next((name for name, test in tests.items() if data is not None and test(data)), None)
    if kind is None and data is None and is_megatron(text):
        kind = "megatron"
    if kind is None:
        raise SpecError(
            f"{where} is of no kind that can be imported; known are: {', '.join(KINDS.values())}. A scenario in YAML "
            "needs no import"
        )
    return kind


def _huggingface(data: Any, text: str, ledger: Ledger, given: Given, model: Any, folder: Path | None) -> dict[str, Any]:
    section = read_model(data, ledger)
    name, cluster = cluster_of(given, ledger)
    gpus = ledger.took("GPUs", given.gpus, "--gpus") if given.gpus else fewest_gpus(section, cluster, ledger)
    plan, training = Section("plan", ledger, dp=gpus), Section("training", ledger, global_batch_size=None)
    deal_experts(plan, section, cluster, gpus)
    plan.assume("zero_stage", 3, "sharded over all GPUs; flopcast search finds better")
    plan.assume("recompute", "full", "the same")
    assume_sequence(training, section)
    assume_batch(training, gpus)
    training.assume("precision", "bf16", "usual")
    stack = ledger.assume("stack", "torchtitan", "PyTorch's own sharding; --set stack=NAME")
    where = cluster_section(name, cluster, gpus, given, ledger)
    return {"model": section, "cluster": where, "plan": plan, "training": training, "stack": stack}


def _megatron(data: Any, text: str, ledger: Ledger, given: Given, model: Any, folder: Path | None) -> dict[str, Any]:
    sections = read_megatron(text, ledger, given)
    return sections if model is None else {**sections, "model": model}


def _torchtitan(data: Any, text: str, ledger: Ledger, given: Given, model: Any, folder: Path | None) -> dict[str, Any]:
    return read_torchtitan(data, ledger, given, model)


def _deepspeed(data: Any, text: str, ledger: Ledger, given: Given, model: Any, folder: Path | None) -> dict[str, Any]:
    neighbour = None if folder is None else folder / "config.json"
    if model is None and neighbour is not None and neighbour.is_file():
        model = _given_model(str(neighbour), ledger)
    if model is None:
        raise SpecError(
            f"{ledger.where}: a DeepSpeed file does not describe the model; give --model PRESET or --model "
            "config.json, or put the model's config.json beside it"
        )
    return read_deepspeed(data, ledger, given, model)


_READERS = {"huggingface": _huggingface, "megatron": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed}


def _given_model(name: str, ledger: Ledger) -> Any:
    """The section `model`: a preset's name, or what a config.json describes."""
    if name.endswith(".json"):
        inner = Ledger(name)
        section = read_model(parse_json(text_of(Path(name)), name), inner)
        ledger.read += inner.read
        ledger.defaulted += inner.defaulted
        ledger.ignored += inner.ignored
        return section
    load_preset("models", name)  # raises where there is none
    return ledger.took("model", name, "--model")


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
