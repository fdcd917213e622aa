"""Load a scenario file and overrides as a validated Scenario."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any

from sim.errors import SpecError, nearest
from sim.files import here_or_shipped, shipped_scenarios
from sim.specs import presets
from sim.specs.base import file_name, flat, laid_over
from sim.specs.frameworks import DEFAULT, LATEST, UNKNOWN, ResolvedStack, resolve_stack
from sim.specs.hardware import ClusterSpec, GpuSpec
from sim.specs.model import ModelSpec
from sim.specs.plan import ParallelPlan
from sim.specs.presets import load_preset, model_named, preset_names, split_profile
from sim.specs.profile import Profile
from sim.specs.scenario import NO_PLAN, Scenario
from sim.specs.stack import StackSpec
from sim.specs.training import TrainingSpec
from sim.specs.values import drawn_as_near
from sim.specs.yaml12 import load_yaml, parse_yaml
from sim.units import listed

# Which kind of preset a name at this place refers to.
PRESET_AT = {
    "model": "models",
    "cluster": "clusters",
    "cluster.node": "nodes",
    "cluster.node.gpu": "gpus",
    "stack": "stacks",
    "profile": "profiles",
}
SECTIONS: dict[str, Any] = {
    "model": ModelSpec,
    "cluster": ClusterSpec,
    "plan": ParallelPlan,
    "training": TrainingSpec,
    "stack": StackSpec,
    "profile": Profile,
}


def resolve(data: Any, place: str) -> Any:
    """Replace preset names at and below `place` by what they stand for."""
    # A stack is settled last, when precision, model and machine are known; overrides find a section.
    kind = None if place == "stack" else PRESET_AT.get(place)
    if place == "stack" and isinstance(data, str):
        return {"preset": data}
    if kind == "profiles" and data == presets.NAME:
        return {"preset": data}  # settled last, when the GPU is known
    if kind and isinstance(data, str):
        data = _base(kind, data, place)
    elif kind and isinstance(data, Mapping) and "preset" in data and not _is_datasheet(data):
        rest = {key: value for key, value in data.items() if key != "preset"}
        base = _base(kind, str(data["preset"]), place)
        for key, value in rest.items():  # fields of a section that the preset itself has by a preset's name
            if isinstance(value, Mapping) and isinstance(base.get(key), str) and f"{place}.{key}" in PRESET_AT:
                base[key] = {"preset": base[key]}
        data = laid_over(base, rest)
    if not isinstance(data, Mapping):
        return data
    return {
        key: resolve(value, f"{place}.{key}" if place else str(key)) if isinstance(value, (str, Mapping)) else value
        for key, value in data.items()
    }


def _base(kind: str, name: str, place: str) -> dict[str, Any]:
    """The data of a preset, or of a file that may itself begin with one."""
    data = load_preset(kind, name)
    return dict(resolve(data, place)) if "preset" in data else data


def _is_datasheet(data: Any) -> bool:
    return isinstance(data, Mapping) and data.get("preset") == presets.NAME


def _apply(data: dict[str, Any], override: str) -> None:
    """Set one `path=value` in resolved scenario data, in place."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise SpecError(f"override {override!r} must look like plan.tp=4 (field=value)")
    if keys[0] not in SECTIONS and keys != ["name"]:
        raise SpecError(f"override {override!r}: no section {keys[0]!r}{nearest(keys[0], SECTIONS)}")
    value = parse_yaml(text, f"override {override!r}") if text.strip() else None
    if keys == ["stack", "version"] and isinstance(value, float):
        value = text.strip()  # 25.10, which as a number would be 25.1
    target = data
    for depth, key in enumerate(keys[:-1], start=1):
        below = target.get(key, {})
        if not isinstance(below, dict):
            raise SpecError(f"override {override!r}: {'.'.join(keys[:depth])} is the value {below!r} and has no fields")
        target[key] = target = below
    alone = keys[-1] == "preset" or keys == ["stack", "framework"]  # another one, not changes to what is there
    merged = {keys[-1]: value} if alone else laid_over(target, {keys[-1]: value})
    target.clear()
    target.update(merged)


def build_scenario(data: Any, overrides: Sequence[str] | str = (), where: str = "scenario") -> Scenario:
    """A Scenario from data as read from YAML.

    Parameters
    ----------
    data : mapping
        Sections model, cluster, training, and optionally plan, stack, profile, name, description. A section may be the
        name of a preset, or a mapping with `preset:` and what differs from it.
    overrides : sequence of str, or one
        "plan.tp=4", "model=gpt3-175b": laid over the data in order.
    where : str
        What messages call the source.

    Raises
    ------
    SpecError, ProfileError
        Every mistake found, one per line.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f"{where} must be a mapping with model, cluster and training, not {type(data).__name__}")
    overrides = [overrides] if isinstance(overrides, str) else overrides
    known = {*SECTIONS, "name", "description"}
    unknown = [f"{where}: unknown section {key!r}{nearest(str(key), known)}" for key in data if key not in known]
    if unknown:
        raise SpecError("\n".join(unknown))
    resolved = described(data, overrides)
    _check_names(resolved, where)
    missing = [name for name in ("model", "cluster", "training") if resolved.get(name) is None]
    if missing:
        raise SpecError(f"{where}: missing section {', '.join(missing)}; a scenario needs model, cluster and training")
    left_open = _left_open(resolved)
    is_open = resolved.get("plan") in (None, {})
    resolved["plan"] = {} if is_open else resolved["plan"]
    assumed = [*([NO_PLAN] if is_open else []), *_take_stack_of_profile(resolved), *_settle_stack(resolved)]
    name = data.get("model")
    for path, _, text in (item.partition("=") for item in overrides):
        name = text.strip() if path.strip() in ("model", "model.preset") else name
    name = name.get("preset") if isinstance(name, Mapping) else name
    # Parts of the model that are not counted, where it is a model of the hub or a file of its own.
    assumed += [*(model_named(name)[1] if isinstance(name, str) else ()), *left_open]
    sections: dict[str, Any] = {name: resolved[name] for name in SECTIONS if resolved.get(name) is not None}
    profile = sections.pop("profile", None)
    sections = {name: SECTIONS[name].read(value, name) for name, value in sections.items()}
    assumed += _other_gpus(data.get("plan"), sections["plan"], overrides)
    sections["profile"] = _settled_profile(profile, sections["cluster"].gpu, sections.get("stack"), assumed)
    facts = {"name": resolved.get("name") or where, "description": resolved.get("description") or ""}
    scenario, said = drawn_as_near(Scenario.read({**facts, **sections, "assumed": tuple(assumed)}, where))
    return scenario.model_copy(update={"assumed": (*scenario.assumed, said)}) if said else scenario


def _other_gpus(own: Any, plan: ParallelPlan, overrides: Sequence[str]) -> list[str]:
    """Say that overrides of degrees changed the number of GPUs, where none of them says how many there are."""
    paths = [item.partition("=")[0].strip() for item in overrides]
    changed = [path for path in paths if path in ("plan.tp", "plan.cp", "plan.pp")]
    if not (changed and isinstance(own, Mapping)) or {"plan", "plan.dp"} & {*paths}:
        return []
    degrees = [own.get(name, 1) for name in ("tp", "cp", "pp", "dp")]
    before, now = prod(each for each in degrees if isinstance(each, int)), plan.num_gpus
    if before == now:
        return []
    return [
        f"the plan has {now:,} GPUs, and the file's has {before:,}: {listed(changed)} changed it, and plan.dp did not"
    ]


def _settled_profile(profile: Any, gpu: GpuSpec, stack: StackSpec | None, assumed: list[str]) -> Profile:
    """The profile that a scenario's section comes to on its GPU; what is assumed for it goes into `assumed`."""
    if profile is None:
        profile = _profile_for(gpu.name)
        if not _is_datasheet(profile):
            assumed.append(f"no profile was named: {profile['name']} is used for {gpu.name}")
    elif isinstance(profile, Mapping) and not {"preset", "name", "gpu"} & profile.keys():
        base = resolve(_profile_for(gpu.name), "profile")  # fields laid over the profile that none was named for
        assumed.append(f"no profile was named: that of {gpu.name} is used, changed as stated")
        profile = {**base, **profile} if _is_datasheet(base) else laid_over(base, profile)
    found = _settled_datasheet(profile, gpu, assumed) if _is_datasheet(profile) else Profile.read(profile, "profile")
    if found.name in presets.preset_names("profiles"):
        chip = presets.raw_preset("profiles", found.name).get("gpu", found.gpu)
        if chip != found.gpu:
            assumed.insert(0, f"profile {found.name} was made for {chip}; nothing of it was measured on {found.gpu}")
    measured = found.provenance
    if measured.measured_stack and stack is not None and measured.measured_stack != stack.name:
        assumed.append(
            f"profile {found.name!r} was fitted to runs of stack {measured.measured_stack!r} and is used with "
            f"{stack.name!r}: they do not count as measured"
        )
        found = found.model_copy(update={"provenance": measured.model_copy(update={"measured": ()})})
    return found


def _settled_datasheet(profile: Mapping[str, Any], gpu: GpuSpec, assumed: list[str]) -> Profile:
    """The datasheet's profile of a GPU with what is stated over it; what is assumed for it goes into `assumed`."""
    stated = {key: value for key, value in profile.items() if key != "preset"}
    settled = Profile.read(laid_over(presets.datasheet_profile(gpu), stated), "profile")
    by_name = presets.rates_by_name(gpu)
    own = set(flat(stated))
    settled_otherwise = {f"{each.section}.max_efficiency" for each in by_name} | own
    by_power = gpu.max_power_w is not None and "gemm.max_efficiency" not in settled_otherwise

    def share(path: str) -> str:
        return f"{attrgetter(path)(settled):.0%}{' (as stated)' * (path in own)}"

    assumed.append(
        f"no measured profile of {gpu.name} is used (profile datasheet). Peaks and bandwidths are its datasheet's. "
        "It is assumed to reach the shares of them that other GPUs reach. Of peak, that is "
        f"{share('gemm.max_efficiency')} in multiplies{' (by its power)' * by_power}, "
        f"{share('attention.forward_efficiency')} in attention's forward and {share('attention.backward_efficiency')} "
        f"in its backward. Of bandwidths, it is {share('memory.efficiency')} in memory, {share('nvlink.efficiency')} "
        f"in a node and {share('network.efficiency')} between nodes"
    )
    for each in by_name:
        field = f"{each.section}.{next(iter(each.values))}"
        if field not in own:
            assumed.insert(0, f"{each.said} (profile.{field} states another rate)")
    if gpu.max_power_w is None:
        assumed.insert(
            0,
            f"{gpu.name} states no max_power, so its multiplies are assumed to reach the mean of other GPUs; give "
            "cluster.node.gpu.max_power for a better value",
        )
    return settled


LEFT_OPEN = "the framework is not known, and what it does is not stated: "
"""Begins the line of what a description leaves open of an unknown framework, as fields that follow."""
_OPEN = (
    "stack.attention", "plan.recompute", "stack.compiled", "stack.overlap_grad_reduce", "stack.overlap_param_gather",
)  # fmt: skip


def _left_open(resolved: Mapping[str, Any]) -> list[str]:
    """Which of the facts that an unknown framework leaves open are not stated; nothing where one is named."""
    sections = {name: of if isinstance(of := resolved.get(name), Mapping) else {} for name in ("stack", "plan")}
    stack = sections["stack"]
    if not any(stack.get(name) in UNKNOWN for name in ("framework", "preset")):
        return []
    stated = {f"{name}.{file_name(str(key))}" for name, section in sections.items() for key in section}
    stated |= {"stack.attention"} if "stack.flash_version" in stated else set()
    fields = [name for name in _OPEN if name not in stated and (name != "plan.recompute" or sections["plan"])]
    return [LEFT_OPEN + ", ".join(fields)] if fields else []


def _check_names(data: Any, place: str) -> None:
    """Refuse keys that are no text, such as the 7 of {7: 1}."""
    for key, value in data.items() if isinstance(data, Mapping) else ():
        if not isinstance(key, str):
            raise SpecError(f"{place}: the key {key!r} is no name of a field; names are words, such as num_layers")
        _check_names(value, key)


def described(data: Mapping[str, Any], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What sections say once presets stand in their places and overrides are laid over them; the stack stays open.

    Raises SpecError: an unknown preset, or an override that fits nowhere.
    """
    # A whole section chosen on the command line wins over the file before anything in it is looked up.
    raw, paths = copy.deepcopy(dict(data)), [item.partition("=")[0].strip() for item in overrides]
    whole = {path for path in paths if "." not in path}
    for path in whole:
        raw.pop(path, None)
    resolved: dict[str, Any] = resolve(raw, "")
    if {"stack.kernel_launch", "stack.kernel_launch_s"} & {*paths} and resolve_stack(resolved.get("stack"), {}).assumed:
        # Of a stack that nobody named an override changes this one field; in a file it would begin one written out.
        resolved["stack"] = {"preset": DEFAULT, **(resolved.get("stack") or {})}
    for path, item in zip(paths, overrides, strict=True):  # in order: the last one wins
        if path in whole:
            resolved.pop(path, None)
        _apply(resolved, item)
        resolved = resolve(resolved, "")
    return resolved


def _take_stack_of_profile(resolved: dict[str, Any]) -> list[str]:
    """Values of the stack that a profile fitted to runs carries, laid under what is stated; what was assumed."""
    profile = resolved.get("profile")
    if not isinstance(profile, Mapping) or not isinstance(profile.get("stack"), Mapping):
        return []
    resolved["profile"], fitted = split_profile(profile)
    stated = resolved.get("stack") or {"preset": DEFAULT}
    if not isinstance(stated, Mapping):
        return []
    said = {file_name(str(key)) for key in stated}
    added = {key: value for key, value in fitted.items() if file_name(str(key)) not in said}
    assumed = [] if resolved.get("stack") else [f"no stack was named; {DEFAULT!r} is assumed"]
    resolved["stack"] = {**stated, **added}
    named = profile.get("name")
    return assumed + [f"stack.{key} is fitted, in profile {named!r}" for key in added]


def _settle_stack(resolved: dict[str, Any]) -> list[str]:
    """Put the stack's fields in its place, and elsewhere what the framework does where nothing is said.

    Returns what was assumed.
    """
    stated = resolved.get("stack")
    if not (stated is None or isinstance(stated, (str, Mapping))):
        raise SpecError(f"stack must be a preset's name or a mapping of fields, not {stated!r}")
    found = resolve_stack(stated, resolved)
    assumed = [f"no stack was named; {DEFAULT!r} is assumed"] if found.assumed else []
    resolved["stack"] = found.fields
    for path, value, _ in found.consequences:
        section, _, field = path.partition(".")
        if section != "stack" and isinstance(resolved[section], Mapping):  # else its own check says what is wrong
            resolved[section] = {**resolved[section], field: value}
            assumed.append(f"{path} {_shown(value)}: the default of {found.framework} (flopcast presets show has why)")
    rows = resolved["model"].get("vocab_size") if isinstance(resolved.get("model"), Mapping) else None
    return [*assumed, *_compiled_in_vain(stated, found, resolved), *_what_rules_set(found, rows)]


def _compiled_in_vain(stated: Any, found: ResolvedStack, sections: Mapping[str, Any]) -> list[str]:
    """Say that `compiled` is stated where the framework's rules tell nothing that this fuses or leaves unfused."""
    usual = (load_preset("stacks", found.release) if found.release else {}).get("compiled", False)
    if not isinstance(stated, Mapping) or stated.get("compiled", usual) == usual:
        return []
    otherwise = resolve_stack({**stated, "compiled": usual}, sections).fields
    copies = found.fields.get("copies_pieces", False)  # which a compiler leaves out
    if copies or found.fields != {**otherwise, "compiled": stated["compiled"]}:
        return []
    return [
        f"stack.compiled {_shown(stated['compiled'])} changes only casts to 8 bits after norms and clamped activations "
        f"of experts in stack {found.release or found.fields.get('name', 'stack')!r}. Say what else is fused by its "
        "fields, such as stack.fused_norm and stack.elementwise_rate (flopcast fields stack)"
    ]


def _what_rules_set(found: ResolvedStack, rows: Any) -> list[str]:
    """Say in a line what a framework's rules set of the stack beyond the release's preset.

    rows : of the vocabulary, whose padding is left unsaid where there is none to speak of.
    """
    if not found.release:
        return []
    before = {name: info.default for name, info in StackSpec.model_fields.items()} | load_preset(
        "stacks", found.release
    )
    values = {
        field: value
        for section, field, value in ((*item.path.split(".", 1), item.value) for item in found.consequences)
        if section == "stack" and field not in ("name", "fitted_families") and value != before.get(field)
    }
    if isinstance(rows, int) and rows % values.get("vocab_multiple", 1) == 0:
        values.pop("vocab_multiple", None)
    if not values:
        return []
    shown = ", ".join(f"{field} {_shown(value)}" for field, value in values.items())
    stack, source = f"stack {found.release} with {shown}", f"flopcast presets show {found.framework}"
    if found.version == LATEST:
        return [f"the latest {found.framework} is taken: {stack} (stack.version sets another; {source})"]
    return [f"{found.framework} {found.version} is {stack} ({source})"]


def _shown(value: Any) -> str:
    """A value as one would write it on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _profile_for(gpu: str) -> dict[str, Any]:
    """The shipped profile of this GPU, or of its family; where there is none, what its datasheet tells."""
    profiles = [load_preset("profiles", name) for name in preset_names("profiles")]
    fitting = [profile for profile in profiles if profile["gpu"] in gpu]
    return max(fitting, key=lambda profile: len(profile["gpu"]), default={"preset": presets.NAME})


def profile_of_gpu(gpu: GpuSpec, named: str | None = None) -> Profile:
    """The profile of this name or file; without one the GPU family's own, or what its datasheet gives."""
    data = _profile_for(gpu.name) if named is None else resolve(named, "profile")
    found = presets.datasheet_profile(gpu) if _is_datasheet(data) else split_profile(data)[0]
    return Profile.read(found, f"profile for {gpu.name}")


def as_scenario(given: Scenario | Path | str) -> Scenario:
    """A scenario, or that of a file."""
    return given if isinstance(given, Scenario) else load_scenario(given)


def load_scenario(path: Path | str, overrides: Sequence[str] | str = (), profile: str | None = None) -> Scenario:
    """Read a scenario file.

    Parameters
    ----------
    path : path
        A YAML file, a pipe, or `-` for the standard input. Scenarios that ship are found from any folder by
        `scenarios/NAME.yaml`.
    overrides : sequence of str, or one
        "field.path=value", as the command line's --set.
    profile : str, optional
        A profile preset's name or a profile's YAML file, instead of the scenario's.

    Raises
    ------
    SpecError
        The file is missing, is not YAML, or breaks a rule.
    """
    path = here_or_shipped(path)
    if str(path) != "-" and not _is_there(path):
        raise SpecError(f"no scenario file {str(path)!r}{_nearby(path)}")
    data = load_yaml(path)
    if data is None:
        raise SpecError(f"{path} is empty; a scenario needs model, cluster and training")
    if isinstance(data, dict) and "provenance" in data and "model" not in data:
        raise SpecError(f"{path} is a profile, not a scenario; give it as --profile {path} of one")
    if isinstance(data, dict) and data and not {*SECTIONS} & data.keys():
        raise SpecError(f"{path} has no section of a scenario; if it is another tool's file, flopcast import {path}")
    if isinstance(data, dict):
        _find_beside(path.parent, data)
    if profile is not None and isinstance(data, dict):
        data["profile"] = profile
    # A pipe such as /dev/fd/63 has no name worth showing.
    return build_scenario(data, overrides, path.stem if path.is_file() else "scenario")


def _find_beside(folder: Path, data: dict[str, Any]) -> None:
    """Point to files of sections that lie beside the scenario and not where flopcast is called."""
    for name, said in data.items():
        if name in ("cluster", "node") and isinstance(said, dict):
            _find_beside(folder, said)
        named = name in ("model", "profile", "cluster", "node", "gpu", "preset") and isinstance(said, str)
        if named and said.endswith((".json", ".yaml", ".yml")) and not _is_there(Path(said)):
            beside = folder / said
            data[name] = str(beside) if _is_there(beside) else said


def _is_there(path: Path) -> bool:
    """Whether something can be read there: a file, or a pipe such as the shell's <(command)."""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL byte
        return False


def _nearby(path: Path) -> str:
    """A hint naming scenario files that look like the missing one."""
    if len(str(path)) > 250 or "\0" in str(path):
        return "; that is no name of a file"
    if path.is_dir():
        return "; it is a folder; give the name of a file in it"
    if str(path) in preset_names("models"):
        return (
            f"; it is a model: flopcast plan {path} --gpu h100-sxm-80gb --gpus 64 -o {path}.yaml makes a scenario of it"
        )
    near = path.parent.glob("*.yaml") if path.parent.is_dir() else ()
    found = (*map(Path, shipped_scenarios()), *Path("scenarios").rglob("*.yaml"), *near)
    files = {file.stem: file for file in found if not file.name.startswith(".")}
    hint = nearest(path.stem, files)
    for stem, file in files.items():
        hint = hint.replace(repr(stem), repr(str(file)))
    return hint or "; give the path of a YAML file"
