"""The whole suite: what is left to do, how long it will take, and one flushed line a measurement."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibration.bench.collectives import collective_shapes, run_collectives
from calibration.bench.kernels import Case, kernel_cases
from calibration.bench.machine import clocks, describe
from calibration.bench.timing import time_call
from calibration.measurement import Journal, Measurement, MeasurementSet, read_journal
from sim.errors import ProfileError
from sim.specs import Scenario

Report = Callable[[str, int, int], None]
"""(what is being measured, done so far, in all)"""


def pick_device(asked: str) -> str:
    """`cuda` or `cpu`; `auto` takes a GPU where there is one."""
    try:
        import torch
    except ImportError:
        raise ProfileError("calibration needs torch; install it with: pip install 'flopcast[torch]'") from None
    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise ProfileError(
            "torch sees no CUDA device; use --device cpu, or a build of torch with CUDA on a GPU machine"
        )
    return ("cuda" if available else "cpu") if asked == "auto" else asked


def run_suite(
    path: Path,
    device: str,
    *,
    quick: bool = False,
    ranks: int | None = None,
    scenario: Scenario | None = None,
    report: Report = lambda what, done, total: None,
) -> MeasurementSet:
    """Measure this machine; whatever `path` holds already is kept and not measured again.

    Parameters
    ----------
    path : Path
        JSON lines; may be the file of an interrupted run.
    device : str
        "cuda" or "cpu".
    quick : bool
        Fewer shapes: under two minutes.
    ranks : int, optional
        Processes for collectives on this machine; default one a GPU, or one a core up to 4. 1 leaves collectives out.
    scenario : Scenario, optional
        Also measure the multiplies of this scenario.
    report : function
        Called as things are measured.
    """
    import torch

    if device == "cpu":
        torch.set_num_threads(1)  # a rank of a job on a CPU is one core; two threads would wait for each other's turns
    journal = Journal(path, describe(device))
    cases = kernel_cases(device, quick, scenario)
    devices = torch.cuda.device_count() if device == "cuda" else min(4, os.cpu_count() or 1)
    num_ranks = ranks if ranks is not None else devices
    largest = 2**30 if device == "cuda" else (2**24 if quick else 2**26)
    shapes = list(collective_shapes(num_ranks, quick, largest)) if num_ranks > 1 else []
    total = len(cases) + len(shapes)
    first = int(os.environ.get("RANK", "0")) == 0
    done = 0
    for case in cases if first else ():
        report(case.kind, done, total)
        _measure(case, device, journal)
        done += 1

    def advance() -> None:
        nonlocal done
        done += 1
        report("collective", done, total)

    run_collectives(journal, device, shapes, num_ranks, advance)
    return read_journal(path, tolerate_cut_end=True)


def _measure(case: Case, device: str, journal: Journal) -> None:
    if Measurement(case.kind, case.shape, 1.0).key in journal.done:
        return
    try:
        timing = time_call(case.prepare(device), device)
    except RuntimeError as error:  # out of memory, an operation this build lacks: leave the case out, keep the rest
        if "out of memory" not in str(error) and "not implemented" not in str(error):
            raise
        return
    extra: dict[str, Any] = dict(clocks()) if device == "cuda" else {}
    journal.add(Measurement(case.kind, case.shape, *timing, source=device, extra=extra))
