"""The whole suite: what is measured on this device, what is left to do, and one flushed line a measurement."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

from flopcast_calibration.bench import kernels
from flopcast_calibration.bench.collectives import collective_shapes, interference_shapes, together_shapes
from flopcast_calibration.bench.kernels import Case
from flopcast_calibration.bench.ranks import Task, help_along, joined, launched_job, reason_of, run_tasks
from flopcast_calibration.bench.timing import describe, release, rotated, settle, time_call, warm_up
from flopcast_calibration.measurement import Journal, Measurement, MeasurementSet, read_journal
from sim.errors import ProfileError
from sim.specs import Scenario
from sim.specs.yaml12 import load_yaml

Report = Callable[[str, int, int], None]
"""(what is being measured, done so far, in all)"""
TURNS = 3
"""How often at most anything is measured: again only where it came out unsteady."""


def pick_device(asked: str) -> str:
    """`cuda` or `cpu`; `auto` takes a GPU where there is one."""
    try:
        import torch
    except ImportError:
        raise ProfileError("calibration needs torch; install it with: pip install torch") from None
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
    within_s: float = math.inf,
    report: Report = lambda what, done, total: None,
) -> MeasurementSet | None:
    """Measure this machine; whatever `path` holds already is kept and not measured again.

    What comes out unsteady (other work on the machine, a clock that changes) is measured again in later turns, and the
    least disturbed median counts.

    Parameters
    ----------
    path : Path
        JSON lines; may be the file of an interrupted run.
    device : str
        "cuda" or "cpu".
    quick : bool
        Fewer shapes.
    ranks : int, optional
        Processes for collectives on this machine; default one a GPU, or one a core up to 4. 1 leaves collectives out.
        Under torchrun or srun its ranks are taken instead.
    scenario : Scenario, optional
        Also measure the multiplies of this scenario.
    within_s : float
        Begin no kernel's measurement after so long: the small ones of every kind come first. [s]
    report : function
        Called as things are measured.

    Returns
    -------
    MeasurementSet or None
        None on a rank of a launcher's that only helps rank 0.
    """
    settle(device)
    job = launched_job()
    if job is not None and job.rank > 0:
        help_along(job, device, TURNS)
        return None
    journal = Journal(path, describe(device))
    cases = kernel_cases(device, quick, scenario)
    if math.isfinite(within_s):
        cases = small_first(cases)
    warm_up(device)
    end = time.monotonic() + within_s
    tasks = _rank_tasks(device, quick, ranks)
    num_ranks = max((int(shape["num_ranks"]) for _, shape in tasks), default=1)
    try:
        with joined(job, device):
            for turn in range(1, TURNS + 1):
                cases_left = [case for case in cases if journal.lacks(case.kind, case.shape, turn)]
                tasks_left = [task for task in tasks if journal.lacks(*task, turn)]
                step = _progress(report, len(cases_left) + len(tasks_left), "" if turn == 1 else " again")
                for case in cases_left:
                    if time.monotonic() > end:
                        break
                    _measure(case, device, journal)
                    step(case.kind)
                release(device)
                run_tasks(journal, device, tasks_left, num_ranks, partial(step, "several ranks"))
    except KeyboardInterrupt:
        journal.interrupted()
        raise
    kept = read_journal(path)
    return MeasurementSet(kept.machine, tuple(journal.done.values()), failures=kept.failures)


def small_first(cases: list[Case]) -> list[Case]:
    """The cases of every kind from small to large, the kinds in turn, so that any beginning has some of each."""
    sized: dict[str, list[Case]] = {}
    for case in sorted(cases, key=lambda case: math.prod(x for x in case.shape.values() if isinstance(x, int) and x)):
        sized.setdefault(case.kind, []).append(case)
    shares = [((at + 1) / len(alike), case) for alike in sized.values() for at, case in enumerate(alike)]
    return [case for _, case in sorted(shares, key=lambda pair: pair[0])]


def _progress(report: Report, total: int, suffix: str) -> Callable[[str], None]:
    """What is told of every measurement of a turn that is taken."""
    done = count(1)
    return lambda what: report(what + suffix, next(done), total)


def _rank_tasks(device: str, quick: bool, ranks: int | None) -> list[Task]:
    """What several ranks measure together."""
    import torch

    job = launched_job()
    devices = torch.cuda.device_count() if device == "cuda" else min(4, os.cpu_count() or 1)
    num_ranks = job.world if job is not None else devices if ranks is None else ranks
    per_node = job.ranks_per_node if job is not None else num_ranks
    if num_ranks < 2:
        return []
    nodes, dtype = num_ranks // per_node, usual_dtype(device)
    shapes = {
        "collective": collective_shapes(num_ranks, quick, _largest_buffer(device, quick, per_node), per_node),
        "gemm": together_shapes(per_node, quick, device, dtype) if per_node > 1 else (),
        "interference": interference_shapes(per_node, quick, device, dtype, nodes),
    }
    return [(kind, shape) for kind, found in shapes.items() for shape in found]


def _largest_buffer(device: str, quick: bool, ranks_per_node: int) -> int:
    """Largest buffer of a collective: a gigabyte, where the machine's memory holds every rank's copies. [bytes]"""
    if device == "cuda":
        return 2**30
    if quick:
        return 2**24
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(2**30, memory // (8 * ranks_per_node))


def _measure(case: Case, device: str, journal: Journal) -> None:
    """Measure one case; what this device or this build cannot do is noted, and the rest goes on.

    A ProfileError says that the device itself failed: nothing can be measured until the next start.
    """
    journal.begin(case.kind, case.shape)
    try:
        call = rotated(case.prepare, case.working_set, device)
        timing = time_call(call, device, apart=case.apart)
    except (ImportError, RuntimeError, AttributeError, TypeError, ValueError) as error:
        journal.fail(case.kind, case.shape, reason_of(error))
        if device == "cuda" and "out of memory" not in str(error) and "CUDA error" in str(error):
            raise ProfileError(
                f"the GPU failed at {journal.last_failure}; run the same command again to go on without it"
            ) from None
        return
    journal.add(Measurement(case.kind, case.shape, *timing, source=device))


SUITE: dict[str, list[dict[str, Any]]] = load_yaml(Path(__file__).parents[1] / "facts" / "suite.yaml")


def kernel_cases(device: str, quick: bool, scenario: Scenario | None = None) -> list[Case]:
    """Everything to measure on one device, in the precisions and with the kernels that it has."""
    cuda, dtype = device == "cuda", usual_dtype(device)
    largest = 2e13 if cuda else 3e10
    shapes = [
        *kernels.gemm_shapes(quick, largest),
        *(kernels.unaligned_shapes(quick) if cuda else ()),
        *(kernels.scenario_shapes(scenario) if scenario is not None else ()),
    ]
    cases = [kernels.gemm_case(m, n, k, dtype, layout) for m, n, k, layout in shapes]
    for entry in SUITE[f"{device}, quick" if quick else device]:
        cases += _listed(entry, {"usual": (dtype,), "each": attention_backends(device)})
    cases += kernels.format_cases(quick, largest) if cuda else ()
    return list({(case.kind, str(sorted(case.shape.items()))): case for case in cases}.values())


def _listed(entry: dict[str, Any], words: dict[str, Sequence[Any]]) -> Iterator[Case]:
    """All cases of an entry of the suite; `words` stand for values that the device gives."""
    make = getattr(kernels, f"{entry['case']}_case")
    sizes = {name: value for name, value in entry.items() if name != "case"}
    columns = (value if isinstance(value, list) else words.get(value, (value,)) for value in sizes.values())
    for values in product(*columns):
        fields: dict[str, Any] = {}
        for name, value in zip(sizes, values, strict=True):
            fields |= dict(zip(name.split(", "), value, strict=True)) if ", " in name else {name: value}
        yield make(**fields)


def usual_dtype(device: str) -> str:
    """What training multiplies in on this device: bfloat16, or float16 on a GPU that is older (V100)."""
    if device != "cuda":
        return "float32"
    import torch

    return "bfloat16" if torch.cuda.get_device_capability() >= (8, 0) else "float16"


def attention_backends(device: str) -> tuple[str | None, ...]:
    """The attention kernels to measure: flash where the GPU runs it, cuDNN's where that is another generation, and the
    one that torch falls back to where neither takes a mask or a head."""
    if device != "cuda":
        return (None,)
    import torch

    capability = torch.cuda.get_device_capability()
    if capability < (8, 0):
        return ("EFFICIENT_ATTENTION",)
    later = ("CUDNN_ATTENTION",) if capability >= (9, 0) else ()
    return ("FLASH_ATTENTION", *later, "EFFICIENT_ATTENTION")
