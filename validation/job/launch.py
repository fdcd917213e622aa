"""Start a job under torchrun, or its launcher, and bring back what it wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sim.errors import FlopcastError
from validation.job.configs import Configuration, GptShape

#: One thread a rank; and freed memory stays with the process: otherwise each large tensor is faulted in anew, page by
#: page, in a time that depends on what else the machine does.
_SETTINGS = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


_ATTEMPTS = 3
"""A rank that dies of a signal is tried again: gloo's threads may abort where a peer has gone first."""


def launch(module: str, job: dict[str, Any], num_ranks: int, timeout_s: float = 600.0) -> Any:
    """Run `module` in `num_ranks` processes of this machine and return the JSON it writes.

    Parameters
    ----------
    module : str
        Run as `module JOB_FILE OUT_FILE` on every rank.
    job : dict
        What JOB_FILE holds.
    num_ranks : int
        torchrun picks a free port for them to meet.
    timeout_s : float
        Then the job is killed, every process of it. [s]

    Raises
    ------
    FlopcastError
        The job failed or hung; with the end of what it printed.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        code, printed, answer = _run(module, job, num_ranks, timeout_s)
        if code == 0 and answer is not None:
            return answer
        if "Signal" not in printed or attempt == _ATTEMPTS:
            break
    raise FlopcastError(f"{module} failed on {num_ranks} ranks:\n{_reason(printed)}")


def _run(module: str, job: dict[str, Any], num_ranks: int, timeout_s: float) -> tuple[int, str, Any]:
    """One try: torchrun's exit code, what was printed, and the answer, if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        ask, answer = Path(folder) / "job.json", Path(folder) / "out.json"
        ask.write_text(json.dumps(job), encoding="utf-8")
        if job.get("device", "cpu") == "cpu":
            command = [sys.executable, "-m", "validation.job.ranks", module, str(num_ranks), str(ask), str(answer)]
        else:  # CUDA wants interpreters of their own
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
            command += ["-m", module, str(ask), str(answer)]
        environment = {**os.environ, **_SETTINGS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if job.get("device", "cpu") == "cpu":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=timeout_s)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)  # torchrun and all its ranks: they are one session
                if isinstance(error, subprocess.TimeoutExpired):
                    raise FlopcastError(f"{module} on {num_ranks} ranks took longer than {timeout_s:.0f} s") from None
                raise
        found = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None
        return process.returncode, printed, found


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
    return launch("validation.job.train", job, configuration.num_ranks)
