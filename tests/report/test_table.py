"""A table cuts no number, however narrow the terminal."""

import io

from rich.console import Console

from sim.table import Table
from tests.rows import rows

ROWS = [("zb_v", "14.0 s", "+0.0%", "6.91 GB"), ("interleaved", "14.8 s", "", "123.45 GB")]


def printed(width):
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("schedule", "step time", "slower", "activations\nkept"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in ROWS:
        table.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


@rows("width", [20, 30, 44, 60, 100])
def test_every_value_is_there_and_no_line_is_too_long(width):
    lines = printed(width)
    text = "\n".join(lines)
    assert "…" not in text
    assert all(cell in text for row in ROWS for cell in row)
    assert max(map(len, lines)) <= width


def test_where_there_is_room_it_is_a_table():
    assert len(printed(60)) == 4  # a heading of two lines
    assert len(printed(30)) > 4
    assert any("step time" in line and "14.8 s" in line for line in printed(30))
