"""What several ranks measure together: gloo on a CPU, NCCL on GPUs. The slowest rank's time counts.

Collectives and sends run over every group size; multiplies run beside a collective, and on all GPUs of a node at once.
NCCL has a stream of its own while multiplies run; on a CPU gloo's threads move data meanwhile. Multiplies beside a
collective last about as long as it does, where hiding shows best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from flopcast_calibration.bench.kernels import gemm_case
from flopcast_calibration.bench.timing import Timing, rotated, summarise, synchronise
from flopcast_calibration.measurement import Shape

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
#: One sample lasts at least this long, so that the ranks' different starts do not count. [s]
_SAMPLE_S = 4e-3
#: All samples of one measurement. [s]
_BUDGET_S = 0.25


def collective_shapes(num_ranks: int, quick: bool, largest: int, ranks_per_node: int | None = None) -> Iterator[Shape]:
    """Operation × group × bytes: every size of group in a node, then whole nodes, then all rails of the nodes at once.

    `num_ranks` are those of the whole job, `largest` is a buffer [bytes]; without `ranks_per_node` all are on one node.
    """
    per_node = min(ranks_per_node or num_ranks, num_ranks)
    nodes = num_ranks // per_node
    inside = [n for n in range(2, per_node + 1) if not quick or n in (2, 3, 4, per_node)]
    groups = [(n, 1) for n in inside] + [(n * per_node, n) for n in range(2, nodes + 1)]
    pairs = [(2, 1)] * (per_node > 1) + [(2, 2)] * (nodes > 1)
    sizes = [2**exponent for exponent in range(10, 31, 2 if quick else 1) if 2**exponent <= largest]

    def shapes(operation: str, size: int, spans: int, **more: int | str) -> Iterator[Shape]:
        for nbytes in sizes:
            yield {"operation": operation, "num_ranks": size, "num_nodes": spans, "nbytes": nbytes, **more}

    for operation in OPERATIONS:
        for size, spans in pairs if operation == "send" else groups:
            yield from shapes(operation, size, spans)
    if nodes > 1 and per_node > 1:
        # A group for each GPU of a node, over all nodes, as data-parallel groups lie; and as many sends.
        for operation in ("all_reduce",) if quick else ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            yield from shapes(operation, nodes, nodes, groups=per_node)
        yield from shapes("send", 2, 2, groups=per_node)


def members(shape: Shape, ranks_per_node: int) -> tuple[tuple[int, ...], ...]:
    """The groups of a measurement, by their ranks: usually one, of the first of the job.

    Of several at once the i-th has the i-th rank of every node; two ranks on two nodes are one of each.
    """
    size, nodes = int(shape["num_ranks"]), int(shape.get("num_nodes", 1))
    if "groups" in shape:
        return tuple(tuple(i + node * ranks_per_node for node in range(nodes)) for i in range(int(shape["groups"])))
    return ((0, ranks_per_node),) if size == nodes == 2 else (tuple(range(size)),)


def time_collective(
    shape: Shape, group: Any, crowd: Any, rank: int, device: str, budget_s: float = _BUDGET_S
) -> tuple[Timing, Shape]:
    """Median over samples of the slowest rank's time; a sample is as many calls in a row as make it long enough.

    group, crowd : the ranks that talk to each other, and all that are measured at once.
    """
    call = prepare(str(shape["operation"]), int(shape["nbytes"]), int(shape["num_ranks"]), group, rank, device)
    call()
    once = agreed(crowd, [clock(call, 2, crowd, device)], device)[0]
    inner = max(1, min(50, int(_SAMPLE_S / once)))
    repeats = max(3, min(20, int(budget_s / (inner * once))))
    samples = [clock(call, inner, crowd, device) for _ in range(repeats)]
    return summarise(agreed(crowd, samples, device)), {}


def clock(call: Callable[[], Any], inner: int, group: Any, device: str) -> float:
    """Time of one of `inner` calls in a row, which all ranks begin together.  [s]"""
    import torch.distributed as dist

    dist.barrier(group=group)
    synchronise(device)
    start = time.perf_counter()
    for _ in range(inner):
        call()
    synchronise(device)
    return (time.perf_counter() - start) / inner


def agreed(group: Any, samples: list[float], device: str) -> list[float]:
    """Each sample as the slowest rank saw it."""
    import torch
    import torch.distributed as dist

    slowest = torch.tensor(samples, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return [float(sample) for sample in slowest.tolist()]


def prepare(
    operation: str, nbytes: int, size: int, group: Any, rank: int, device: str, *, wait: bool = True
) -> Callable[[], Any]:
    """Buffers and the call. `nbytes` is the full buffer: what an all-reduce reduces and a gather ends with.

    A send is there and back, half of it a call: sends in one direction would only fill the sockets' buffers.

    wait : False returns at once, with the work to wait for.
    """
    import torch
    import torch.distributed as dist

    options = {"group": group, "async_op": not wait}
    count = max(size, nbytes // 4 // size * size)
    full = torch.randn(count, device=device)
    if operation == "all_reduce":
        return lambda: dist.all_reduce(full, **options)
    if operation == "send":
        return _there_and_back(full, group, rank)
    part = torch.randn(count // size, device=device)
    if operation == "all_gather":
        # gloo gathers into a list; NCCL straight into one buffer, as training does
        pieces = list(full.chunk(size))
        return lambda: (
            dist.all_gather_into_tensor(full, part, **options)
            if device == "cuda"
            else dist.all_gather(pieces, part, **options)
        )
    if operation == "reduce_scatter":
        # torch 2.13 renames it
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return lambda: scatter(part, full, **options)
    assert operation == "all_to_all", operation
    out = torch.empty_like(full)
    return lambda: dist.all_to_all_single(out, full, **options)


def _there_and_back(buffer: Any, group: Any, rank: int) -> Callable[[], Any]:
    """A send in one direction, and at the next call in the other."""
    import torch.distributed as dist

    other = next(peer for peer in dist.get_process_group_ranks(group) if peer != rank)
    first = rank < other
    sends = first

    def call() -> None:
        nonlocal sends
        if sends:
            dist.send(buffer, dst=other, group=group)
        else:
            dist.recv(buffer, src=other, group=group)
        sends = not sends

    return call


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
