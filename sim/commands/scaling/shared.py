"""What the commands of `flopcast scaling` share: a model's size, and their figures."""

from __future__ import annotations

from typing import Any

from sim.units import parse_count


def model_params(text: str) -> float:
    """A model's parameters, or the number that `text` is."""
    from sim.specs import ModelSpec
    from sim.specs.presets import load_preset
    from sim.work.sums import total_params

    if text.lstrip("+-. ")[:1].isdigit():
        return parse_count(text, "parameters")
    return float(total_params(ModelSpec.read(load_preset("models", text), "model")))


def figures() -> Any:
    """The module that draws the laws, which loads slowly."""
    from sim.report import scaling_figures

    return scaling_figures
