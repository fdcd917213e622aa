"""Floor 4, run: an order and seconds become a timeline.

To add an engine:

1. write one file with `run(program) -> Timeline`;
2. add one entry to `ENGINES`;
3. the property tests hold it against the others.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.engines import closed_form, des, longest_path, shared
from sim.engines.program import Program
from sim.engines.timeline import Timeline
from sim.errors import SpecError, nearest

ENGINES: dict[str, Callable[[Program], Timeline]] = {
    "closed_form": closed_form.run,
    "dag": longest_path.run,
    "des": des.run,
    "shared": shared.run,
}


def run(program: Program, engine: str = "dag") -> Timeline:
    """Run a program on an engine.

    Raises
    ------
    SpecError
        No engine of that name.
    """
    if engine not in ENGINES:
        raise SpecError(f"unknown engine {engine!r}{nearest(engine, ENGINES)}")
    return ENGINES[engine](program)


__all__ = ["ENGINES", "Program", "Timeline", "run"]
