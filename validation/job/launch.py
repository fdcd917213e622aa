"""Ranks of a job: processes that are forked here, or those that torchrun or srun started us with.

A launcher starts the verb on every rank, of one machine or several. Rank 0 calibrates, predicts and prints; whenever it
needs several ranks it puts a job down where all can read it, and takes part as rank 0. A job of n ranks has process
groups of its own, made by the first n ranks and gone when it is over; the rest wait for the next job.

Without a launcher the ranks are forked from a process that has loaded torch once, which takes each fresh interpreter
seconds, more than a small job itself.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.multiprocessing import start_processes

from flopcast_calibration.bench.ranks import enter, launched_job, process_group
from flopcast_validation.job.device import let_go
from sim.errors import FlopcastError

#: One thread a rank; and freed memory stays with the process: otherwise each large tensor is faulted in anew, page by
#: page, in a time that depends on what else the machine does.
_SETTINGS = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}
_LOADED = [f"flopcast_validation.job.{name}" for name in ("launch", "bench", "train", "single")]
"""What the process that ranks are forked from has loaded."""
_ATTEMPTS = 3
"""A rank that dies of a signal is tried again: gloo's threads may abort where a peer has gone first."""
_MEETING = timedelta(minutes=5)
"""How long a rank waits for the others of a job."""
_PATIENCE = timedelta(hours=12)
"""How long a launcher's ranks wait for the next job while rank 0 is busy."""


def launch(module: str, job: dict[str, Any], num_ranks: int, timeout_s: float = 600.0) -> Any:
    """Have `module.run(job)` run by `num_ranks` processes together, and return what the first of them answers.

    `job` is plain data, as JSON knows it; its `device` says what a rank computes with. After `timeout_s` [s] every
    process of the job is killed. A job that failed or hung is a FlopcastError with the end of what it printed.
    """
    others = joined_world()
    if others is not None:
        return others.lead(module, job, num_ranks)
    for attempt in range(1, _ATTEMPTS + 1):
        code, printed, answers = _run(module, job, num_ranks, timeout_s)
        if code == 0 and answers:
            return answers[0]
        if "signal" not in printed.lower() or attempt == _ATTEMPTS:
            break
    raise FlopcastError(f"{module} failed on {num_ranks} ranks:\n{_reason(printed)}")


def _run(module: str, job: dict[str, Any], num_ranks: int, timeout_s: float) -> tuple[int, str, list[Any]]:
    """One try: the exit code, what was printed, and the answer in a list, empty if there is none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = _loaded().Process(target=_in_a_session, args=(folder, module, job, num_ranks))
        process.start()
        try:
            process.join(timeout_s)
            if process.exitcode is None:
                raise FlopcastError(f"{module} on {num_ranks} ranks took longer than {timeout_s:.0f} s")
        finally:
            if process.exitcode is None:
                _kill(process)
        answer, printed = folder / "answer.json", (folder / "printed.txt").read_text("utf-8", errors="replace")
        return process.exitcode, printed, [json.loads(answer.read_text("utf-8"))] if answer.exists() else []


@cache
def _loaded() -> ForkServerContext:
    """Where jobs are forked from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    before, heeded = dict(os.environ), signal.getsignal(signal.SIGINT)
    alone = threading.current_thread() is threading.main_thread()
    os.environ.update(_SETTINGS)
    try:
        if alone:  # inherited: an interrupt while it loads would be answered with a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        forkserver.ensure_running()
    finally:
        if alone:
            signal.signal(signal.SIGINT, heeded)
        os.environ.clear()
        os.environ.update(before)
    return context


def _in_a_session(folder: Path, module: str, job: dict[str, Any], num_ranks: int) -> None:
    """What a job's first process does: it can be killed with all it starts, prints into a file, and forks the ranks."""
    os.setsid()
    with (folder / "printed.txt").open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    start_processes(_rank, (folder, module, job, num_ranks), nprocs=num_ranks, start_method="fork")


def _rank(number: int, folder: Path, module: str, job: dict[str, Any], num_ranks: int) -> None:
    """One rank of this machine; the first writes down what it answers."""
    os.environ["LOCAL_RANK"] = str(number)
    found, meeting = importlib.import_module(module), (folder / "meeting").as_uri()
    with joined(job["device"], init_method=meeting, rank=number, world_size=num_ranks):
        answer = found.run(job)
        if number == 0:
            (folder / "answer.json").write_text(json.dumps(answer), "utf-8")
        dist.barrier()


@contextmanager
def joined(device: str, **where: Any) -> Iterator[None]:
    """This process as one of a job's ranks.

    where : rank, world_size, and the store or init_method by which they meet.
    """
    try:
        with process_group(device, timeout=_MEETING, **where):
            yield
    finally:
        let_go(device)


def _kill(process: BaseProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _reason(printed: str) -> str:
    """The first rank's complaint."""
    lines = printed.splitlines()
    return "\n".join([line for line in lines if "Error" in line][:3] or lines[-10:])


@dataclass(slots=True)
class World:
    """This process among a launcher's ranks.

    store : what all of them read and write.
    ranks_per_node : of one machine.
    turn : how many jobs there were.
    """

    store: Any
    rank: int
    size: int
    ranks_per_node: int
    turn: int = 0

    def lead(self, module: str, job: dict[str, Any], num_ranks: int) -> Any:
        """Run a job on the first `num_ranks` ranks, this one among them; what it answers here."""
        assert num_ranks <= self.size, (num_ranks, self.size)
        self._put({"module": module, "job": job, "num_ranks": num_ranks})
        return self._take_part(module, job, num_ranks)

    def release(self) -> None:
        """There are no more jobs."""
        self._put({})

    def follow(self) -> None:
        """Take part in jobs until there are no more."""
        while True:
            found = json.loads(self.store.get(f"job {self.turn + 1}"))
            self.turn += 1
            if not found:
                return
            if self.rank < found["num_ranks"]:
                self._take_part(**found)

    def _put(self, job: dict[str, Any]) -> None:
        self.turn += 1
        self.store.set(f"job {self.turn}", json.dumps(job))

    def _take_part(self, module: str, job: dict[str, Any], num_ranks: int) -> Any:
        meeting = dist.PrefixStore(f"ranks of job {self.turn}", self.store)
        with joined(job["device"], store=meeting, rank=self.rank, world_size=num_ranks):
            answer = importlib.import_module(module).run(job)
            dist.barrier()
        return answer


@cache
def joined_world() -> World | None:
    """The world this process belongs to; None where nobody but the user started it."""
    job = launched_job()
    if job is None:
        return None
    enter(job)
    store, rank, size = next(dist.rendezvous("env://", timeout=_PATIENCE))
    return World(store, rank, size, job.ranks_per_node)
