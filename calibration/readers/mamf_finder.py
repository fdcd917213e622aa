"""mamf-finder: matrix multiplies of many shapes, each with the rate it reached.

Formats: stas00/ml-engineering:compute/accelerator/benchmarks/mamf-finder.py. A progress row of version 1 has one rate
(TFLOPS @ MxNxK), of version 2 three (mean, median, max), since version 3 the same in columns under a header. The last
lines name the best shapes. Rates are in 10^12 FLOP/s; a multiply is 2 M N K FLOP.
"""

from __future__ import annotations

import re

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.log import Log, Reading, Source, positive
from flopcast_calibration.readers.names import read_dtype

_SHAPE = r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
_NUMBER = r"[-+\w.]+"
_RATE = rf"(?:{_NUMBER}\(mean\)\s*)?(?P<rate>{_NUMBER})(?: ?TFLOPS|\(median\)\s*{_NUMBER}\(max\)\s*)"
_ROW = re.compile(rf"^\s*\d+ \|\s*{_RATE} ?@ {_SHAPE}\b")
_COLUMNS = re.compile(r"^\s*#\s+MxNxK\s+mean\s+median\s+max\b")
_IN_COLUMNS = re.compile(rf"^\s*\d+\s+{_SHAPE}\s+{_NUMBER}\s+(?P<rate>{_NUMBER})\s+{_NUMBER}\s+{_NUMBER}(?:\s|$)")
_BEST = re.compile(
    rf"^(?:The best outcome was|Best result is|median:\s|MSMF[^:]*:\s)\s*(?P<rate>{_NUMBER}) ?TFLOPS @ {_SHAPE}\b"
)
_DTYPE = re.compile(r"^\*\* Dtype:\s*(\S+)|--dtype[ =](\w+)")
_DEVICE = re.compile(r"_\w*DeviceProperties\(name='([^']*)'")
_TRIED = re.compile(r"^Tried +(\d+) +shapes\b|\(tried (\d+) shapes\)", re.MULTILINE)
LOOKS = re.compile(r"(?:TFLOPS|\(max\)) *@ \d+x\d+x\d+|MxNxK\s+mean\s+median")


def read(source: Source) -> Log:
    """Every shape that was tried; where only the best are named, those."""
    reading, rows, best = Reading(source), list[tuple[int, re.Match[str]]](), list[tuple[int, re.Match[str]]]()
    dtype, device, in_columns = "", _DEVICE.search(source.text), False
    for number, line in enumerate(source.text.splitlines(), start=1):
        if (named := _DTYPE.search(line)) and not dtype:
            dtype = read_dtype(source.at(number), named[1] or named[2])
        if re.match(r"^\s*(#|MxNxK)\s", line):
            in_columns = _COLUMNS.match(line) is not None  # other phases have other columns
        if row := _ROW.match(line) or (_IN_COLUMNS.match(line) if in_columns else None):
            rows.append((number, row))
        elif last := _BEST.match(line):
            best.append((number, last))
    if not dtype:
        dtype = "bfloat16"
        reading.notes.append("the number format is not stated; bfloat16, the program's own choice, is assumed")
    tried = max((int(match[1] or match[2]) for match in _TRIED.finditer(source.text)), default=0)
    shapes = {match.group("m", "n", "k") for _, match in rows}
    if len(shapes) < tried:
        reading.notes.append(
            f"{max(len(shapes), 1)} of {tried} shapes are here; the file of --output_file has all that were tried"
        )
    for number, match in rows or best:
        where = source.at(number)
        m, n, k = (int(positive(where, name, match[name])) for name in "mnk")
        time_s = 2 * m * n * k / (positive(where, "TFLOPS", match["rate"]) * 1e12)
        reading.items.append(Measurement("gemm", {"m": m, "n": n, "k": k, "dtype": dtype}, time_s, source=where))
    return reading.log("no shape that mamf-finder tried", device=device[1] if device else "")
