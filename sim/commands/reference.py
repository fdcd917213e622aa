"""`flopcast fields`, `schema` and `presets`: what a file may hold, and what ships."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer

from sim.commands.options import Answer
from sim.errors import SpecError, nearest
from sim.files import read_text, shipped_scenarios, write_text
from sim.schedules import get_schedule, schedule_names
from sim.specs import GpuSpec, ParallelPlan, TrainingSpec, presets
from sim.specs.frameworks import find_framework
from sim.specs.loading import described
from sim.specs.presets import KINDS, load_preset, preset_names


def fields(which: str | None = None) -> Answer:
    """What a scenario file may hold: each field's type, default and meaning.

    which SECTION|FIELD : A section, a field, or a part of a name; all of them if not given.
    """
    from sim.report.fields import fields_view, find_fields, scenario_sections

    sections = scenario_sections() if which is None else find_fields(which)
    facts = [field.to_dict() for section in sections for field in section.fields]
    return Answer(lambda: facts, lambda: [partial(fields_view, sections)])


def schema(*, output: Path | None = None) -> None:
    """The JSON Schema of a scenario file, by which editors check and complete it."""
    from sim.report.fields import scenario_schema

    text = json.dumps(scenario_schema(schedule_names()), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        typer.echo(f"{output}: begin a scenario with '# yaml-language-server: $schema={output}'")


MANY = 40
"""Names that an error still lists."""
ASKED = {
    "model": "llama3-8b",
    "training": {"precision": "bf16"},
    "plan": {},
    "cluster": {"node": {"gpu": "h100-sxm-80gb"}},
}
"""What a framework's rules, and profile datasheet, see where nothing else is set."""


def list_presets(kind_of_preset: str | None = None) -> Answer:
    """Names of the shipped presets.

    kind_of_preset KIND : gpus, nodes, clusters, models, frameworks, stacks, profiles, schedules or scenarios.
    """
    kinds = (*KINDS, "schedules", "scenarios")
    if kind_of_preset is not None and kind_of_preset not in kinds:
        raise SpecError(f"unknown kind of preset {kind_of_preset!r}{nearest(kind_of_preset, kinds)}")
    found = {each: _names(each) for each in (kinds if kind_of_preset is None else (kind_of_preset,))}

    def lines(width: int) -> str:
        indent, said = "  " if kind_of_preset is None else "", list[str]()
        for each, names in found.items():
            said += [typer.style(each, bold=True)] if kind_of_preset is None else []
            words = (f"{indent}{name}{_summary(each, name)}" for name in names)
            said += [textwrap.fill(line, width, subsequent_indent=" " * 6, break_on_hyphens=False) for line in words]
        return "\n".join(said)

    return Answer(lambda: found, lambda: [lines])


def _names(kind: str) -> list[str]:
    if kind == "scenarios":
        return list(shipped_scenarios())
    return list(schedule_names() if kind == "schedules" else preset_names(kind))


def _summary(kind: str, name: str) -> str:
    """What a machine consists of, or a schedule does, in a few words."""
    if kind == "schedules":
        return f"  {get_schedule(name).summary}"
    data = load_preset(kind, name) if kind in ("clusters", "nodes") else {}
    if kind == "clusters":
        node = data["node"]
        return f"  {data['num_nodes']:,} × {node if isinstance(node, str) else node.get('preset') or node['name']}"
    return f"  {data['gpus_per_node']} × {data['gpu']}" if kind == "nodes" else ""


def show_preset(preset: str, *, overrides: Sequence[str] = ()) -> Answer:
    """A preset's values, and the source of each.

    A framework is shown as it is for a precision, model and GPU. A scenario that ships is shown as its file, for you to
    change. Profile datasheet is made for a GPU.

    preset NAME : A preset's name, or kind/name where two kinds share it.
    overrides --set -s FIELD=VALUE : What a framework's rules see: training.precision=fp8, model=qwen3-30b-a3b,
        stack.version=26.08, cluster.node.gpu=b200-sxm-180gb (which profile datasheet sees, too), plan.tp=4.
    """
    from sim.report.presets import datasheet_view, framework_view, preset_view

    scenarios = shipped_scenarios()
    if preset in scenarios:
        text = read_text(scenarios[preset])
        return Answer(lambda: text, lambda: [text.rstrip("\n")])
    kind, _, name = preset.rpartition("/")
    if name == presets.NAME and kind in ("", "profiles"):
        card = GpuSpec.read(described(ASKED, overrides)["cluster"]["node"]["gpu"], "GPU")
        return Answer(lambda: presets.datasheet_profile(card), lambda: [datasheet_view(card)])
    if preset.startswith("scenarios/"):
        raise SpecError(f"no scenario of this name ships: {preset!r}{nearest(preset, scenarios)}")
    if kind and kind not in KINDS:
        raise SpecError(f"unknown kind of preset {kind!r}{nearest(kind, KINDS)}")
    kinds = (kind,) if kind else KINDS
    found = [each for each in kinds if name in preset_names(each)]
    framework = find_framework(name) if kind in ("", "frameworks") else None
    if not found and framework is None:
        raise _unknown(name, {each for kind in kinds for each in preset_names(kind)})
    if framework is None or (found and "frameworks" not in found):
        if overrides:
            raise SpecError(f"--set is for frameworks; {name} is none")
        return Answer(
            lambda: {each: load_preset(each, name) for each in found},
            lambda: [preset_view(each, name) for each in found],
        )
    data = described({**ASKED, "stack": {"framework": framework}}, overrides)
    TrainingSpec.read({"global_batch_size": 1, "sequence_length": 1, **data["training"]}, "training")
    ParallelPlan.read(data["plan"], "plan")
    others = [each for each in found if each not in ("frameworks", "stacks")]  # stacks/NAME shows the plain stack
    views = [*(preset_view(each, name) for each in others), framework_view(framework, data)]
    return Answer(partial(_refuse_data, name), lambda: views)


def _refuse_data(name: str) -> None:
    raise SpecError(f"{name} is a framework, resolved for a question: estimate --json says what it comes to")


def _unknown(name: str, known: set[str]) -> SpecError:
    """The error that no preset has a name, with the nearest names."""
    if name.endswith((".yaml", ".yml")):
        return SpecError(f"presets are shown by name; {name!r} is a file's")
    hint = nearest(name, known)
    if "choose from" in hint and len(known) > MANY:
        hint = "; flopcast presets list shows all names"
    return SpecError(f"no preset {name!r}{hint}" if name else "give the name of a preset")
