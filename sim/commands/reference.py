"""`flopcast fields`, `schema` and `presets`: what a file may hold, and what ships."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from sim.commands.options import COMPLETED, Json, group_of, print_answer, print_json
from sim.errors import SpecError, nearest
from sim.files import read_text, shipped_scenarios, write_text
from sim.schedules import get_schedule, schedule_names
from sim.specs import GpuSpec, ParallelPlan, TrainingSpec, presets
from sim.specs.frameworks import find_framework
from sim.specs.loading import described, resolve
from sim.specs.presets import KINDS, load_preset, preset_names


def fields(which: str | None = None, *, as_json: Json = False) -> None:
    """What a scenario file may hold: each field's type, default and meaning.

    which SECTION|FIELD : A section, a field, or a part of a name; all of them if not given.
    """
    from sim.report.field_reference import find_fields, scenario_sections
    from sim.report.fields import fields_view

    sections = scenario_sections() if which is None else find_fields(which)
    facts = [field.to_dict() for section in sections for field in section.fields]
    print_answer(as_json, lambda: facts, lambda: partial(fields_view, sections))


def schema(*, output: Path | None = None) -> None:
    """The JSON Schema of a scenario file, by which editors check and complete it.

    output --output -o FILE : Write it there.
    """
    from sim.report.fields import scenario_schema

    text = json.dumps(scenario_schema(schedule_names()), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        typer.echo(f"{output}: begin a scenario with '# yaml-language-server: $schema={output}'")


MANY = 40
"""Names that an error still lists."""
DEFAULTS = ("bf16", "llama3-8b", "h100-sxm-80gb")
"""Precision, model and GPU that a framework's rules see where nothing else is said."""
_KIND = "gpus, nodes, clusters, models, frameworks, stacks, profiles, schedules or scenarios."
_NAME = "A preset's name, or kind/name where two kinds share it."


def list_presets(
    kind: Annotated[str | None, Argument(help=_KIND, autocompletion=COMPLETED["kind_of_preset"])] = None,
    as_json: Json = False,
) -> None:
    """Names of the shipped presets."""
    import textwrap

    from sim.report.terminal import console

    others = {"schedules": schedule_names, "scenarios": shipped_scenarios}
    kinds = (*KINDS, *others)
    if kind is not None and kind not in kinds:
        raise SpecError(f"unknown kind of preset {kind!r}{nearest(kind, kinds)}")
    chosen = kinds if kind is None else (kind,)
    if as_json:
        print_json({each: list(others[each]() if each in others else preset_names(each)) for each in chosen})
        return
    width = console().width
    for each in chosen:
        if kind is None:
            typer.secho(each, bold=True)
        for name in others[each]() if each in others else preset_names(each):
            summary = f"  {get_schedule(name).summary}" if each == "schedules" else _summary(each, name)
            line = f"  {name}{summary}" if kind is None else f"{name}{summary}"
            typer.echo(textwrap.fill(line, width, subsequent_indent=" " * 6, break_on_hyphens=False))


def _unknown(name: str, known: set[str]) -> SpecError:
    """The error that no preset has a name, with the nearest names."""
    if name.endswith((".yaml", ".yml")):
        return SpecError(f"presets are shown by name; {name!r} is a file's")
    hint = nearest(name, known)
    if "choose from" in hint and len(known) > MANY:
        hint = "; flopcast presets list shows all names"
    return SpecError(f"no preset {name!r}{hint}" if name else "give the name of a preset")


def _summary(kind: str, name: str) -> str:
    """What a machine consists of, in a few words."""
    if kind not in ("clusters", "nodes"):
        return ""
    data = load_preset(kind, name)
    if kind == "clusters":
        node = data["node"]
        name = node if isinstance(node, str) else node.get("preset") or node["name"]
        return f"  {data['num_nodes']:,} × {name}"
    return f"  {data['gpus_per_node']} × {data['gpu']}"


def show_preset(
    name: Annotated[str, Argument(help=_NAME, autocompletion=COMPLETED["preset"])],
    *,
    version: str | None = None,
    precision: str = DEFAULTS[0],
    model: str = DEFAULTS[1],
    gpu: str = DEFAULTS[2],
    plan: list[str] | None = None,
    as_json: Json = False,
) -> None:
    """A preset's values, and the source of each. A framework is shown as it is for a precision, model and GPU.

    A scenario that ships is shown as its file, for you to change. Profile datasheet is made for the GPU of --gpu.

    version : Version of a framework: a date, a release by year and month, a tag, or latest.
    precision : Precision that a framework's rules see.
    model : Model that they see: a preset.
    gpu : GPU that they and profile datasheet see: a preset.
    plan --set -s : A field of the plan or stack: plan.tp=4.
    """
    from sim.report.presets import datasheet_view, framework_view, preset_view
    from sim.report.terminal import console

    scenarios = shipped_scenarios()
    if name in scenarios:
        typer.echo(read_text(scenarios[name]), nl=False)
        return
    wanted_kind, _, wanted = name.rpartition("/")
    if wanted == presets.NAME and wanted_kind in ("", "profiles"):
        card = GpuSpec.read(resolve(gpu, "cluster.node.gpu"), f"GPU {gpu}")
        print_answer(as_json, lambda: presets.datasheet_profile(card), lambda: [datasheet_view(card)])
        return
    if name.startswith("scenarios/"):
        raise SpecError(f"no scenario of this name ships: {name!r}{nearest(name, scenarios)}")
    if wanted_kind and wanted_kind not in KINDS:
        raise SpecError(f"unknown kind of preset {wanted_kind!r}{nearest(wanted_kind, KINDS)}")
    kinds = (wanted_kind,) if wanted_kind else KINDS
    found = [kind for kind in kinds if wanted in preset_names(kind)]
    framework = find_framework(wanted) if wanted_kind in ("", "frameworks") else None
    if not found and framework is None:
        raise _unknown(wanted, {preset for kind in kinds for preset in preset_names(kind)})
    shows_framework = framework is not None and (not found or "frameworks" in found)
    if not shows_framework and (version or plan or (precision, model, gpu) != DEFAULTS):
        raise SpecError(f"--version, --precision, --model, --gpu and --set are for frameworks; {wanted} is none")
    if as_json:
        if shows_framework:
            raise SpecError(f"{wanted} is a framework, resolved for a question: estimate --json says what it comes to")
        print_json({kind: load_preset(kind, wanted) for kind in found})
        return
    out = console()
    for kind in found:
        if kind != "frameworks" and not (shows_framework and kind == "stacks"):  # stacks/NAME shows the plain stack
            out.print(preset_view(kind, wanted))
    if framework is not None and shows_framework:
        question = {"model": model, "training": {"precision": precision}, "plan": {}, "cluster": {"node": {"gpu": gpu}}}
        data = described({**question, "stack": {"framework": framework, "version": version}}, plan or ())
        TrainingSpec.read({"global_batch_size": 1, "sequence_length": 1, **data["training"]}, "training")
        ParallelPlan.read(data["plan"], "plan")
        out.print(framework_view(framework, data), soft_wrap=False)


app = group_of(
    "Shipped GPUs, nodes, clusters, models, frameworks, stacks and profiles, with their sources; and scenarios.",
    {
        "list": (list_presets, ("presets list", "presets list clusters")),
        "show": (
            show_preset,
            (
                "presets show selene",
                "presets show gpus/a100-sxm-80gb",
                "presets show scenarios/gpt3-175b-1024-a100.yaml",
                "presets show megatron-bridge --version 26.08 --precision fp8 --model qwen3-30b-a3b "
                "--gpu b200-sxm-180gb",
            ),
        ),
    },
)
