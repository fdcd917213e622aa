"""What GPUs cost each other: a multiply and a collective at once, and multiplies on all GPUs of a node.

On GPUs NCCL runs on a stream of its own while the multiplies run; on a CPU gloo's threads move data meanwhile. The
multiplies last about as long as the collective, where hiding shows best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flopcast_calibration.bench.collectives import agreed, clock, prepare
from flopcast_calibration.bench.kernels import gemm_case
from flopcast_calibration.bench.timing import Timing, rotated, summarise
from flopcast_calibration.measurement import Shape

#: device -> (m, n, k) of the multiply that overlaps with the collective
_MULTIPLY = {"cuda": (4096, 8192, 8192), "cpu": (256, 1024, 1024)}
_REPEATS = 9
#: A sample of multiplies on all GPUs at once. [s]
_LONG_S = 0.5


def interference_shapes(num_ranks: int, quick: bool, device: str, dtype: str, nodes: int = 1) -> Iterator[Shape]:
    """Collectives large enough to matter, over groups of one node, and of all nodes.

    num_ranks : of a node.
    """
    m, n, k = _MULTIPLY[device]
    exponents = (22, 24, 26, 28, 30) if device == "cuda" else (20, 22, 24)
    inside = sorted({2, num_ranks}) if quick else range(2, num_ranks + 1)
    groups = [(size, 1) for size in inside if num_ranks > 1] + [(num_ranks * nodes, nodes)] * (nodes > 1)
    for operation in ("all_reduce",) if quick else ("all_reduce", "all_gather", "reduce_scatter"):
        for size, spans in groups:
            for exponent in exponents:
                yield {
                    "operation": operation,
                    "num_ranks": size,
                    "num_nodes": spans,
                    "nbytes": 2**exponent,
                    "m": m,
                    "n": n,
                    "k": k,
                    "dtype": dtype,
                }


def together_shapes(num_ranks: int, quick: bool, device: str, dtype: str) -> Iterator[Shape]:
    """Multiplies that every GPU of a node runs at once: power, cooling and memory of the host are shared."""
    if device != "cuda":
        return
    for m, n, k in ((8192, 8192, 8192),) if quick else ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 12288, 12288)):
        yield {"m": m, "n": n, "k": k, "dtype": dtype, "layout": "nt", "num_ranks": num_ranks}


def time_together(shape: Shape, group: Any, crowd: Any, rank: int, device: str) -> tuple[Timing, Shape]:
    """The slowest GPU's time of a multiply that all run meanwhile, long enough for clocks to settle."""
    m, n, k = (int(shape[axis]) for axis in "mnk")
    case = gemm_case(m, n, k, str(shape["dtype"]), "nt")
    call = rotated(case.prepare, case.working_set, device)
    call()
    once = agreed(crowd, [clock(call, 3, crowd, device)], device)[0]
    inner = max(1, int(_LONG_S / once))
    return summarise(agreed(crowd, [clock(call, inner, crowd, device) for _ in range(_REPEATS)], device)), {}


def time_pair(shape: Shape, group: Any, crowd: Any, rank: int, device: str) -> tuple[Timing, Shape]:
    """The time of both at once; besides, as `gemm_s` and `collective_s`, what each takes alone. [s]

    The three are measured in turns, so that a clock or a neighbour that changes meanwhile changes all of them.
    """
    m, n, k = (int(shape[axis]) for axis in "mnk")
    multiply = gemm_case(m, n, k, str(shape["dtype"]), "nt").prepare(device)
    start = prepare(
        str(shape["operation"]), int(shape["nbytes"]), int(shape["num_ranks"]), group, rank, device, wait=False
    )

    def multiplies(count: int) -> None:
        for _ in range(count):
            multiply()

    def both(count: int) -> None:
        work = start()
        multiplies(count)
        work.wait()

    both(1)
    alone, moved = agreed(
        group, [clock(multiply, 3, group, device), clock(lambda: start().wait(), 3, group, device)], device
    )
    count = max(1, min(500, round(moved / alone)))
    calls: tuple[Callable[[], Any], ...] = (lambda: multiplies(count), lambda: start().wait(), lambda: both(count))
    samples = [[clock(call, 1, group, device) for call in calls] for _ in range(_REPEATS)]
    gemm, collective, pair = (summarise(agreed(group, list(column), device)) for column in zip(*samples, strict=True))
    return pair, {"gemm_s": gemm.median_s, "collective_s": collective.median_s, "multiplies": count}
