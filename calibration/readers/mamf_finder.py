"""mamf-finder: matrix multiplies of many shapes, each with the rate it reached.

Formats: stas00/ml-engineering:compute/accelerator/benchmarks/mamf-finder.py. A progress row of version 1 has one rate
(TFLOPS @ MxNxK), of version 2 three (mean, median, max), since version 3 the same in columns under a header. The last
lines name the best shapes. Rates are in 10^12 FLOP/s; a multiply is 2 M N K FLOP.
"""

from __future__ import annotations

import re

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.dtypes import read_dtype
from flopcast_calibration.readers.log import Log, Source, positive
from sim.errors import ProfileError

_SHAPE = r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
_NUMBER = r"[-+\w.]+"
_ROWS = (
    re.compile(rf"^\s*\d+ \|\s*(?P<rate>{_NUMBER}) ?TFLOPS @ {_SHAPE}\b"),
    re.compile(rf"^\s*\d+ \|\s*{_NUMBER}\(mean\)\s*(?P<rate>{_NUMBER})\(median\)\s*{_NUMBER}\(max\)\s*@ {_SHAPE}\b"),
)
_COLUMNS = re.compile(r"^\s*#\s+MxNxK\s+mean\s+median\s+max\b")
_IN_COLUMNS = re.compile(rf"^\s*\d+\s+{_SHAPE}\s+{_NUMBER}\s+(?P<rate>{_NUMBER})\s+{_NUMBER}\s+{_NUMBER}(?:\s|$)")
_BEST = (
    re.compile(rf"^(?:The best outcome was|Best result is) (?P<rate>{_NUMBER}) ?TFLOPS @ {_SHAPE}\b"),
    re.compile(rf"^(?:median:|MSMF[^:]*:)\s+(?P<rate>{_NUMBER}) TFLOPS @ {_SHAPE}\b"),
)
_DTYPE = re.compile(r"^\*\* Dtype:\s*(\S+)|--dtype[ =](\w+)")
_DEVICE = re.compile(r"_\w*DeviceProperties\(name='([^']*)'")
_TRIED = re.compile(r"^Tried +(\d+) +shapes\b|\(tried (\d+) shapes\)", re.MULTILINE)
_LOOKS = re.compile(r"(?:TFLOPS|\(max\)) *@ \d+x\d+x\d+|MxNxK\s+mean\s+median")


def looks_like(text: str) -> bool:
    """Whether a text is of mamf-finder."""
    return _LOOKS.search(text) is not None


def read(source: Source) -> Log:
    """Every shape that was tried; where only the best are named, those."""
    rows: list[tuple[int, re.Match[str]]] = []
    best: list[tuple[int, re.Match[str]]] = []
    dtype = device = None
    in_columns = False
    for number, line in enumerate(source.text.splitlines(), start=1):
        named = _DTYPE.search(line)
        if named:
            dtype = dtype or read_dtype(source.at(number), named[1] or named[2])
        properties = _DEVICE.search(line)
        device = device or (properties[1] if properties else None)
        if re.match(r"^\s*(#|MxNxK)\s", line):
            in_columns = _COLUMNS.match(line) is not None  # other phases have other columns
        row = next(filter(None, (pattern.match(line) for pattern in _ROWS)), None)
        row = row or (_IN_COLUMNS.match(line) if in_columns else None)
        last = next(filter(None, (pattern.match(line) for pattern in _BEST)), None)
        rows += [(number, row)] if row else []
        best += [(number, last)] if last else []
    if not rows and not best:
        raise ProfileError(f"{source.path} holds no shape that mamf-finder tried")
    notes = []
    if dtype is None:
        dtype = "bfloat16"
        notes.append("the number format is not stated; bfloat16, the program's own choice, is assumed")
    tried = max((int(match[1] or match[2]) for match in _TRIED.finditer(source.text)), default=0)
    shapes = {match["m"] + "x" + match["n"] + "x" + match["k"] for _, match in rows}
    if len(shapes) < tried:
        notes.append(
            f"{max(len(shapes), 1)} of {tried} shapes are here; the file of --output_file has all that were tried"
        )
    items = []
    for number, match in rows or best:
        where = source.at(number)
        m, n, k = (int(positive(where, name, match[name])) for name in "mnk")
        time_s = 2 * m * n * k / (positive(where, "TFLOPS", match["rate"]) * 1e12)
        items.append(Measurement("gemm", {"m": m, "n": n, "k": k, "dtype": dtype}, time_s, source=where))
    return Log({"device": device} if device else {}, tuple(items), tuple(notes))
