"""What a framework of a version does, resolved in one place: from its name to the fields of a scenario.

A framework's file (presets/frameworks) names the stack it had from a date on, and rules: fields that follow from its
version, the precision, the kind of model or the GPU, each with its source. What a description states itself wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sim.errors import SpecError, nearest
from sim.specs.base import as_names, file_name, laid_over
from sim.specs.presets import load_preset, preset_names, raw_preset
from sim.specs.stack import StackSpec, named_kernel

LATEST, NEVER = "latest", "never"
_NEVER = (9999, 0)
_DATE = re.compile(r"(20\d\d)(?:-(\d\d?)(?:-\d\d?)?)?$")
_MONTH = re.compile(r"v?([123]\d)\.(\d\d?)(?!\d)")
"""A date, and a release named by its year and month."""
Date = tuple[int, int]


def framework_names(titles: bool = False) -> list[str]:
    """Names and aliases of all frameworks, in lower case.

    titles : and as frameworks write themselves, where that is a name or an alias but for its case.
    """
    known = preset_names("frameworks")
    names = {*known, *(alias for name in known for alias in raw_preset("frameworks", name).get("aliases", ()))}
    written = (str(raw_preset("frameworks", name)["title"]) for name in known if titles)
    return sorted({*names, *(title for title in written if title.lower() in names)})


def find_framework(name: str) -> str | None:
    """The framework of this name or alias, or None."""
    known, wanted = preset_names("frameworks"), name.strip().lower()
    if wanted in known:
        return wanted
    return next((each for each in known if wanted in raw_preset("frameworks", each).get("aliases", ())), None)


def framework_named(name: str) -> str:
    """The framework of this name, alias, or stack preset.

    Raises SpecError: there is none; the message has the nearest.
    """
    found, wanted = find_framework(name), name.strip().lower()
    if found is not None:
        return found
    if wanted in preset_names("stacks"):
        return str(load_preset("stacks", wanted).get("framework") or wanted)
    known = preset_names("frameworks")
    hint = nearest(wanted, framework_names())
    raise SpecError(
        f"unknown framework {name!r}{hint if len(hint) < 200 else ''}; known are {', '.join(known)}. For another one "
        "take framework: unknown, which is what others of its time have in common, with wide intervals. Set what "
        "differs (flopcast fields stack)"
    )


def lineage(framework: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the file of a framework, and of those that it is like, in turn; of an unknown one nothing."""
    if framework in preset_names("frameworks"):
        data = raw_preset("frameworks", framework)
        yield framework, data
        yield from lineage(data.get("like", ""))


def rules_of(framework: str) -> list[dict[str, Any]]:
    """A framework's rules, and those of the one that it is like, in the order in which they are asked."""
    found: list[dict[str, Any]] = []
    for rule in (rule for _, data in lineage(framework) for rule in data.get("rules", ())):
        if isinstance(rule, str):  # those that a framework shares, by its name and theirs
            owner, _, name = rule.partition(".")
            found += raw_preset("frameworks", owner)["shared"][name]
        else:
            found.append(rule)
    return found


def halves_attention(framework: str, version: str) -> bool:
    """Whether the FLOP/s that a framework of a version prints count half of causal attention's scores and values."""
    for name, data in lineage(framework):
        if "flops" in data:
            since = data["flops"].get("attention_halved_since", NEVER)
            return since != NEVER and date_of(version, name) >= date_of(str(since), name)
    return False


def date_of(version: str, framework: str) -> Date:
    """Year and month of a version: a date, a release named by year and month, or a tag that the framework's file knows.

    Raises SpecError: it is none of them.
    """
    if version in ("", LATEST):
        return _NEVER
    date = _DATE.match(version) or _MONTH.match(version)
    if date and 1 <= int(date[2] or 1) <= 12:
        year = int(date[1])
        return (year if year >= 2000 else 2000 + year), int(date[2] or 1)
    tags = _tags(framework)
    for tag, since in tags.items():
        if version.removeprefix("v").startswith(tag.removeprefix("v")):
            return date_of(since, framework)
    conditions = {key for rule in rules_of(framework) for key in rule.get("when", {})}
    if not date and len(raw_preset("frameworks", framework)["releases"]) == 1 and not conditions & {"since", "until"}:
        return _NEVER  # whichever it is, it is the same here
    known = f", a tag that begins with {', '.join(tags)}" if tags else ""
    raise SpecError(
        f"stack.version = {version!r} is no version of {framework}: write a date (2024-07), a release by year and "
        f"month (24.07){known}, or latest"
    )


def _tags(framework: str) -> dict[str, str]:
    """How versions of a framework, or of the one that it names or is like, begin, and a date of each."""
    own: dict[str, str] | str = next((data["tags"] for _, data in lineage(framework) if data.get("tags")), {})
    return _tags(own) if isinstance(own, str) else own


def release_of(framework: str, version: str, preset: Any) -> dict[str, Any]:
    """The release that a version belongs to, or that a stack preset is of; without either the latest."""
    releases: list[dict[str, Any]] = raw_preset("frameworks", framework)["releases"]
    of_preset = [release for release in releases if release["stack"] == preset]
    if version:
        date = date_of(version, framework)
        before = [release for release in releases if date_of(str(release["since"]), framework) <= date]
        return before[-1] if before else releases[0]
    return of_preset[-1] if of_preset else releases[-1]


UNKNOWN = ("unknown", "pytorch")
"""Frameworks of which nothing but their time is known: one without a name, and PyTorch with any trainer around it."""
DEFAULT = "megatron-core"
"""The stack of a scenario that names none."""
_NEEDED = "kernel_launch"
"""A field that no default fills in: a stack with it is written out."""
EVERY_LAYER = "plan.offloaded_layers"
"""What a rule may set to all: as many as the model has layers."""
_ABOUT_THE_CHOICE = ("preset", "framework", "version")


class Consequence(NamedTuple):
    """A field that follows from a rule, or from the stack that a framework starts from.

    path : as files write it: stack.gradient_precision, plan.zero_stage.
    source : of the rule.
    """

    path: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class ResolvedStack:
    """What a scenario's section `stack` comes to.

    fields : of StackSpec, ready for validation.
    framework, version : by their names here; empty for a stack that belongs to none.
    release : the stack preset that the rest is laid on; empty for a stack that is written out.
    consequences : what rules set, in their order; in other sections than the stack only what is not stated there.
    assumed : neither a stack nor a framework was named.
    """

    fields: dict[str, Any]
    framework: str = ""
    version: str = ""
    release: str = ""
    consequences: tuple[Consequence, ...] = ()
    assumed: bool = False


def resolve_stack(stated: Any, sections: Mapping[str, Any]) -> ResolvedStack:
    """Fields of the stack, and what the framework does in other sections where they are silent.

    stated : the scenario's section: a preset's or framework's name; or fields, with `preset`, or `framework` and
        `version`.
    sections : the scenario's other sections, presets resolved, as far as they are given.

    Raises SpecError: an unknown framework or preset, or a version that cannot be read.
    """
    choice = {} if stated is None else {"preset": stated} if isinstance(stated, str) else dict(stated)
    own = named_kernel({key: value for key, value in choice.items() if key not in _ABOUT_THE_CHOICE})
    if own.get("cuda_graph_scope") and "cuda_graphs" not in {file_name(str(key)) for key in own}:
        own["cuda_graphs"] = "scoped"  # what modules stated alone mean
    preset, framework = choice.get("preset"), choice.get("framework") or None
    assumed = preset is None and framework is None and not any(file_name(str(key)) == _NEEDED for key in own)
    if assumed:
        preset = DEFAULT
    if preset is None and framework is None:
        return ResolvedStack(own)
    if isinstance(preset, str) and preset not in preset_names("stacks"):
        framework, preset = framework_named(preset), None
    version = _version(choice.get("version"))
    if preset is not None:
        values = load_preset("stacks", str(preset))
        framework = framework or values.get("framework")
        if framework is None:
            return ResolvedStack(laid_over(values, own), release=str(preset))
    name = framework_named(str(framework))
    if name not in preset_names("frameworks"):  # a stack without versions and rules
        return ResolvedStack(laid_over(load_preset("stacks", name), own), release=name)
    release = release_of(name, version, preset)
    if preset is not None and release["stack"] != preset:
        raise SpecError(
            f"stack.preset {preset} is not what {name} {version or 'latest'} has here, which is {release['stack']}; "
            f"name one of the two: stack: {preset}, or stack: {{framework: {name}, version: ...}}"
        )
    latest = release is raw_preset("frameworks", name)["releases"][-1]
    version = version or (LATEST if latest else str(release["since"]))
    stack = load_preset("stacks", str(preset or release["stack"])) | {"framework": name, "version": version}
    consequences = _consequences(name, version, stack, own, sections)
    ruled = {item.path.partition(".")[2]: item.value for item in consequences if item.path.startswith("stack.")}
    fields = laid_over(laid_over(stack, ruled), own)
    return ResolvedStack(fields, name, version, str(preset or release["stack"]), tuple(consequences), assumed)


def stack_words(stack: StackSpec) -> str:
    """A stack by its name, with framework and version where they say more: "megatron-core (nemo 24.07)"."""
    if not stack.framework:
        return stack.name
    if stack.name in preset_names("stacks"):
        plain = resolve_stack(stack.name, {})
        if (plain.framework, plain.version) == (stack.framework, stack.version):
            return stack.name
    return f"{stack.name} ({stack.framework} {stack.version})"


def _version(value: Any) -> str:
    """A version as text.

    Raises SpecError: a number with a point, which may have lost its last digit.
    """
    if value is None:
        return ""
    if isinstance(value, float):
        raise SpecError(
            f"stack.version = {value}: write it in quotes, as in version: '24.07'; as numbers 25.1 and 25.10 are one"
        )
    return str(value).strip().lower()


def _consequences(
    framework: str, version: str, stack: Mapping[str, Any], own: Mapping[str, Any], sections: Mapping[str, Any]
) -> list[Consequence]:
    """What rules set beyond what is stated; a rule sees what those before it set."""
    facts = _facts(sections)
    stated = {file_name(str(key)) for key in own}
    found: list[Consequence] = []
    usual = {name: info.default for name, info in StackSpec.model_fields.items()}
    known = {file_name(key): value for key, value in {**usual, **stack, **own}.items()}
    for rule in rules_of(framework):
        if not _applies(rule.get("when", {}), version, framework, facts, known):
            continue
        for key, value in rule["set"].items():
            section, _, field = key.rpartition(".")
            there = _mapping(sections, section) if section else {}
            if (not section and key in stated) or (section and field in there):
                continue
            if any(item.path == f"{section or 'stack'}.{field}" for item in found):
                continue  # a framework's own rule comes before that of the one it is like
            if (key, value) == ("cuda_graphs", "scoped") and facts["recompute"] == "full":
                continue  # layers that run again whole are no graphs
            if key == "cuda_graph_scope" and "moe" in facts["recompute_modules"]:
                value = [name for name in value if not name.startswith("moe_")]  # these would run again inside
            if key == EVERY_LAYER and value == "all":
                value = _mapping(sections, "model").get("num_layers", 0)
            found.append(Consequence(f"{section or 'stack'}.{field}", value, rule["source"]))
            if section:
                sections = {**sections, section: {**there, field: value}}
                facts = _facts(sections)
            else:
                known[key] = value
    return found


def _applies(
    when: Mapping[str, Any], version: str, framework: str, facts: Mapping[str, Any], known: Mapping[str, Any]
) -> bool:
    """Whether all conditions of a rule hold: dates of the version, facts of the scenario, fields of the stack.

    Of GPUs and models a part of the name will do, of models however it is written.
    """
    for key, wanted in when.items():
        options = wanted if isinstance(wanted, list) else [wanted]
        if key in ("since", "until"):
            late = date_of(version, framework) >= date_of(str(wanted), framework)
            if late != (key == "since"):
                return False
        elif key == "gpu":
            if not any(name in facts["gpu"] for name in options):
                return False
        elif key == "model":
            if not any(_bare(name) in _bare(facts["model"]) for name in options):
                return False
        elif (facts[key] if key in facts else known.get(key)) not in options:
            return False
    return True


def _names(stated: Any) -> tuple[str, ...]:
    """Names as they are stated; what cannot be some is refused where the section is read."""
    found = as_names(stated)
    return tuple(map(str, found)) if isinstance(found, (list, tuple)) else ()


def _bare(name: str) -> str:
    """A model's name as all write it: letters in lower case, and digits."""
    return re.sub(r"[\W_]", "", name).lower()


def _facts(sections: Mapping[str, Any]) -> dict[str, Any]:
    """What rules ask of a scenario beside its stack."""
    model, plan, training = (_mapping(sections, name) for name in ("model", "plan", "training"))
    gpu = _mapping(_mapping(_mapping(sections, "cluster"), "node"), "gpu")
    tp, pp, cp, ep = (plan.get(name, 1) for name in ("tp", "pp", "cp", "ep"))
    experts = model.get("num_experts", 0)
    return {
        "precision": training.get("precision", "bf16"),
        "experts": isinstance(experts, int) and experts > 0,
        "gated": bool(model.get("gated_mlp", False)),
        "adapters": bool(training.get("adapter_rank")),
        "masters": training.get("master_precision", "unsaid"),
        "fine_tuning": bool(training.get("adapter_rank") or training.get("packed_length")),
        "norm": model.get("norm", "layernorm"),
        "position": model.get("position", "learned"),
        "latent_attention": bool(model.get("key_value_rank")),
        "tensor_parallel": isinstance(tp, int) and tp > 1,
        "pipeline_parallel": isinstance(pp, int) and pp > 1,
        "context_parallel": isinstance(cp, int) and cp > 1,
        "model_parallel": any(isinstance(degree, int) and degree > 1 for degree in (tp, pp, ep)),
        "schedule": plan.get("schedule", "1f1b"),
        "zero_stage": plan.get("zero_stage", "unsaid"),
        "recompute": plan.get("recompute", "unsaid"),
        "recompute_modules": _names(plan.get("recompute_modules")),
        "gpu": str(gpu.get("name", "")),
        "model": str(model.get("name", "")),
        "capacity": training.get("expert_capacity_factor") is not None,
    }


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key)
    return found if isinstance(found, Mapping) else {}
