"""Figures as files."""

import pytest

from sim.canvas import new_figure, write_figure


@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
def test_the_same_figure_is_the_same_bytes(tmp_path, ending):
    """No date is written, and no name is drawn at random."""
    written = []
    for name in ("one", "two"):
        figure = new_figure(4, 3)
        figure.subplots().plot([1, 2], [3, 4], "o-")
        write_figure(figure, tmp_path / f"{name}{ending}", 50)
        written.append((tmp_path / f"{name}{ending}").read_bytes())
    assert written[0] == written[1]
    assert b"dc:date" not in written[0]
    assert b"CreationDate" not in written[0]
