"""Logs of programs that print one table: mamf-finder, nvbandwidth, and perftest (ib_write_bw and kin)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import median

from flopcast_calibration.measurement import Measurement, Shape
from flopcast_calibration.readers.collectives import Layout
from flopcast_calibration.readers.log import Log, Reading, Source, positive
from flopcast_calibration.readers.names import read_dtype
from sim.errors import ProfileError

_SHAPE = r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
_NUMBER = r"[-+\w.]+"
_RATE = rf"(?:{_NUMBER}\(mean\)\s*)?(?P<rate>{_NUMBER})(?: ?TFLOPS|\(median\)\s*{_NUMBER}\(max\)\s*)"
_MAMF_ROW = re.compile(rf"^\s*\d+ \|\s*{_RATE} ?@ {_SHAPE}\b")
_MAMF_COLUMNS = re.compile(r"^\s*#\s+MxNxK\s+mean\s+median\s+max\b")
_IN_MAMF_COLUMNS = re.compile(rf"^\s*\d+\s+{_SHAPE}\s+{_NUMBER}\s+(?P<rate>{_NUMBER})\s+{_NUMBER}\s+{_NUMBER}(?:\s|$)")
_BEST = re.compile(
    rf"^(?:The best outcome was|Best result is|median:\s|MSMF[^:]*:\s)\s*(?P<rate>{_NUMBER}) ?TFLOPS @ {_SHAPE}\b"
)
_DTYPE = re.compile(r"^\*\* Dtype:\s*(\S+)|--dtype[ =](\w+)")
_MAMF_DEVICE = re.compile(r"_\w*DeviceProperties\(name='([^']*)'")
_TRIED = re.compile(r"^Tried +(\d+) +shapes\b|\(tried (\d+) shapes\)", re.MULTILINE)
MAMF_FINDER = re.compile(r"(?:TFLOPS|\(max\)) *@ \d+x\d+x\d+|MxNxK\s+mean\s+median")


def read_mamf_finder(source: Source) -> Log:
    """Matrix multiplies of every shape that mamf-finder tried; where only the best are named, those.

    Formats: stas00/ml-engineering:compute/accelerator/benchmarks/mamf-finder.py. A progress row of version 1 has one
    rate (TFLOPS @ MxNxK), of version 2 three (mean, median, max), since version 3 the same in columns under a header.
    The last lines name the best shapes. Rates are in 10^12 FLOP/s; a multiply is 2 M N K FLOP.
    """
    reading, rows, best = Reading(source), list[tuple[int, re.Match[str]]](), list[tuple[int, re.Match[str]]]()
    dtype, device, in_columns = "", _MAMF_DEVICE.search(source.text), False
    for number, line in enumerate(source.text.splitlines(), start=1):
        if (named := _DTYPE.search(line)) and not dtype:
            dtype = read_dtype(source.at(number), named[1] or named[2])
        if re.match(r"^\s*(#|MxNxK)\s", line):
            in_columns = _MAMF_COLUMNS.match(line) is not None  # other phases have other columns
        if row := _MAMF_ROW.match(line) or (_IN_MAMF_COLUMNS.match(line) if in_columns else None):
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
_NV_UNIT = re.compile(r"\bbandwidth \(([^)]*)\)|\((GB/s|MB/s|us|ns)\)")
_NV_DEVICE = re.compile(r"^\s*(?:Process.*: )?[Dd]evice \d+: (.+?)(?: \([0-9a-fA-F:.]+\))?\s*$")
_BUFFER_SIZE = re.compile(r"(?:--bufferSize|-b)[ =](\d+)\b|[Bb]uffer ?[Ss]ize\W+(\d+)")
NVBANDWIDTH = re.compile(r"nvbandwidth Version|^\s*Running (?:benchmark )?\w+_(?:ce|sm)\.\s*$", re.MULTILINE)
_Tests = dict[str, tuple[str, list[tuple[str, list[str]]]]]
"""Test -> where it stands, and its rows of cells, each with its place."""


def read_nvbandwidth(source: Source) -> Log:
    """nvbandwidth's matrices, one measurement a test: the median over devices, or over pairs of them.

    Format: NVIDIA/nvbandwidth:output.cpp. Bandwidths are in GB/s of one direction. Read are copies by the copy engine,
    one at a time: host to GPU, GPU to host, and GPU to GPU, the last as sends between two ranks.
    """
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
        elif match := _NV_DEVICE.match(line):
            devices.add(match[1].strip())
        elif match := _BUFFER_SIZE.search(line):
            # Older releases take bytes, newer ones MiB: nobody copies 500 bytes, nor 10^6 MiB.
            size = int(match[1] or match[2])
            nbytes = size if size >= 2**16 else size * 2**20
        elif name and (match := _NV_UNIT.search(line)):
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


#: Smaller messages in flight by the hundred do not tell what one takes. [bytes]
_LEAST_BYTES = 64 * 1024
_UNITS = {"MB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
_TITLE = re.compile(r"^\s*(RDMA_Write|RDMA_Read|Send|Atomic\w*|WRITE|READ|SEND)\b(.*?)(BW|Latency|Lat)\b.*\bTest\b")
PERFTEST = re.compile(r"#bytes\s+#iterations\s+(.*)")
_COLUMN = re.compile(r"(BW peak|BW average|MsgRate|t_min|t_max|t_typical|t_avg)\[([^\]]*)\]")
_ADDRESS = re.compile(r"^\s*(local|remote) address: LID (\S+)")
_GID = re.compile(r"^\s*GID: (\S+)")


def read_perftest(source: Source) -> Log:
    """Sends between two nodes, as ib_write_bw, ib_send_bw, ib_read_bw and their latency tests print them.

    Formats: linux-rdma/perftest:src/perftest_parameters.h (RESULT_FMT, RESULT_FMT_LAT). MB/sec are 2^20 bytes a second,
    Gb/sec 10^9 bits; the rate of messages, printed beside them, says the same and is compared. Bandwidth tests keep
    many messages in flight, so that all iterations of a size count as one long message; small sizes show how fast
    messages are posted and are not read, nor is what ran in both directions. A latency is half a round trip.
    """
    reading, units, ends = Reading(source), dict[str, str](), dict[str, str]()
    verb, both_ways, end, in_flight = "", False, "", False
    for number, line in reading.lines():
        if title := _TITLE.match(line):
            verb, both_ways, ends = title[1].lower(), "bidirectional" in title[2].lower(), {}
        elif address := _ADDRESS.match(line):
            end = address[1]
            ends[end] = address[2] if address[2] not in ("0000", "0x00", "0") else ""
        elif (gid := _GID.match(line)) and end:
            ends[end] = gid[1]
        elif header := PERFTEST.search(line):
            units = {match[1]: match[2] for match in _COLUMN.finditer(header[1])}
        elif units and re.match(r"\s*\d+\s+\d+\s", line):
            cells, alone = line.split(), not ends.get("local") or ends.get("local") != ends.get("remote")
            if both_ways or not alone:
                reading.leave("both directions ran at once" if both_ways else "both ends are the same port", number)
            elif why := _why_not(verb, "BW average" in units, int(cells[0])):
                reading.leave(why, number)
            else:
                reading.items.append(_row(source.at(number), units, cells, source.nodes or 2))
                in_flight |= "BW average" in units
    if in_flight:
        reading.notes.append("all iterations of a size, which are in flight together, count as one long send")
    return reading.log("no row of perftest; was the run cut off?")


def _why_not(verb: str, of_bandwidth: bool, nbytes: int) -> str | None:
    """Why a row says nothing of a send."""
    if verb.startswith("atomic"):
        return "atomic operations send no message"
    if of_bandwidth and nbytes < _LEAST_BYTES:
        return f"messages below {_LEAST_BYTES} bytes show the rate of posting them (-a tries all sizes)"
    return None if of_bandwidth or verb not in ("rdma_read", "read") else "the latency of a read is a round trip"


def _row(where: str, units: Mapping[str, str], cells: list[str], nodes: int) -> Measurement:
    if len(cells) < 2 + len(units):
        raise ProfileError(f"{where} has {len(cells)} of {2 + len(units)} columns; was the log cut off?")
    nbytes, values = int(positive(where, "#bytes", cells[0])), dict(zip(units, cells[2:], strict=False))
    seconds = _latency(where, units, values)
    if seconds is None:
        bandwidth = _bandwidth(where, units["BW average"], values, nbytes)
        nbytes *= int(cells[1])
        seconds = nbytes / bandwidth
    return Measurement("collective", Layout(2, min(nodes, 2)).shape("send", nbytes), seconds, source=where)


def _latency(where: str, units: Mapping[str, str], values: Mapping[str, str]) -> float | None:
    """The latency of a test of latencies. [s]"""
    if "BW average" in values:
        return None
    name = next((name for name in ("t_typical", "t_avg") if name in values), None)
    if name is None or units[name] != "usec":
        raise ProfileError(
            f"{where}: no latency in usec (units {sorted(set(units.values()))}); leave -C/--report-cycles out"
        )
    return positive(where, name, values[name]) * 1e-6


def _bandwidth(where: str, unit: str, values: Mapping[str, str], nbytes: int) -> float:
    """The average bandwidth, which the rate of messages has to agree with. [bytes/s]"""
    if unit not in _UNITS:
        raise ProfileError(f"{where}: unknown unit {unit!r} of BW average; one of {', '.join(_UNITS)}")
    bandwidth = positive(where, "BW average", values["BW average"]) * _UNITS[unit]
    try:
        messages = float(values.get("MsgRate", 0)) * 1e6
    except ValueError:
        raise ProfileError(f"{where}: MsgRate = {values['MsgRate']!r} is not a number") from None
    # Messages are printed in millions with six decimals: half of one a second is rounding.
    if messages and abs(messages * nbytes - bandwidth) > 0.02 * bandwidth + 0.5 * nbytes:
        raise ProfileError(
            f"{where}: {messages:.6g} messages of {nbytes} bytes a second are {messages * nbytes:.4g} bytes/s, but BW "
            f"average says {bandwidth:.4g}; is the unit {unit} right?"
        )
    return bandwidth
