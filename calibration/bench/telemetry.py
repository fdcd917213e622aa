"""Clocks, power, temperature and throttling of every GPU while kernels run, as the driver's own tool reports them.

One `nvidia-smi` (or nothing, where there is none) prints a line a GPU several times a second; a thread keeps them with
the time they came. Asking once a measurement, after it, would see a GPU that has gone idle already.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import threading
import time
from collections import deque
from typing import NamedTuple

from flopcast_calibration.measurement import Shape

PERIOD_MS = 100
_FIELDS = ("index", "clocks.sm", "clocks.max.sm", "power.draw", "temperature.gpu", "clocks_throttle_reasons.active")
COMMAND = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits", f"-lms={PERIOD_MS}")
#: Bits of NVML's clocksEventReasons: what held the clock down (nvml.h). Idle and settings of applications do not count.
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


class Sample(NamedTuple):
    """One line of one GPU."""

    at_s: float
    gpu: int
    sm_mhz: float
    max_sm_mhz: float
    power_w: float
    celsius: float
    reasons: int


class Telemetry:
    """What every GPU of this node does, from its making until `close`."""

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self._samples: deque[Sample] = deque(maxlen=20_000)
        self._process: subprocess.Popen[str] | None = None
        with contextlib.suppress(OSError):  # no such program: nothing is told
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
            )
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            sample = parse_line(line, time.monotonic())
            if sample is not None:
                self._samples.append(sample)

    def during(self, begin_s: float, end_s: float) -> Shape:
        """Clocks, power, temperature and reasons for low clocks of all GPUs between two times of the monotonic clock.

        Empty where no sample falls into that time. A GPU that is idle beside the one that is measured does not count.
        """
        found = [sample for sample in self._samples.copy() if begin_s <= sample.at_s <= end_s]
        busy = [sample for sample in found if sample.power_w >= 0.5 * max(one.power_w for one in found)]
        if not busy:
            return {}
        reasons = sorted({name for sample in busy for bit, name in REASONS.items() if sample.reasons & bit})
        return {
            "gpus_seen": len({sample.gpu for sample in busy}),
            "sm_mhz": statistics.median(sample.sm_mhz for sample in busy),
            "least_sm_mhz": min(sample.sm_mhz for sample in busy),
            "max_sm_mhz": max(sample.max_sm_mhz for sample in busy),
            "power_w": statistics.median(sample.power_w for sample in busy),
            "celsius": max(sample.celsius for sample in busy),
            **({"throttled": ", ".join(reasons)} if reasons else {}),
        }

    def close(self) -> None:
        """Stop the program."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def parse_line(line: str, at_s: float) -> Sample | None:
    """A line of the program; None for one that lacks a number ([N/A], a header, a line cut off)."""
    cells = [cell.strip() for cell in line.split(",")]
    try:
        *numbers, reasons = cells
        gpu, sm, most, power, celsius = (float(cell) for cell in numbers)
        return Sample(at_s, int(gpu), sm, most, power, celsius, int(reasons, 16))
    except ValueError:
        return None
