"""Start a job's ranks, or have those do it that torchrun or srun started us with, and bring back what it answers.

A launcher starts the verb on every rank, on one machine or several: the first leads, the others follow. Rank 0
calibrates, predicts and prints; whenever it needs several ranks it puts a job down where all can read it, and takes
part as rank 0. A job of n ranks has process groups of its own, made by the first n ranks and gone when it is over; the
rest wait for the next.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache, partial
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from flopcast_validation.job.configs import Configuration, GptShape
from sim.errors import FlopcastError

#: One thread a rank; and freed memory stays with the process: otherwise each large tensor is faulted in anew, page by
#: page, in a time that depends on what else the machine does.
_SETTINGS = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


ENTRY = "flopcast_validation.job.rank"
"""Module that torchrun runs on every rank."""
_ATTEMPTS = 3
"""A rank that dies of a signal is tried again: gloo's threads may abort where a peer has gone first."""


def launch(module: str, job: dict[str, Any], num_ranks: int, timeout_s: float = 600.0) -> Any:
    """Have `module.run(job)` run by `num_ranks` processes together, and return what the first of them answers.

    Under torchrun those are its ranks, this one the first; otherwise they are started on this machine. `job` is plain
    data, as JSON knows it; its `device` says what a rank computes with. After `timeout_s` [s] every process of the job
    is killed. A job that failed or hung is a FlopcastError with the end of what it printed.
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
    with tempfile.TemporaryDirectory() as folder:
        ask, answer, printed = (Path(folder) / name for name in ("job.json", "out.json", "printed.txt"))
        ask.write_text(json.dumps(job), encoding="utf-8")
        words = (num_ranks, module, str(ask), str(answer))
        # CUDA wants interpreters of their own.
        target = _ranks if job["device"] == "cpu" else partial(_torchrun, ENTRY)
        process = _loaded().Process(target=_in_a_session, args=(printed, target, words))
        process.start()
        try:
            process.join(timeout_s)
            if process.exitcode is None:
                raise FlopcastError(f"{module} on {num_ranks} ranks took longer than {timeout_s:.0f} s")
        finally:
            if process.exitcode is None:
                _kill(process)
        found = [json.loads(answer.read_text(encoding="utf-8"))] if answer.exists() else []
        return process.exitcode, printed.read_text(encoding="utf-8", errors="replace"), found


@cache
def _loaded() -> ForkServerContext:
    """Where jobs are forked from: a process that has loaded torch once, which takes longer than a small job itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"flopcast_validation.job.{name}" for name in ("rank", "bench", "train")])
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


def _in_a_session(printed: Path, target: Callable[..., None], words: tuple[Any, ...]) -> None:
    """What a job's first process does: it can be killed with all it starts, and prints into a file."""
    os.setsid()
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    target(*words)


def _ranks(num_ranks: int, *words: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    importlib.import_module("flopcast_validation.job.rank").forked(num_ranks, *words)


def _torchrun(entry: str, num_ranks: int, *words: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    os.execv(sys.executable, [*command, "-m", entry, *words])


def _kill(process: BaseProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _reason(printed: str) -> str:
    """The first rank's complaint: what torchrun prints after it only says that there was one."""
    lines = printed.splitlines()
    wrong = [line for line in lines if "Error" in line and "ChildFailedError" not in line]
    return "\n".join(wrong[:3] or lines[-10:])


def run_configuration(
    shape: GptShape, configuration: Configuration, device: str, steps: int, patience_s: float = 0.0
) -> dict[str, Any]:
    """Losses, seconds of every step, and the last step's trace of one configuration."""
    job = {"shape": asdict(shape), "configuration": asdict(configuration), "device": device, "steps": steps}
    job["patience_s"] = patience_s  # for other programs on the machine
    return launch("flopcast_validation.job.train", job, configuration.num_ranks)


#: How long ranks wait for the next job while rank 0 is busy.
_PATIENCE = timedelta(hours=12)


@dataclass(slots=True)
class World:
    """This process among the launcher's ranks.

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
        import torch.distributed as dist

        from flopcast_validation.job.rank import joined

        meeting = dist.PrefixStore(f"ranks of job {self.turn}", self.store)
        with joined(job["device"], store=meeting, rank=self.rank, world_size=num_ranks):
            answer = importlib.import_module(module).run(job)
            dist.barrier()
        return answer


@cache
def joined_world() -> World | None:
    """The world this process belongs to; None where nobody but the user started it."""
    from flopcast_calibration.bench.ranks import enter, launched_job

    job = launched_job()
    if job is None:
        return None
    import torch.distributed as dist

    enter(job)
    store, rank, size = next(dist.rendezvous("env://", timeout=_PATIENCE))
    return World(store, rank, size, job.ranks_per_node)
