"""`flopcast fields` and `flopcast schema`: what a scenario file may hold, for people and for editors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from sim.commands import options
from sim.commands.options import Json, print_answer
from sim.files import write_text


def fields(
    which: Annotated[
        str | None,
        Argument(
            metavar="SECTION|FIELD",
            help="A section, a field, or a part of a name; all of them if not given.",
            autocompletion=options.field_paths,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """What a scenario file may hold: each field's type, default and meaning."""
    from sim.report.field_reference import find_fields, scenario_sections
    from sim.report.fields import fields_view

    sections = scenario_sections() if which is None else find_fields(which)
    facts = [field.to_dict() for section in sections for field in section.fields]
    print_answer(as_json, lambda: facts, lambda: partial(fields_view, sections))


def schema(
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write it there.", show_default=False)
    ] = None,
) -> None:
    """The JSON Schema of a scenario file, by which editors check and complete it."""
    import json

    from sim.report.fields import scenario_schema
    from sim.schedules import schedule_names

    text = json.dumps(scenario_schema(schedule_names()), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        typer.echo(f"{output}: begin a scenario with '# yaml-language-server: $schema={output}'")
