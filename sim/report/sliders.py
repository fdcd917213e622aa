"""Sliders under a figure in a running notebook; a line of text where there are none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


def sliders(show: Callable[..., Any], **choices: Sequence[Any]) -> None:
    """Draw with `show` again whenever a slider moves.

    show : Returns a figure. Its arguments have defaults: there the sliders begin.
    choices : Values of its arguments; numbers get a slider, others a menu.
    """
    defaults = {name: each.default for name, each in inspect.signature(show).parameters.items()}
    try:
        from ipywidgets import Dropdown, SelectionSlider, interact
    except ImportError:
        print("In a running notebook with ipywidgets there are sliders here.")
        return
    controls = {
        name: (Dropdown if isinstance(values[0], str | bool) else SelectionSlider)(options=values, value=defaults[name])
        for name, values in choices.items()
    }
    interact(show, **controls)
