"""What the commands of `flopcast scaling` share: options, a model's size, tables, JSON and figures."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.errors import SpecError
from sim.units import parse_count

Png = Annotated[Path | None, typer.Option("--png", help="Draw it here.")]
Svg = Annotated[Path | None, typer.Option("--svg", help="Draw it here.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


def model_params(text: str) -> float:
    """A preset's parameters, or the number that `text` is."""
    from sim.specs import ModelSpec, preset_names
    from sim.specs.presets import load_preset
    from sim.work.params import total_params

    if text.lstrip("+-. ")[:1].isdigit():
        return parse_count(text, "parameters")
    if text not in preset_names("models"):
        from sim.errors import nearest

        raise SpecError(
            f"no model preset {text!r}{nearest(text, preset_names('models'))}; or give a number, such as 70B"
        )
    return float(total_params(ModelSpec.read(load_preset("models", text), "model")))


def check_figures(png: Path | None, svg: Path | None) -> None:
    """Refuse a figure that cannot be written before any work is done."""
    for path, suffix in ((png, ".png"), (svg, ".svg")):
        if path is not None and path.suffix != suffix:
            raise SpecError(f"{path} must end in {suffix}")
        if path is not None and not path.parent.is_dir():
            raise SpecError(f"cannot write {path}: there is no folder {path.parent}")


def draw(function: str, png: Path | None, svg: Path | None, *what: Any) -> None:
    paths = [path for path in (png, svg) if path is not None]
    if paths:
        from sim.report import scaling_figures

        figure = getattr(scaling_figures, function)(*what)
        for path in paths:
            figure.savefig(path, dpi=150)


def print_view(*parts: Any) -> None:
    from sim.report.text import console

    console().print(*parts, sep="\n")


def print_json(data: Any) -> None:
    import json

    typer.echo(json.dumps(finite(data), indent=2, allow_nan=False))


def finite(data: Any) -> Any:
    """Numbers that JSON lacks as null."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data
