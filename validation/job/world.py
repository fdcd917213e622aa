"""The ranks that torchrun or srun started us with, on one machine or several: the first leads, the others follow.

They start the verb on every rank. Rank 0 calibrates, predicts and prints; whenever it needs several ranks it puts
a job down where all can read it, and takes part as rank 0. A job of n ranks has process groups of its own, made by the
first n ranks and gone when it is over; the rest wait for the next job.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

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
