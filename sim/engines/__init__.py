"""Floor 4, run: an order and seconds become a timeline.

To add an engine:

1. write one file with `run(program) -> Timeline`;
2. add one entry to `ENGINES`;
3. the property tests hold it against the others.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from sim.engines import longest_path
from sim.engines.program import Program
from sim.engines.timeline import Timeline
from sim.errors import SpecError, nearest


def _loaded(name: str) -> Callable[[Program], Timeline]:
    """Return an engine that is loaded when it first runs."""

    def run(program: Program) -> Timeline:
        answer: Timeline = import_module(f"sim.engines.{name}").run(program)
        return answer

    return run


ENGINES: dict[str, Callable[[Program], Timeline]] = {"dag": longest_path.run, "des": _loaded("des")}


def run(program: Program, engine: str = "dag") -> Timeline:
    """Run a program on an engine."""
    if engine in ("closed_form", "shared"):
        raise SpecError(f"engine {engine} is gone: use dag, which is exact and gives each rank a core of its own")
    if engine not in ENGINES:
        raise SpecError(f"unknown engine {engine!r}{nearest(engine, ENGINES)}")
    return ENGINES[engine](program)


__all__ = ["ENGINES", "Program", "Timeline", "run"]
