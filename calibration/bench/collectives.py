"""Collectives, sends and interference over every group size: gloo on a CPU, NCCL on GPUs; alone or under torchrun.

Rank 0 keeps the journal. A collective's time is that of its slowest rank.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from calibration.bench.timing import Timing, summarise, synchronise
from calibration.measurement import Journal, Measurement, Shape

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")


def collective_shapes(num_ranks: int, quick: bool, largest: int) -> Iterator[Shape]:
    """Operation × group size × bytes; every group size from 2 up."""
    groups = [n for n in range(2, num_ranks + 1) if not quick or n in (2, 3, 4, num_ranks)]
    step = 2 if quick else 1
    sizes = [2**exponent for exponent in range(10, 31, step) if 2**exponent <= largest]
    for operation in OPERATIONS:
        for group in (2,) if operation == "send" else groups:
            for nbytes in sizes:
                yield {"operation": operation, "num_ranks": group, "nbytes": nbytes}


def run_collectives(
    journal: Journal, device: str, shapes: list[Shape], num_ranks: int, advance: Callable[[], Any]
) -> None:
    """Measure what the journal does not hold yet.

    Started by torchrun, this process is one rank of the job; otherwise it starts `num_ranks` processes on this machine.
    """
    todo = [shape for shape in shapes if Measurement("collective", shape, 1.0).key not in journal.done]
    for _ in range(len(shapes) - len(todo)):
        advance()
    if not todo:
        return
    if "RANK" in os.environ:
        _worker(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "", str(journal.path), device, todo)
    else:
        import torch.multiprocessing as processes

        context = processes.spawn(
            _spawned, args=(num_ranks, _free_port(), str(journal.path), device, todo), nprocs=num_ranks, join=False
        )
        seen = _lines(journal.path)
        while not context.join(timeout=0.5):
            now = _lines(journal.path)
            for _ in range(now - seen):
                advance()
            seen = now
    journal.done = Journal(journal.path, _machine_of(journal.path)).done


def _machine_of(path: Path) -> dict[str, Any]:
    from calibration.measurement import read_journal

    return read_journal(path, tolerate_cut_end=True).machine


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _spawned(rank: int, world: int, port: str, path: str, device: str, todo: list[Shape]) -> None:
    _worker(rank, world, port, path, device, todo)


def _worker(rank: int, world: int, port: str, path: str, device: str, todo: list[Shape]) -> None:
    import torch
    import torch.distributed as dist

    if port:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    else:
        torch.set_num_threads(1)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=world, timeout=timedelta(minutes=10))
    try:
        groups = {size: dist.new_group(list(range(size))) for size in {int(shape["num_ranks"]) for shape in todo}}
        journal = Journal(Path(path), _machine_of(Path(path))) if rank == 0 else None
        for shape in todo:
            size = int(shape["num_ranks"])
            if rank < size:
                timing = _time(shape, groups[size], rank, device)
                if journal is not None:
                    source = f"{world} {device} ranks, {backend}"
                    journal.add(Measurement("collective", shape, *timing, source=source))
            dist.barrier()
    finally:
        dist.destroy_process_group()


def _time(shape: Shape, group: Any, rank: int, device: str) -> Timing:
    """Median over repeats of the slowest rank's time."""
    import torch
    import torch.distributed as dist

    call = prepare(str(shape["operation"]), int(shape["nbytes"]), int(shape["num_ranks"]), group, rank, device)
    nbytes = int(shape["nbytes"])
    repeats = 30 if nbytes <= 2**20 else 10
    inner = 10 if nbytes <= 2**16 else 1
    for _ in range(3):
        call()
    samples = torch.empty(repeats, dtype=torch.float64)
    for index in range(repeats):
        dist.barrier(group=group)
        synchronise(device)
        start = time.perf_counter()
        for _ in range(inner):
            call()
        synchronise(device)
        samples[index] = (time.perf_counter() - start) / inner
    slowest = samples.cuda() if device == "cuda" else samples
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return summarise(slowest.tolist())


def prepare(operation: str, nbytes: int, size: int, group: Any, rank: int, device: str) -> Callable[[], Any]:
    """Buffers and the call. `nbytes` is the full buffer: what an all-reduce reduces and a gather ends with."""
    import torch
    import torch.distributed as dist

    count = max(size, nbytes // 4 // size * size)
    full = torch.randn(count, device=device)
    part = torch.randn(count // size, device=device)
    if operation == "all_reduce":
        return lambda: dist.all_reduce(full, group=group)
    if operation == "all_gather":
        pieces = list(full.chunk(size))
        if device == "cuda":
            return lambda: dist.all_gather_into_tensor(full, part, group=group)
        return lambda: dist.all_gather(pieces, part, group=group)
    if operation == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, full, group=group)
    if operation == "all_to_all":
        out = torch.empty_like(full)
        return lambda: dist.all_to_all_single(out, full, group=group)
    if operation == "broadcast":
        return lambda: dist.broadcast(full, src=0, group=group)
    assert operation == "send", operation
    if rank == 0:
        return lambda: dist.send(full, dst=1, group=group)
    return lambda: dist.recv(full, src=0, group=group)
