"""Scores of flopcast on tables of measured runs and of memory outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Listing:
    """What is asked for beside the groups of runs.

    figure : Draw predicted against measured here (.png, .svg).
    every : List every run, not only groups.
    sweeps : List every sweep of layouts: what we pick, what was the fastest.
    markdown : Print the record as a table of Markdown only.
    export : Write every modelled row as a scenario file into this folder.
    transfer : Errors once one and three runs of a source are given; the record that ships is treated as unknown.
    """

    figure: Path | None = None
    every: bool = False
    sweeps: bool = False
    markdown: bool = False
    export: Path | None = None
    transfer: bool = False
