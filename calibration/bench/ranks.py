"""The ranks that measure together: started here on one machine, or by torchrun on one or several.

Rank 0 keeps the journal, and every measurement is on disk before the next begins, so an interrupt loses nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from calibration.bench.collectives import members, time_collective
from calibration.bench.interference import time_pair
from calibration.bench.machine import settle
from calibration.measurement import Journal, Measurement, Shape, read_journal
from sim.errors import ProfileError

Task = tuple[str, Shape]
"""(kind, shape) of a measurement that takes several ranks."""

_MEASURE = {"collective": time_collective, "interference": time_pair}
#: Under torchrun the other ranks wait while rank 0 measures its kernels.
_PATIENCE = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class Job:
    """This process's place among those that torchrun started."""

    rank: int
    world: int
    ranks_per_node: int


def torchrun_job() -> Job | None:
    """The job this process belongs to; None where nobody but the user started it."""
    if "RANK" not in os.environ:
        return None
    world = int(os.environ["WORLD_SIZE"])
    return Job(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_WORLD_SIZE", world)))


def run_tasks(
    journal: Journal,
    device: str,
    tasks: list[Task],
    num_ranks: int,
    advance: Callable[[], Any] = lambda: None,
) -> None:
    """Measure `tasks`: as rank 0 of torchrun's job, or with `num_ranks` processes of our own.

    Raises
    ------
    ProfileError
        A rank failed; what was measured before is on disk.
    """
    job = torchrun_job()
    if job is not None:
        _work(job, device, tasks, journal.path, advance)
    elif tasks:
        _spawn(num_ranks, device, tasks, journal.path, advance)
    journal.reload()


def help_along(job: Job, device: str, turns: int) -> None:
    """What every rank of torchrun's job but the first does: take part in what rank 0 measures, as often as it does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with joined(job, device):
        for _ in range(turns):
            _work(job, device, None, None)


@contextmanager
def joined(job: Job | None, device: str) -> Iterator[None]:
    """This process as one rank of the job; without a job, itself alone."""
    import torch
    import torch.distributed as dist

    if job is None:
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", job.rank)))
    settle(device)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=job.rank, world_size=job.world, timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _spawn(num_ranks: int, device: str, todo: list[Task], path: Path, advance: Callable[[], Any]) -> None:
    import torch.multiprocessing as processes

    with _interrupts_ignored():  # inherited: a rank that is still loading torch would answer one with a traceback
        context = processes.spawn(_spawned, (num_ranks, _free_port(), path, device, todo), nprocs=num_ranks, join=False)
    seen = _lines(path)
    try:
        while not context.join(timeout=0.5):
            now = _lines(path)
            for _ in range(now - seen):
                advance()
            seen = now
    except (processes.ProcessRaisedException, processes.ProcessExitedException) as error:
        why = str(error).strip().splitlines()[-1]
        raise ProfileError(f"a rank of the collectives failed ({why}); run again to go on, or with --ranks 1") from None
    finally:
        for process in context.processes:
            process.kill()
            process.join()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _spawned(rank: int, world: int, port: str, path: Path, device: str, todo: list[Task]) -> None:
    # An interrupt, or the end of the process that started it, ends a rank at once and without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    job = Job(rank, world, world)
    with joined(job, device):
        _work(job, device, todo, path if rank == 0 else None)


def _work(
    job: Job, device: str, todo: list[Task] | None, path: Path | None, advance: Callable[[], Any] = lambda: None
) -> None:
    """One rank's share of all tasks; rank 0 knows them and keeps the journal at `path`."""
    import torch
    import torch.distributed as dist

    parcel = [todo]
    dist.broadcast_object_list(parcel, device=torch.device("cpu"))
    tasks = parcel[0] or []
    groups: dict[tuple[int, ...], Any] = {}
    for _, shape in tasks:
        who = members(shape, job.ranks_per_node)
        if who not in groups:
            groups[who] = dist.new_group(list(who))
    journal = Journal(path, read_journal(path).machine) if path is not None else None
    for kind, shape in tasks:
        who = members(shape, job.ranks_per_node)
        if job.rank in who:
            timing, extra = _MEASURE[kind](shape, groups[who], job.rank, device)
            if journal is not None:
                source = f"{job.world} {device} ranks, {'nccl' if device == 'cuda' else 'gloo'}"
                journal.add(Measurement(kind, shape, *timing, source=source, extra=extra))
                advance()
        dist.barrier()


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
