"""Sliders over a grid of estimates: its numbers as compact JSON, and what one change does as a table."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple

from sim.breakdown import CAUSES
from sim.report.facts import GROUPS, MEMORY, memory_parts
from sim.report.html.bars import GROUP_PARTS, MEMORY_PARTS, Part
from sim.search.grid import Grid, GridAnswer, GridPoint, own_value, setting
from sim.units import show, show_time

AXIS_NAMES = {
    "plan.tp": "Tensor parallel",
    "plan.cp": "Context parallel",
    "plan.pp": "Pipeline ranks",
    "plan.ep": "Expert parallel",
    "plan.num_chunks": "Chunks a rank",
    "plan.microbatch_size": "Micro-batch, sequences",
    "plan.zero_stage": "ZeRO stage",
    "training.global_batch_size": "Global batch, sequences",
    "training.sequence_length": "Sequence length, tokens",
    "cluster.inter_node_bandwidth": "Network of a GPU",
}
"""What axes are called; others by the last word of their path."""
DIGITS = 12
"""Significant, of embedded numbers."""


class Choice(NamedTuple):
    """A row of the table: one value of one axis, all else as in the scenario."""

    value: str
    own: bool
    follows: str
    verdict: str
    step: str = ""
    change: str = ""
    job: str = ""
    memory: str = ""


class Slider(NamedTuple):
    """An axis: its values in words, where the scenario stands, and what one change does."""

    name: str
    values: list[str]
    own: int
    choices: list[Choice]


class Sliders(NamedTuple):
    """All that a page needs of a grid.

    data : JSON that can stand in a page.
    script_hash : of the script, for the page's policy, which lets no other run.
    """

    axes: list[Slider]
    combinations: int
    possible: int
    groups: list[Part]
    memory: list[Part]
    data: str
    script: str
    script_hash: str


def sliders_of(grid: Grid) -> Sliders:
    """A grid as a page shows it."""
    causes = [cause for cause in CAUSES if any(point.answer and point.answer.seconds[cause] for point in grid.points)]
    groups = {GROUPS[cause] for cause in causes}
    script = (files("sim.report.html") / "templates" / "sliders.js").read_text(encoding="utf-8")
    return Sliders(
        axes=[_slider(grid, number) for number in range(len(grid.axes))],
        combinations=len(grid.points),
        possible=sum(point.answer is not None for point in grid.points),
        groups=[part for group, part in GROUP_PARTS.items() if group in groups],
        memory=[*MEMORY_PARTS.values()],
        data=in_page(grid_data(grid, causes)),
        script=script,
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    )


def _slider(grid: Grid, number: int) -> Slider:
    axis, own = grid.axes[number], grid.at(grid.own)
    name = AXIS_NAMES.get(axis.path, axis.path.rpartition(".")[2].replace("_", " ").capitalize())
    choices = [_choice(axis.show(point.values[number]), point, own) for point in grid.along(number)]
    return Slider(name, [*map(axis.show, axis.values)], grid.own[number], choices)


def _choice(value: str, point: GridPoint, own: GridPoint) -> Choice:
    follows = ", ".join(each.removeprefix("plan.").replace("=", " ").replace("_", " ") for each in point.follows)
    here, base = point.answer, own.answer
    if here is None:
        return Choice(value, point is own, follows, f"cannot be: {point.ruled_out}")
    change = "" if base is None or point is own else f"{here.tokens_per_s / base.tokens_per_s - 1:+.1%}"
    numbers = (show(here.total_flop_per_s, "FLOP/s"), show(here.memory_bytes, "B"))
    step = show_time(here.step_time_s)
    return Choice(value, point is own, follows, _verdict(here), step, change.replace("-", "−"), *numbers)


def _verdict(answer: GridAnswer) -> str:
    """Whether it fits, and if not what takes most."""
    if not answer.overfull:
        return "fits"
    largest = max(answer.memory, key=lambda name: answer.memory[name])
    return f"does not fit; most is {largest.replace('_', ' ')}, {show(answer.memory[largest], 'B')}"


def grid_data(grid: Grid, causes: list[str]) -> dict[str, Any]:
    """The grid as plain data: sentences once, points as lists of numbers.

    A point that cannot be is the place of its reason among `texts`; another one is [step time, ends of its interval,
    FLOP/s, tokens/s, MFU, bytes by MEMORY, the place among `texts` of why it does not fit or -1, that of what follows,
    seconds by cause].
    """
    texts: dict[str, int] = {}

    def place(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def numbers(point: GridPoint) -> Any:
        answer = point.answer
        if answer is None:
            return place(point.ruled_out)
        rates = (answer.total_flop_per_s, answer.tokens_per_s, answer.mfu)
        return [
            *map(_short, (answer.step_time_s, *answer.step_time_interval_s, *rates)),
            [*map(_short, memory_parts(answer.memory).values())],
            place(_verdict(answer)) if answer.overfull else -1,
            place("\n".join(point.follows)),
            [_short(answer.seconds[cause]) for cause in causes],
        ]

    return {
        "available": grid.scenario.cluster.gpu.usable_bytes,
        "causes": [[cause.replace("_", " "), GROUPS[cause], GROUP_PARTS[GROUPS[cause]].key] for cause in causes],
        "memory": list(MEMORY),
        "axes": [
            {
                "values": [axis.show(value) for value in axis.values],
                "sets": [setting(axis, value) for value in axis.values],
                "own": axis.values.index(own_value(grid.scenario, axis)),
            }
            for axis in grid.axes
        ],
        "engine": "" if grid.engine == "dag" else grid.engine,
        "points": [numbers(point) for point in grid.points],
        "texts": list(texts),
    }


def _short(value: float) -> float:
    """A number that is as long in JSON as it need be."""
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def in_page(data: Any) -> str:
    """JSON that cannot leave the element it stands in, whatever is in it."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
