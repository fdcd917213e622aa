"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.commands import completion as complete

ScenarioFile = Annotated[
    Path,
    typer.Argument(
        help="A scenario in YAML; - reads it from a pipe.", show_default=False, autocompletion=complete.scenario_files
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="FIELD=VALUE",
        help="Override a field, such as plan.tp=4; may be repeated.",
        autocompletion=complete.fields,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="dag (exact), closed_form (formula), des (discrete events) or shared (processes on shared cores).",
        autocompletion=complete.engines,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="A profile's name or YAML file, instead of the scenario's.",
        autocompletion=complete.preset("profiles"),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable, with the keys that docs/answers.md lists.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
Png = Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Write the figure as PNG.", show_default=False)]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write the figure as SVG.", show_default=False)]
Width = Annotated[float, typer.Option(help="Width of the figure in inches.")]
