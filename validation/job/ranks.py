"""Start a job's ranks on this machine's CPU, from one process that has loaded everything once.

torchrun starts every rank as a fresh interpreter; loading torch takes each of them seconds of processor time, more than
a small job itself. Here they are forked. Its launcher can fork, too, but out of a process that has threads by then: now
and again one of eight ranks never met the others.
"""

from __future__ import annotations

from pathlib import Path

from torch.multiprocessing import start_processes

from flopcast_validation.job import rank


def main(num_ranks: int, module: str, job_file: str, out: str) -> None:
    """Run `rank.main(module, job_file, out)` on so many ranks of this machine; raises what the first to fail raised."""
    start_processes(_rank, (num_ranks, module, job_file, out), nprocs=num_ranks, start_method="fork")


def _rank(number: int, num_ranks: int, module: str, job_file: str, out: str) -> None:
    meeting = Path(out).with_name("meeting").as_uri()
    rank.main(module, job_file, out, init_method=meeting, rank=number, world_size=num_ranks)
