"""The ranks that measure together: started here on one machine, or by torchrun or srun on one or several.

Rank 0 keeps the journal, and every measurement is on disk before the next begins, so an interrupt loses nothing. Each
is noted there before it begins, too: one that hangs ends the run after minutes; the next run tries it once more, then
leaves it out.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from flopcast_calibration.bench.collectives import members, time_collective, time_pair, time_together
from flopcast_calibration.bench.timing import settle
from flopcast_calibration.measurement import Journal, Measurement, Shape, read_journal
from sim.errors import ProfileError

Task = tuple[str, Shape]
"""(kind, shape) of a measurement that takes several ranks."""

_MEASURE = {"collective": time_collective, "interference": time_pair, "gemm": time_together}
#: The other ranks wait while rank 0 measures its kernels.
_PATIENCE = timedelta(hours=12)
#: A collective that takes longer hangs.
_LIMIT = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class Job:
    """This process's place among those that a launcher started."""

    rank: int
    world: int
    ranks_per_node: int
    local_rank: int


def launched_job(environment: Mapping[str, str] | None = None) -> Job | None:
    """The job this process belongs to, by what torchrun or srun put in its environment; None where nobody but the user
    started it.

    A ProfileError is raised where nodes have different numbers of ranks.
    """
    env = os.environ if environment is None else environment
    if "RANK" in env:
        world, rank = int(env["WORLD_SIZE"]), int(env["RANK"])
        per_node = int(env.get("LOCAL_WORLD_SIZE", world))
        local = int(env.get("LOCAL_RANK", rank % per_node))
    elif "SLURM_PROCID" in env and int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        # A step of srun; the batch script around it has a SLURM_PROCID too, but no number of the step's tasks.
        world, rank = int(env["SLURM_STEP_NUM_TASKS"]), int(env["SLURM_PROCID"])
        per_node = world // int(env.get("SLURM_STEP_NUM_NODES", 1))
        local = int(env.get("SLURM_LOCALID", rank % per_node))
    else:
        return None
    if world % per_node:
        raise ProfileError(
            f"{world} ranks, {per_node} on this node: start as many on every node (srun --ntasks-per-node)"
        )
    return Job(rank, world, per_node, local)


def enter(job: Job) -> None:
    """Put what torchrun says of a rank into the environment, where srun did not: its numbers, and where ranks meet.

    They meet on the step's first node, at a port of the job's own.
    """
    told = {
        "RANK": job.rank,
        "WORLD_SIZE": job.world,
        "LOCAL_RANK": job.local_rank,
        "LOCAL_WORLD_SIZE": job.ranks_per_node,
    }
    for name, value in told.items():
        os.environ.setdefault(name, str(value))
    if "MASTER_ADDR" in os.environ:
        return
    first = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or _first_host(
        os.environ.get("SLURM_STEP_NODELIST", "localhost")
    )
    os.environ["MASTER_ADDR"] = first
    os.environ.setdefault("MASTER_PORT", str(20_000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20_000))


def _first_host(nodes: str) -> str:
    """The first of Slurm's list of nodes, as `node[03-05,7],other`."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", nodes)
    return "localhost" if match is None else match[1] + (match[2] or "")


def run_tasks(
    journal: Journal, device: str, tasks: list[Task], num_ranks: int, advance: Callable[[], Any] = lambda: None
) -> None:
    """Measure `tasks`: as rank 0 of a launcher's job, or with `num_ranks` processes of our own.

    A ProfileError says that a rank failed; what was measured before is on disk.
    """
    job = launched_job()
    if job is not None:
        _work(job, device, tasks, journal.path, advance)
    elif tasks:
        _spawn(num_ranks, device, tasks, journal.path, advance)
    journal.reload()


def help_along(job: Job, device: str, turns: int) -> None:
    """What every rank of a launcher's job but the first does: take part in what rank 0 measures, turn by turn."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with joined(job, device):
        for _ in range(turns):
            _work(job, device, None, None)


@contextmanager
def joined(job: Job | None, device: str) -> Iterator[None]:
    """This process as one rank of the job; without a job, itself alone."""
    import torch

    if job is None:
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(job.local_rank)
    settle(device)
    enter(job)
    with process_group(device, rank=job.rank, world_size=job.world, timeout=_LIMIT):
        yield


@contextmanager
def process_group(device: str, **where: Any) -> Iterator[None]:
    """This process among its ranks. On GPUs gloo stands beside NCCL, for numbers that the hosts send each other."""
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", **where)
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
    job = Job(rank, world, world, rank)
    with joined(job, device):
        _work(job, device, todo, path if rank == 0 else None)


def _work(
    job: Job, device: str, todo: list[Task] | None, path: Path | None, advance: Callable[[], Any] = lambda: None
) -> None:
    """One rank's share of all tasks; rank 0 knows them, and keeps in the journal at `path` what all ranks agree on."""
    import torch
    import torch.distributed as dist

    # What ranks tell each other between measurements goes beside the links that are measured.
    control = dist.new_group(backend="gloo", timeout=_PATIENCE)
    parcel = [todo]
    dist.broadcast_object_list(parcel, device=torch.device("cpu"), group=control)
    tasks = parcel[0] or []
    journal = Journal(path, read_journal(path).machine) if path is not None else None
    # Groups of ranks are made when they are first needed.
    group_of = cache(lambda who: dist.new_group(list(who), timeout=_LIMIT))
    for kind, shape in tasks:
        if journal is not None:
            journal.begin(kind, shape)
        timing, error = _one(kind, shape, job, device, group_of)
        errors: list[str | None] = [None] * job.world
        dist.all_gather_object(errors, error, group=control)
        error = next((text for text in errors if text), None)
        if journal is None:
            continue
        if error is not None:
            journal.fail(kind, shape, error)
        elif timing is not None:
            source = f"{job.world} {device} ranks, {'nccl' if device == 'cuda' else 'gloo'}"
            journal.add(Measurement(kind, shape, *timing[0], source=source, extra=timing[1]))
        advance()


def _one(
    kind: str, shape: Shape, job: Job, device: str, group_of: Callable[[tuple[int, ...]], Any]
) -> tuple[Any, str | None]:
    """Take part in one measurement: what came out, and what went wrong on this rank."""
    together = members(shape, job.ranks_per_node)
    made = {who: group_of(who) for who in together}  # every rank makes every group, in the same order
    crowd = group_of(tuple(sorted(rank for who in together for rank in who)))
    mine = next((group for who, group in made.items() if job.rank in who), None)
    if mine is None:
        return None, None
    try:
        return _MEASURE[kind](shape, mine, crowd, job.rank, device), None
    except RuntimeError as error:
        return None, reason_of(error)


def reason_of(error: Exception) -> str:
    """The first line of what torch says, which names the cause."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(not line.startswith(b'{"begun"') for line in file)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
