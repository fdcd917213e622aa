"""Learn the table of 90 % intervals anew: sim/presets/intervals.yaml, from the record and from tables of other sources.

    python -m tests.learn_intervals runs.csv folder --without 'id-*'

A table or a folder of cases is as `flopcast validate --runs` takes it; its rows count whose sources are not in the
record. `--without` leaves out rows by their id.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from flopcast_calibration.readers.training_runs import read_training_runs
from flopcast_validation.run import published_runs
from flopcast_validation.runs.intervals import known_only, left_out
from flopcast_validation.runs.scored import Scored, modelled, score_all
from flopcast_validation.runs.transfer import GIVEN, after_runs, batches_of, sources, transfer
from sim.commands.progress import progress_bar
from sim.files import write_text
from sim.uncertainty import TABLE, Spreads

MOST = 24
"""Runs of a source that intervals after measured runs are learnt from."""


def thinned(scored: Sequence[Scored]) -> list[Scored]:
    """At most MOST runs of each source, evenly sampled."""
    return [item for items in sources(scored).values() for item in items[:: -(-len(items) // MOST)]]


def learnt(others: Sequence[Scored]) -> Spreads:
    """The spreads of the record, and of runs of other sources."""
    record = score_all(published_runs())
    batches, ours = batches_of(transfer(record, progress_bar, given=())), {item.run.source for item in record}
    batches[0] += [item for item in modelled(others) if item.run.source not in ours]

    def after(spreads: Spreads) -> list[list[Scored]]:
        """Runs once some of their source were measured, their frameworks unknown and known."""
        known = [thinned(items) for items in (batches[1], known_only(batches[0]))]
        every = [after_runs(items, count, first_order=spreads) for items in known for count in GIVEN]
        return [[item for each in found for item in each.after] for found in every]

    return left_out(batches, after)[0]


def write_intervals(spreads: Spreads, path: Path = TABLE) -> None:
    """Write the table."""
    tables = {
        "parts:  # of the seconds of what a step is made of": spreads.parts,
        "facts:  # factors on these": spreads.facts,
        "apart:  # by what share two runs tell less of each other for each doubling of what they differ in": (
            spreads.apart
        ),
    }
    lines = ["# How far step times are off, as standard deviations of logarithms; python -m tests.learn_intervals"]
    for head, values in tables.items():
        lines += [head, *(f"  {name}: {value:.3f}" for name, value in values.items())]
    down, up = spreads.reach
    lines += [
        f"reach: [{down:.3f}, {up:.3f}]  # how many of them the interval reaches down and up",
        "published:  # lineages and runs by GPU, sharding and precision",
        *(f'  "{kind}": [{lineages}, {runs}]' for kind, (lineages, runs) in spreads.published.items()),
        f"runs: {spreads.runs}",
        f"lineages: {spreads.lineages}",
    ]
    write_text(path, "\n".join(lines) + "\n")


def main() -> None:
    """Rewrite the table that ships."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--without", action="append", default=[])
    asked = parser.parse_args()
    runs = [run for path in asked.tables for run in read_training_runs(path)]
    spreads = learnt(score_all([run for run in runs if not any(fnmatch(run.id, each) for each in asked.without)]))
    write_intervals(spreads)
    print(f"intervals written, of {spreads.runs:,} runs of {spreads.lineages} lineages")


if __name__ == "__main__":
    main()
