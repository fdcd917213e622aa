"""A profile of layers: what each takes and keeps of one micro-batch on one worker, in the order in which they run.

Stages are runs of this order. Files are YAML or JSON with the record's fields, or CSV with a line a layer.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from sim.arrays import FloatArray
from sim.errors import SpecError, nearest
from sim.specs.base import Spec, file_name
from sim.specs.yaml12 import parse_yaml


class LayerTimes(Spec):
    """One layer, or what is not cut apart."""

    name: str
    """What answers call it."""
    forward_s: NonNegativeFloat
    """Forward of one micro-batch. [s]"""
    backward_s: NonNegativeFloat
    """Backward of one micro-batch. [s]"""
    output_bytes: NonNegativeFloat
    """What it hands to the next layer; the gradient that comes back is as large. [bytes]"""
    weights_bytes: NonNegativeFloat
    """Its weights, one version of them. [bytes]"""
    gradients_bytes: NonNegativeFloat | None = None
    """What replicas reduce of it. Default: as much as its weights. [bytes]"""
    state_bytes: NonNegativeFloat = 0.0
    """Gradients and optimizer state, of which there is one version. [bytes]"""
    kept_bytes: NonNegativeFloat | None = None
    """What it keeps for the backward of one micro-batch. Default: its output. [bytes]"""


class LayerProfile(Spec):
    """Layers in the order in which they run, each measured, or priced, for one micro-batch on one worker."""

    name: str = ""
    """What answers call it."""
    source: str = ""
    """Where the numbers come from."""
    microbatch_size: PositiveInt = 1
    """Samples of the micro-batch."""
    input_bytes: NonNegativeFloat = 0.0
    """What the first layer is given. [bytes]"""
    layers: tuple[LayerTimes, ...] = Field(min_length=1)
    """The layers, from the first to the last."""

    @model_validator(mode="after")
    def _takes_time(self) -> LayerProfile:
        if not sum(layer.forward_s + layer.backward_s for layer in self.layers) > 0:
            raise ValueError("no layer takes any time; give forward and backward, such as forward: 2.3 ms")
        return self

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def seconds(self) -> float:
        """Forward and backward of all layers. [s]"""
        return float(self.before("forward_s")[-1] + self.before("backward_s")[-1])

    def before(self, field: str) -> FloatArray:
        """Sums of a field over the layers before each, and after the last over all of them."""
        return np.concatenate([[0.0], np.cumsum([_value(layer, field) for layer in self.layers])])

    @property
    def sent_bytes(self) -> FloatArray:
        """What goes over a cut before each layer: the input, then outputs. [bytes]"""
        return np.array([self.input_bytes, *(layer.output_bytes for layer in self.layers)])


def _value(layer: LayerTimes, field: str) -> float:
    """A field of a layer, by default as its docstring says."""
    value = getattr(layer, field)
    if value is not None:
        return float(value)
    return layer.weights_bytes if field == "gradients_bytes" else layer.output_bytes


def profile_from_text(text: str, where: str) -> LayerProfile:
    """The profile in a text. Mistakes are reported as in `where`."""
    name = Path(where).stem
    if where.endswith(".csv"):
        return LayerProfile.read({"name": name, "layers": _rows(text, where)}, where)
    data = parse_yaml(text, where)
    if not isinstance(data, dict) or "layers" not in data:
        raise SpecError(
            f"{where} is no profile of layers; write a line a layer: {', '.join(_REQUIRED)}. Of a scenario, "
            "flopcast estimate -s plan.schedule=pipedream_2bw plays equal stages"
        )
    return LayerProfile.read({"name": name, **data}, where)


_COLUMNS = tuple(file_name(field) for field in LayerTimes.model_fields)
_REQUIRED = tuple(file_name(name) for name, field in LayerTimes.model_fields.items() if field.is_required())


def _rows(text: str, where: str) -> Sequence[dict[str, Any]]:
    """Lines of CSV as fields of layers; a column with a unit in its name (`forward_s`) holds bare numbers."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = csv.reader(lines, skipinitialspace=True)
    header = [name.strip() for name in next(rows, [])]
    for name in header:
        if file_name(name) not in _COLUMNS:
            raise SpecError(f"{where}: unknown column {name!r}{nearest(name, _COLUMNS)}")
    missing = [name for name in _REQUIRED if name not in map(file_name, header)]
    if missing:
        raise SpecError(f"{where}: no column {missing[0]!r}; a profile of layers has {', '.join(_REQUIRED)}")
    layers = []
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise SpecError(
                f"{where}: layer {number} has {len(row)} values, and there are {len(header)} columns; "
                f"write {', '.join(header)}"
            )
        values = {key: _number(value, key) for key, value in zip(header, row, strict=True) if value.strip()}
        layers.append(LayerTimes.read(values, f"{where}, layer {number}"))
    return [layer.model_dump(exclude_unset=True) for layer in layers]


def _number(text: str, key: str) -> Any:
    """A bare number under a name with a unit; else the text, whose unit the field reads."""
    if file_name(key) == key:
        return text.strip()
    try:
        return float(text)
    except ValueError:
        return text.strip()
