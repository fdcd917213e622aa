"""One rank of a job: joins the others, runs a module's `run`, and writes down what it answers.

Started as `python -m flopcast_validation.job.rank MODULE JOB_FILE OUT_FILE` by torchrun; or forked on a CPU, from a
process that has loaded torch once, which takes each fresh interpreter seconds, more than a small job itself. torchrun
can fork, too, but out of a process that has threads by then: now and again one of eight ranks never met the others.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.multiprocessing import start_processes

from flopcast_calibration.bench.ranks import process_group
from flopcast_validation.job.machine import let_go

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for the others."""


def main(module: str, job_file: str, out: str, **where: Any) -> None:
    """Run what `job_file` describes; rank 0 writes the answer to `out`.

    where : as of `joined`.
    """
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    with joined(job["device"], **where):
        answer = importlib.import_module(module).run(job)
        if dist.get_rank() == 0:
            Path(out).write_text(json.dumps(answer), encoding="utf-8")
        dist.barrier()


@contextmanager
def joined(device: str, **where: Any) -> Iterator[None]:
    """This process as one of a job's ranks.

    where : rank, world_size, and the store or init_method by which they meet; default what torchrun says.
    """
    try:
        with process_group(device, timeout=TIMEOUT, **where):
            yield
    finally:
        let_go(device)


def forked(num_ranks: int, module: str, job_file: str, out: str) -> None:
    """Run `main(module, job_file, out)` on so many ranks of this machine; raises what the first to fail raised."""
    start_processes(_forked, (num_ranks, module, job_file, out), nprocs=num_ranks, start_method="fork")


def _forked(number: int, num_ranks: int, module: str, job_file: str, out: str) -> None:
    meeting = Path(out).with_name("meeting").as_uri()
    main(module, job_file, out, init_method=meeting, rank=number, world_size=num_ranks)


if __name__ == "__main__":
    main(*sys.argv[1:])
