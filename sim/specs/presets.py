"""Shipped descriptions, one thing a YAML file, every number with its source.

How close multiplies come to the peak falls as GPUs grow faster than their power: on V100 to B300 the share of peak of
long training follows the watts for each FLOP/s as a power law. Where somebody published what single multiplies reach,
that counts instead. All else is the mean of GPUs that were measured. Attention is an exception on graphics cards, whose
kernels are A100's: the exponentials between their multiplies take as many clocks, beside which multiplies of slower
matrix units take longer. What multiplies reach of that law with another maker's libraries is set on training runs,
where there are any.

A preset file says `source:` once for all its numbers, or beside a number: `memory: {value: 80 GB, source: datasheet}`.
Fitted numbers may carry the `interval` of their uncertainty too. A profile, or a section of it, with `preset: NAME` has
only what differs from that profile.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.errors import SpecError, nearest
from sim.specs.base import laid_over
from sim.specs.yaml12 import load_yaml

if TYPE_CHECKING:
    from sim.specs.hardware import GpuSpec


TABLE = Path(__file__).parent.parent / "presets" / "datasheet.yaml"
NAME = "datasheet"
"""The profile's name in scenarios."""


@cache
def shipped_table() -> dict[str, Any]:
    """What measured GPUs have in common, `presets/datasheet.yaml`."""
    table: dict[str, Any] = load_yaml(TABLE)
    return table


def datasheet_profile(gpu: GpuSpec, table: dict[str, Any] | None = None) -> dict[str, Any]:
    """The data of a profile for this GPU.

    table : as `presets/datasheet.yaml` has it, which is the default.
    """
    table = table or shipped_table()
    data: dict[str, Any] = copy.deepcopy(table["profile"])
    data["name"], data["gpu"] = NAME, gpu.name
    data["gemm"]["max_efficiency"] = _share_by_power(gpu, table)
    method = ["peaks and bandwidths of the datasheet, shares of them as on GPUs that were measured"]
    for each in rates_by_name(gpu, table):
        data[each.section] |= each.values
        method.append(each.said)
    data["provenance"] = {"method": "; ".join(method), "of_datasheet": True}
    return data


def _share_by_power(gpu: GpuSpec, table: Mapping[str, Any], of_maker: float = 1.0) -> float:
    """Share of peak that multiplies reach by the power law; without power that of the mean GPU.  [1]

    of_maker : what GPUs of a maker reach of the law's share. [1]
    """
    law, watts = table["power_law"], watts_per_flop_per_s(gpu)
    if watts is None:
        return float(table["profile"]["gemm"]["max_efficiency"])
    reached: float = law["max_efficiency"] * (watts / law["at"]) ** law["exponent"]
    return round(min(1.0, of_maker * reached), 3)


class RatesByName(NamedTuple):
    """Values of a section of the profile that a GPU's name decides, and a sentence that says whose they are.

    values : the first is what its user would state instead.
    """

    section: str
    values: dict[str, Any]
    said: str


def rates_by_name(gpu: GpuSpec, table: dict[str, Any] | None = None) -> list[RatesByName]:
    """Return what a GPU's name decides of the profile that its datasheet gives.

    Raises SpecError: it states no peak in fp32, which the rates of a graphics card's attention need.
    """
    table = table or shipped_table()
    found = []
    for maker in table.get("makers", ()):
        if gpu.name.startswith(maker["gpus"]):
            share = _share_by_power(gpu, table, maker["share"])
            whose = f"{maker['maker']}'s"
            said = (
                f"the name {gpu.name} begins with {maker['gpus']}, so it counts as {whose}: multiplies reach "
                f"{share:.0%} of peak, as in {whose} training runs"
            )
            found.append(RatesByName("gemm", {"max_efficiency": share, "alignment": maker["alignment"]}, said))
    alone = table.get("multiplies", {}).get(gpu.name)
    if alone is not None:
        said = f"multiplies reach {alone:.0%} of peak, as was measured on GPUs of the name {gpu.name}"
        found.append(RatesByName("gemm", {"max_efficiency": alone}, said))
    for each in table.get("kin", ()):
        begins = next((name for name in each["gpus"] if gpu.name.startswith(name)), None)
        if begins and "bf16" in gpu.peak_flop_per_s:  # others lack the instructions of these kernels
            values = _attention_like(gpu, each)
            said = (
                f"the name {gpu.name} begins with {begins}, so attention is priced as {each['of']}'s kernels on it: "
                f"{values['forward_efficiency']:.0%} of peak forward, {values['backward_efficiency']:.0%} backward"
            )
            found.append(RatesByName("attention", values, said))
    return found


def _attention_like(gpu: GpuSpec, like: Mapping[str, Any]) -> dict[str, Any]:
    """Rates of a measured GPU's attention kernels at this GPU's own ratio of matrix units to all others."""
    if "fp32" not in gpu.peak_flop_per_s:
        named = (name for name in preset_names("gpus") if raw_preset("gpus", name).get("name") == gpu.name)
        file = next((f"sim/presets/gpus/{name}.yaml" for name in named), "the file that describes it")
        raise SpecError(
            f"{gpu.name} states no peak in fp32 (cluster.node.gpu.peak.fp32), from which the speed of attention "
            f"follows on graphics cards; add fp32 under peak in {file}"
        )
    found = {**like["attention"], "half_columns": 0.0}  # which is not known of that GPU
    ratio = gpu.peak("bf16") / gpu.peak("fp32") / like["matrix_over_fp32"]
    for part in ("forward_efficiency", "backward_efficiency"):
        found[part] = round(1.0 / (1.0 + (1.0 / found[part] - 1.0) * ratio), 3)
    return found


def watts_per_flop_per_s(gpu: GpuSpec) -> float | None:
    """Power over the 16-bit peak; None where either is not known. [W s/FLOP]"""
    peak = peak_in_16_bits(gpu)
    return None if peak is None or gpu.max_power_w is None else gpu.max_power_w / peak


def peak_in_16_bits(gpu: GpuSpec) -> float | None:
    """Peak of multiplies in 16 bits; None where the GPU has none. [FLOP/s]"""
    return next((gpu.peak_flop_per_s[name] for name in ("bf16", "fp16") if name in gpu.peak_flop_per_s), None)


_ROOT = Path(__file__).parent.parent / "presets"
PRICES = _ROOT / "prices.yaml"
"""The price list: what GPU-hours cost where GPUs are rented."""
KINDS = ("gpus", "nodes", "clusters", "models", "frameworks", "stacks", "profiles")


@cache
def preset_names(kind: str) -> tuple[str, ...]:
    """Names of the shipped presets of one kind: one of KINDS."""
    if kind not in KINDS:
        raise SpecError(f"unknown kind of preset {kind!r}{nearest(kind, KINDS)}")
    return tuple(sorted(path.stem for path in (_ROOT / kind).glob("*.yaml")))


@cache
def model_preset(name: str) -> str:
    """The model preset of this name, however it is written: "Llama 3 70B", "meta-llama/Llama-3.1-70B-Instruct".

    Raises SpecError: no such model; the message has the nearest.
    """
    known = preset_names("models")
    plain = "-".join(name.strip().lower().replace("_", " ").split())
    if plain in known:
        return plain
    repository, presets = _repository_of(plain), repositories()
    letters = {re.sub(r"[-.]", "", each): each for each in (*presets, *known)}
    repository = letters.get(re.sub(r"[-.]", "", repository), repository)
    found = presets[repository]["preset"] if repository in presets else repository if repository in known else None
    if found is None:
        hint = nearest(repository, {*known, *presets})
        other = "; for a model of another shape give the path of its config.json"
        raise SpecError(
            f"unknown model preset {name!r}{hint if 'did you mean' in hint or '/' not in name else ''}{other}"
        )
    return found


_TUNED = re.compile(r"(-(base|chat|hf|instruct|thinking))+(-\d{4})?$")
"""How the hub names what a model was tuned for and when (Qwen3-4B-Instruct-2507): the same layers."""


def _repository_of(name: str) -> str:
    plain = "-".join(name.strip().lower().replace("_", " ").split()).rpartition("/")[2]
    return _TUNED.sub("", plain)


@cache
def repositories() -> dict[str, dict[str, Any]]:
    """Models of the hub by name: the preset of their layers, and fields that differ from it."""
    found = load_yaml(_ROOT / "repositories.yaml")
    return {name: fields if isinstance(fields, dict) else {"preset": fields} for name, fields in found.items()}


@cache
def raw_preset(kind: str, name: str) -> dict[str, Any]:
    """A preset's file as written, sources and all; a profile's laid over those that it names."""
    path = _ROOT / kind / f"{name}.yaml"
    if kind == "models" and not path.is_file() and name.strip():
        return raw_preset(kind, model_preset(name))
    if Path(name).name != name or not path.is_file():
        if (kind, name) == ("profiles", "datasheet"):
            shown = "flopcast presets show datasheet -s cluster.node.gpu=h100-sxm-80gb shows that of a GPU"
            raise SpecError(f"profile datasheet is made for each GPU from its own peaks; {shown}")
        if kind == "clusters" and name in preset_names("nodes"):
            raise SpecError(
                f"{name} is a node, not a cluster; write cluster: {{node: {name}, num_nodes: 1}}, "
                "with the number of nodes that you have"
            )
        known = [*preset_names(kind), *(["datasheet"] if kind == "profiles" else [])]
        raise SpecError(f"unknown {kind.removesuffix('s')} preset {name!r}{nearest(name, known)}")
    data = load_yaml(path)
    assert isinstance(data, dict), path
    return _over_others(data) if kind == "profiles" else data


def _over_others(data: dict[str, Any], place: tuple[str, ...] = ()) -> dict[str, Any]:
    """A profile's data, or what stands at a place of it, laid over that place of the profile named by `preset`."""
    own = {key: _over_others(item, (*place, key)) if isinstance(item, dict) else item for key, item in data.items()}
    if "preset" not in own:
        return own
    base = raw_preset("profiles", str(own.pop("preset")))
    for key in place:
        base = base[key]
    return laid_over(base, own)


def _is_sourced(item: Any) -> bool:
    return isinstance(item, dict) and "value" in item and item.keys() <= {"value", "source", "interval"}


def _is_limit(value: Any) -> bool:
    if isinstance(value, str):  # with its unit
        return value.lstrip("+-.")[:1].isdigit()
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300


def _check_source(item: dict[str, Any]) -> None:
    source = item.get("source", "")
    if not isinstance(source, (str, dict)):
        raise SpecError(f"source: {str(source)[:60]} must be text that says where a value is from")


def _values(item: Any) -> Any:
    if _is_sourced(item):
        limits = item.get("interval")
        if limits is not None and not (isinstance(limits, list) and len(limits) == 2 and all(map(_is_limit, limits))):
            raise SpecError(f"interval {str(limits)[:60]} beside value {str(item['value'])[:40]} must be two numbers")
        _check_source(item)
        return item["value"]
    if isinstance(item, dict):
        _check_source(item)
        return {key: _values(value) for key, value in item.items() if key != "source"}
    return item


def load_preset(kind: str, name: str) -> dict[str, Any]:
    """The data of a preset, sources stripped, ready for the record's validation.

    A model may also be one of the hub, or a file of its own (`model_named`). So may a cluster, a node, a GPU and a
    profile, such as one written by a calibration.

    Raises
    ------
    SpecError
        No such preset; the message names the nearest one.
    """
    if kind == "models":
        return model_named(name)[0]
    if kind in ("clusters", "nodes", "gpus", "profiles") and name.endswith((".yaml", ".yml")):
        return _of_file(kind.removesuffix("s"), Path(name))
    return _preset(kind, name)


def _preset(kind: str, name: str) -> dict[str, Any]:
    data: dict[str, Any] = _values(raw_preset(kind, name))
    data.setdefault("name", name)
    return data


def model_named(name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields of a model, and what of it is not counted.

    name : a preset's; that of a model on the hub whose shape is known here; the path of a `config.json`, of a folder
        with one, or of a YAML file with a model's fields or a section `model`. Nothing is downloaded.

    Raises SpecError: there is no such model, or the file cannot be read.
    """
    if name in preset_names("models"):
        return _preset("models", name), ()
    if name.endswith((".yaml", ".yml")):
        said = _of_file("model", Path(name))
        return (load_preset("models", str(said.pop("preset"))) if "preset" in said else {}) | said, ()
    known = None
    if not name.endswith(".json"):
        with suppress(SpecError):
            known = model_preset(name)
    found = None if known else sys.modules["sim"].further_model(name)
    if found is None:
        own = {key: value for key, value in repositories().get(_repository_of(name), {}).items() if key != "preset"}
        return _preset("models", known or model_preset(name)) | own, ()
    return {"name": name, **found[0]}, found[1]


def _of_file(section: str, path: Path) -> dict[str, Any]:
    """The model, cluster, node, GPU or profile that a YAML file describes, alone or as a scenario's section."""
    data = load_yaml(path)
    said = data.get(section, data) if isinstance(data, dict) else data
    if section == "profile" and isinstance(data, dict) and {"model", "plan"} <= data.keys():
        raise SpecError(f"{path} is a scenario, not a profile; flopcast anchor makes one from a measured step of it")
    if isinstance(said, str):
        return {"preset": said}
    if not isinstance(said, dict):
        what = f"{'is empty' if data is None else f'describes no {section}'}; give a {section}'s fields"
        raise SpecError(f"{path} {what}{f', or a scenario with a section {section}' * (section != 'profile')}")
    if section == "profile" and said.get("preset") != NAME:
        said = _over_others({"name": path.stem} | said)
    values: dict[str, Any] = _values(said)
    if section == "cluster" and "gpus_per_node" in values and "node" not in values:
        raise SpecError(
            f"{path} is a node, not a cluster; write a file with {{node: {path.name}, num_nodes: 1}} beside it, "
            "with the number of nodes that you have"
        )
    return values if "preset" in values else {"name": path.stem} | values


def split_profile(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A profile's own fields, and values of a stack that were fitted with them to training runs."""
    return {key: value for key, value in data.items() if key != "stack"}, dict(data.get("stack") or {})


def preset_source(kind: str, name: str) -> list[tuple[str, Any, str]]:
    """(field, value as written, source) of every value in a preset, for `flopcast presets show`."""
    return [(path, value, source) for path, value, source, _ in source_rows(raw_preset(kind, name))]


def source_rows(data: dict[str, Any]) -> list[tuple[str, Any, str, list[Any]]]:
    """(field, value as written, source, interval) of every value in data of the presets' format."""
    rows: list[tuple[str, Any, str, list[Any]]] = []

    def walk(item: Any, path: str, source: str) -> None:
        if _is_sourced(item):
            rows.append((path, item["value"], item.get("source", source), item.get("interval", [])))
        elif isinstance(item, dict):
            source = item.get("source", source)
            for key, value in item.items():
                if key != "source":
                    walk(value, f"{path}.{key}" if path else str(key), source)
        else:
            # A profile's name and provenance are statements about itself: a source beside them would say nothing.
            statement = "provenance" in data and path.partition(".")[0] in ("name", "gpu", "provenance")
            rows.append((path, item, "" if statement else source, []))

    walk(data, "", "")
    return rows
