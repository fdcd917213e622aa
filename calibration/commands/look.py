"""`calibrate show` and `calibrate compare`: profiles looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flopcast_calibration.commands.shared import SHIPPED_DATA, console, profile_and_stack, read_profile
from sim.errors import ProfileError
from sim.units import UNIT_NAMES, between, show_bare


def show(profile: str, *, png: Path | None = None, node: str | None = None) -> None:
    """A profile's values with intervals and sources; with --png, its fits drawn against the measurements.

    profile : A profile's YAML file, or the name of a shipped one.
    png : Draw measured points against the fitted curves (.png or .svg).
    node : What was measured: a node or cluster preset, or a YAML file that describes one; found by the device's name if
        not given.
    """
    from rich.markup import escape

    from sim.specs.presets import raw_preset, source_rows
    from sim.specs.yaml12 import load_yaml
    from sim.table import Table

    path = Path(profile) if profile.endswith((".yaml", ".yml")) else None
    data = load_yaml(path) if path else raw_preset("profiles", profile)
    record = read_profile(profile)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("field", "value", "90 % interval", "source"):
        # Where the words of a source find no room, each field has lines of its own.
        whole = name == "source"
        table.add_column(
            name, overflow="ellipsis" if whole else "fold", style="dim" if whole else "", no_wrap=name == "field"
        )
    section = ""
    for field, value, source, interval in source_rows(data):
        before, dot, name = field.partition(".")
        if dot and before != section:
            section = before
            table.add_row(f"[bold]{escape(section)}[/bold]", "", "", "")
        table.add_row(
            *map(
                escape, (f"  {name}" if dot else field, _as_read(field, value), _as_read(field, interval), str(source))
            )
        )
    out = console()
    out.print(table)
    if png is not None:
        _draw(record, path.parent if path else SHIPPED_DATA, node, png)
        out.print(f"drawn: {png}")


def _draw(profile: Any, folder: Path, node: str | None, png: Path) -> None:
    """The profile's fits against the measurements in its folder."""
    from flopcast_calibration.measurement import read_journal
    from flopcast_calibration.node import measured_cluster
    from flopcast_calibration.report import profile_figure
    from sim.canvas import write_figure

    raw = folder / profile.provenance.raw_data
    if not raw.is_file():
        raise ProfileError(f"profile {profile.name!r} has no measurements beside it to draw")
    data = read_journal(raw)
    write_figure(profile_figure(profile, measured_cluster(data.machine, node), data, width_in=16.0), png, 110)


_DIMENSIONS = {name: dimension for dimension, name in UNIT_NAMES.items()}
_UNITS = {
    "nbytes": "B",
    "measured_flop": "FLOP",
    "measured_length": "tokens",
    "half_length": "tokens",
    "half_columns": "columns",
    "k_overhead": "steps of k",
}
"""Units of fields whose numbers files have without one."""


def _as_read(field: str, value: Any) -> str:
    """A value as people read it, with its unit; of a range both ends."""
    if isinstance(value, list):
        words = [_as_read(field, each) for each in value]
        return between(*words) if len(words) == 2 and not field.startswith("provenance") else "; ".join(words)
    text = value if isinstance(value, str) else f"{value} {_UNITS.get(field.rpartition('.')[2], '')}".rstrip()
    number, _, unit = text.partition(" ")
    return (
        show_bare(float(number), _DIMENSIONS[unit], 4)
        if unit in _DIMENSIONS and number[0].isdigit()
        else text.replace(" us", " µs")
    )


def compare(first: str, second: str) -> None:
    """Two profiles side by side.

    first : A profile's YAML file or name.
    second : Another.
    """
    from sim.table import plain_table

    (left, of_left), (right, of_right) = map(profile_and_stack, (first, second))
    headings = ("field", left.name, right.name, "change")
    table = plain_table(*headings, left=headings[:1], wrap=headings)
    for section in ("gemm", "attention", "memory", "nvlink", "network", "host"):
        pair = [getattr(record, section).model_dump() for record in (left, right)]
        for field, value in pair[0].items():
            other = pair[1][field]
            if any(isinstance(one, (int, float)) for one in (value, other)):
                shown = ["–" if one is None else f"{one:.4g}" for one in (value, other)]
                table.add_row(f"{section}.{field}", *shown, _change(value, other))
    for field in {**of_left, **of_right}:
        table.add_row(f"stack.{field}", *(str(stack.get(field, "–")) for stack in (of_left, of_right)), "")
    console().print(table)


def _change(value: float | None, other: float | None) -> str:
    """A percentage where the two are of one size; a factor where they are not; nothing beside (almost) zero."""
    if not value or not other:
        return ""
    ratio = other / value
    if not 1e-4 < ratio < 1e4:
        return ""
    return f"{ratio - 1:+.0%}" if 0.1 <= ratio < 10 else f"× {ratio:.2g}"
