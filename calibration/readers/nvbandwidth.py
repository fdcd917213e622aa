"""nvbandwidth: copies between host and GPU, and between GPUs, as text matrices.

Format: NVIDIA/nvbandwidth:output.cpp. Bandwidths are in GB/s of one direction. Read are copies by the
copy engine, one at a time: host to GPU, GPU to host, and GPU to GPU, the last as sends between two ranks.
"""

from __future__ import annotations

import re
from statistics import median

from flopcast_calibration.measurement import Measurement, Shape
from flopcast_calibration.readers.log import Log, Reading, Source, positive
from sim.errors import ProfileError

#: What is copied unless --bufferSize says otherwise; the program does not print it. [bytes]
_BUFFER = 512 * 2**20
_SEND: Shape = {"operation": "send", "num_ranks": 2, "num_nodes": 1}
_TESTS: dict[str, tuple[str, Shape]] = {
    "host_to_device_memcpy_ce": ("copy", {"direction": "to_device"}),
    "device_to_host_memcpy_ce": ("copy", {"direction": "to_host"}),
    "device_to_device_memcpy_read_ce": ("collective", _SEND),
    "device_to_device_memcpy_write_ce": ("collective", _SEND),
}
_RUNNING = re.compile(r"^\s*Running (?:benchmark )?(\w+?)\.\s*$")
_UNIT = re.compile(r"\bbandwidth \(([^)]*)\)|\((GB/s|MB/s|us|ns)\)")
_DEVICE = re.compile(r"^\s*(?:Process.*: )?[Dd]evice \d+: (.+?)(?: \([0-9a-fA-F:.]+\))?\s*$")
_BUFFER_SIZE = re.compile(r"(?:--bufferSize|-b)[ =](\d+)\b|[Bb]uffer ?[Ss]ize\W+(\d+)")
LOOKS = re.compile(r"nvbandwidth Version|^\s*Running (?:benchmark )?\w+_(?:ce|sm)\.\s*$", re.MULTILINE)
_Tests = dict[str, tuple[str, list[tuple[str, list[str]]]]]
"""Test -> where it stands, and its rows of cells, each with its place."""


def read(source: Source) -> Log:
    """One measurement a test: the median over devices, or over pairs of them."""
    tests, device, size = _matrices(source)
    reading, nbytes = Reading(source), size or _BUFFER
    if size is None:
        reading.notes.append("the size of the copies is not printed; the program's own 512 MiB are assumed")
    left = []
    for name, (place, matrix) in tests.items():
        cells = [(where, cell) for where, row in matrix for cell in row if cell not in ("N/A", "-", "0.00", "0")]
        if name not in _TESTS or not cells:
            left.append(f"{name} (no number)" if name in _TESTS else name)
            continue
        kind, shape = _TESTS[name]
        time_s = nbytes / (median(positive(where, name, cell) for where, cell in cells) * 1e9)
        reading.items.append(Measurement(kind, {"nbytes": nbytes, **shape}, time_s, repeats=len(cells), source=place))
    if left:
        reading.notes.append(
            f"tests that are left out (both directions at once, several at once, by kernels): {', '.join(left)}"
        )
    has = f"it has {', '.join(left)}" if left else "was the run cut off?"
    return reading.log(f"no test that is read ({', '.join(_TESTS)}); {has}", device=device)


def _matrices(source: Source) -> tuple[_Tests, str | None, int | None]:
    """The tests, the device, and the size of the copies where the command line says it. [bytes]"""
    tests, devices, nbytes = _Tests(), set(), None
    name, width = "", 0
    for number, line in enumerate(source.text.splitlines(), start=1):
        cells = line.split()
        if match := _RUNNING.match(line):
            name, width = match[1], 0
            tests[name] = (source.at(number), [])
        elif match := _DEVICE.match(line):
            devices.add(match[1].strip())
        elif match := _BUFFER_SIZE.search(line):
            # Older releases take bytes, newer ones MiB: nobody copies 500 bytes, nor 10^6 MiB.
            size = int(match[1] or match[2])
            nbytes = size if size >= 2**16 else size * 2**20
        elif name and (match := _UNIT.search(line)):
            name = name if (match[1] or match[2]) == "GB/s" else ""  # latencies
        elif name and cells and all(cell.isdigit() for cell in cells):
            width = len(cells)
        elif name and width and cells and cells[0].isdigit():
            if len(cells) != width + 1:
                raise ProfileError(f"{source.at(number)} has {len(cells) - 1} of {width} columns; was the log cut off?")
            tests[name][1].append((source.at(number), cells[1:]))
        elif line.startswith("SUM "):
            name = ""
    if len(devices) > 1:
        raise ProfileError(
            f"{source.path}: several kinds of GPU ({', '.join(sorted(devices))}); a profile describes one"
        )
    return tests, next(iter(devices), None), nbytes
