"""Start the ranks of a job as torchrun does, from one process that has loaded everything once.

torchrun starts every rank as a fresh interpreter; loading torch takes each of them seconds of processor time, more than
a small job itself. Its own launcher also takes a function and forks: same agent, same rendezvous, same environment.
"""

from __future__ import annotations

import importlib
import sys
import uuid

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def main(module: str, num_ranks: str, job_file: str, out: str) -> None:
    """Run `module.main(job_file, out)` on so many ranks of this machine, forked."""
    entry = importlib.import_module(module).main
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(num_ranks),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, entry)(job_file, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
