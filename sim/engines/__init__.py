"""Floor 4, run: an order and seconds become a timeline.

To add an engine:

1. write one file with `run(program) -> Timeline`;
2. add one entry to `ENGINES`;
3. the property tests hold it against the others.

Two engines play the same tasks by different means (longest paths and discrete events), one plays messages on links, and
search has formulas of even pipelines. They are held against each other, which is why there are several.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.engines import longest_path
from sim.engines.program import Program
from sim.engines.timeline import Timeline
from sim.errors import SpecError, nearest


def _des(program: Program) -> Timeline:
    """Run the engine of events, which is loaded first."""
    from sim.engines import des

    return des.run(program)


ENGINES: dict[str, Callable[[Program], Timeline]] = {"dag": longest_path.run, "des": _des}


def run(program: Program, engine: str = "dag") -> Timeline:
    """Run a program on an engine."""
    if engine not in ENGINES:
        raise SpecError(f"unknown engine {engine!r}{nearest(engine, ENGINES)}")
    return ENGINES[engine](program)


__all__ = ["ENGINES", "Program", "Timeline", "run"]
