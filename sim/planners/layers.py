"""A profile of layers: what each takes and keeps of one micro-batch on one worker, in the order in which they run.

Layers with several inputs or outputs make the graph more than a chain. Here stages are runs of one order in which the
nodes can run, and every tensor that crosses a cut is sent; PipeDream's own planner also tries cuts through several
branches in other orders, which for residual and recurrent networks are cuts of the same cost.

.. [1] github.com/msr-fiddle/pipedream, profiler/*/profiles/*/graph.txt.

Files are YAML or JSON with the record's fields, CSV with a line a layer, or the text graphs of PipeDream's own
profiler.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from sim.arrays import FloatArray
from sim.errors import SpecError, nearest
from sim.files import read_text
from sim.specs.base import Spec, file_name
from sim.specs.yaml12 import parse_yaml

_NODE = re.compile(r"(?P<id>\S+) -- (?P<name>.*?) -- (?P<facts>forward_compute_time=.*)")
_EDGE = re.compile(r"(?P<from>\S+) -- (?P<to>\S+)")
_FACTS = {
    "forward_compute_time": "forward_s",
    "backward_compute_time": "backward_s",
    "activation_size": "output_bytes",
    "parameter_size": "weights_bytes",
}
_MS = 1e-3


def is_graph(text: str) -> bool:
    """Whether a text is such a graph."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return _NODE.fullmatch(first.strip()) is not None


def read_graph(text: str, where: str) -> dict[str, Any]:
    """Fields of a layer profile."""
    nodes: dict[str, dict[str, Any]] = {}
    after: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words, place = line.strip(), f"{where}, line {number}"
        if not words:
            continue
        if found := _NODE.fullmatch(words):
            nodes[found["id"]] = _node(found["name"], found["facts"], place)
        elif found := _EDGE.fullmatch(words):
            for end in (found["from"], found["to"]):
                if end not in nodes:
                    raise SpecError(f"{place}: an edge of {end!r}, which no line before describes; add its node")
            after.setdefault(found["from"], []).append(found["to"])
        else:
            raise SpecError(
                f"{place}: {words[:60]!r} is neither a node (id -- name -- forward_compute_time=…, "
                "backward_compute_time=…, activation_size=…, parameter_size=…) nor an edge (id -- id)"
            )
    order = _topological(nodes, after, where)
    place_of = {node: place for place, node in enumerate(order)}
    last_use = {node: max((place_of[each] for each in after.get(node, [])), default=-1) for node in order}
    given = {node for node in order if nodes[node]["name"].startswith("Input")}
    layers: list[dict[str, Any]] = []
    for at, node in enumerate(order):
        if node in given:  # it is given to the first stage, and takes nothing
            continue
        crossing = [each for each in order[: at + 1] if last_use[each] > at and each not in given]
        sent = sum(nodes[each]["output_bytes"] for each in crossing)
        layers.append({**nodes[node], "kept_bytes": nodes[node]["output_bytes"], "output_bytes": sent})
    if not layers:
        raise SpecError(f"{where}: the graph has no node besides its inputs")
    given_bytes = sum(nodes[node]["output_bytes"] for node in given)
    return {"layers": layers, "input_bytes": given_bytes, "source": "a graph of PipeDream's profiler"}


def _node(name: str, facts: str, place: str) -> dict[str, Any]:
    """Fields of one layer, in SI."""
    values = dict(fact.strip().partition("=")[::2] for fact in facts.split(","))
    fields: dict[str, Any] = {"name": name.strip()}
    for fact, field in _FACTS.items():
        if fact not in values:
            raise SpecError(f"{place}: {fact} is missing")
        try:  # several outputs stand as [a; b]
            number = sum(float(each) for each in values[fact].strip("[] ").split(";"))
        except ValueError:
            raise SpecError(f"{place}: {fact} = {values[fact]!r} is not a number, nor numbers as [a; b]") from None
        fields[field] = number * (_MS if field.endswith("_s") else 1.0)
    return fields


def _topological(nodes: dict[str, Any], after: dict[str, list[str]], where: str) -> list[str]:
    """An order in which all can run; of several that can, the one whose inputs came last, so that branches stay whole.

    Inputs come first.
    """
    waiting = dict.fromkeys(nodes, 0)
    for targets in after.values():
        for target in targets:
            waiting[target] += 1
    ready = [node for node, count in reversed(waiting.items()) if not count]
    ready.sort(key=lambda node: nodes[node]["name"].startswith("Input"))
    order: list[str] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for target in reversed(after.get(node, [])):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if len(order) < len(nodes):
        stuck = next(node for node in nodes if node not in order)
        raise SpecError(f"{where}: {stuck!r} waits for itself in a cycle; a profile's graph has none")
    return order


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


def read_profile(path: Path | str) -> LayerProfile:
    """The profile in a file: YAML, JSON, CSV, or a graph of PipeDream's profiler, told apart by what is in it."""
    return profile_from_text(read_text(path), str(path))


def holds_layers(text: str, where: str) -> bool:
    """Whether a file is a profile of layers rather than something else in YAML."""
    if is_graph(text) or where.endswith((".csv", ".txt")):
        return True
    data = parse_yaml(text, where)
    return isinstance(data, dict) and "layers" in data


def profile_from_text(text: str, where: str) -> LayerProfile:
    """The profile in a text; mistakes are reported as in `where`."""
    name = Path(where).stem
    if is_graph(text):
        return LayerProfile.read({"name": name, **read_graph(text, where)}, where)
    if where.endswith(".csv"):
        return LayerProfile.read({"name": name, "layers": _rows(text, where)}, where)
    data = parse_yaml(text, where)
    if not isinstance(data, dict) or "layers" not in data:
        raise SpecError(
            f"{where} holds no layers. A profile of layers is a CSV file with the columns {', '.join(_REQUIRED)}, YAML "
            "with a list `layers` of such fields, or a graph of PipeDream's profiler"
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
