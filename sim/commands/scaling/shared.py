"""What the commands of `flopcast scaling` share: a model's size, and figures of `sim.report.scaling_figures`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sim.errors import SpecError, nearest
from sim.units import parse_count


def model_params(text: str) -> float:
    """A preset's parameters, or the number that `text` is."""
    from sim.specs import ModelSpec, preset_names
    from sim.specs.presets import load_preset
    from sim.work.sums import total_params

    if text.lstrip("+-. ")[:1].isdigit():
        return parse_count(text, "parameters")
    if text not in preset_names("models"):
        raise SpecError(
            f"no model preset {text!r}{nearest(text, preset_names('models'))}; or give a number, such as 70B"
        )
    return float(total_params(ModelSpec.read(load_preset("models", text), "model")))


def draw(paths: Sequence[Path], figure: Callable[[Any], Any]) -> None:
    """Draw where there is a file to draw into; the figure is made of the module of figures, which loads slowly."""
    if paths:
        from sim.report import scaling_figures
        from sim.report.figures import save

        save(figure(scaling_figures), paths)
