"""Graphs of PipeDream's profiler, as a chain: a line a node with milliseconds and bytes, then a line an edge.

Layers with several inputs or outputs make the graph more than a chain. Here stages are runs of one order in which the
nodes can run, and every tensor that crosses a cut is sent; PipeDream's own planner also tries cuts through several
branches in other orders, which for residual and recurrent networks are cuts of the same cost.

.. [1] github.com/msr-fiddle/pipedream, profiler/*/profiles/*/graph.txt.
"""

from __future__ import annotations

import re
from typing import Any

from sim.errors import SpecError

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
    """Fields of a layer profile.

    Raises
    ------
    SpecError
        A line that is neither node nor edge, a value that is no number, an edge to a node that there is not, or a
        cycle.
    """
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
