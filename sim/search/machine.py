"""What the machine that searches has: cores that this process may use, memory that it could be given."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> float:
    """Memory that could be given now, or all there is; infinite where the machine says neither. [bytes]"""
    try:
        said = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
        return 1024.0 * int(said[1]) if said else np.inf
    except OSError:
        try:
            return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (AttributeError, OSError, ValueError):
            return np.inf
