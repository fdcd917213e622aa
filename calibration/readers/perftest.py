"""perftest: ib_write_bw, ib_send_bw, ib_read_bw and their latency tests, as sends between two nodes.

Formats: linux-rdma/perftest:src/perftest_parameters.h (RESULT_FMT, RESULT_FMT_LAT). MB/sec are 2^20 bytes a second,
Gb/sec 10^9 bits; the rate of messages, printed beside them, says the same and is compared. Bandwidth tests keep many
messages in flight, so that all iterations of a size count as one long message; small sizes show how fast messages are
posted and are not read. A latency is half a round trip.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from flopcast_calibration.measurement import Measurement, Shape
from flopcast_calibration.readers.log import Log, Source, listed, positive
from flopcast_calibration.readers.prefixes import without_prefix
from sim.errors import ProfileError

#: Smaller messages in flight by the hundred do not tell what one takes. [bytes]
_LEAST_BYTES = 64 * 1024
_UNITS = {"MB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
_TITLE = re.compile(r"^\s*(RDMA_Write|RDMA_Read|Send|Atomic\w*|WRITE|READ|SEND)\b(.*?)(BW|Latency|Lat)\b.*\bTest\b")
_HEADER = re.compile(r"#bytes\s+#iterations\s+(.*)")
_COLUMN = re.compile(r"(BW peak|BW average|MsgRate|t_min|t_max|t_typical|t_avg)\[([^\]]*)\]")
_ADDRESS = re.compile(r"^\s*(local|remote) address: LID (\S+)")
_GID = re.compile(r"^\s*GID: (\S+)")


@dataclass(slots=True)
class _Test:
    """One test: its name, columns with units, and the two ends' addresses."""

    verb: str = ""
    both_ways: bool = False
    columns: tuple[tuple[str, str], ...] = ()
    ends: dict[str, str] | None = None


def looks_like(text: str) -> bool:
    """Whether a text is of perftest."""
    return _HEADER.search(text) is not None


def read(source: Source) -> Log:
    """Every row of every test, those of small messages and of both directions left out."""
    test = _Test()
    items: list[Measurement] = []
    left: dict[str, list[int]] = {}
    end = ""
    in_flight = False
    for number, raw in enumerate(source.text.splitlines(), start=1):
        line = without_prefix(raw)[1]
        if title := _TITLE.match(line):
            test = _Test(title[1].lower(), "bidirectional" in title[2].lower(), ends={})
        elif address := _ADDRESS.match(line):
            end = address[1]
            test.ends = {**(test.ends or {}), end: address[2] if address[2] not in ("0000", "0x00", "0") else ""}
        elif (gid := _GID.match(line)) and end:
            test.ends = {**(test.ends or {}), end: gid[1]}
        elif header := _HEADER.search(line):
            test.columns = tuple((match[1], match[2]) for match in _COLUMN.finditer(header[1]))
        elif test.columns and re.match(r"\s*\d+\s+\d+\s", line):
            where = source.at(number)
            why = _why_not(test, int(line.split()[0]))
            if why:
                left.setdefault(why, []).append(number)
            else:
                items.append(_row(where, test, line.split(), source.nodes or 2))
                in_flight |= any(name == "BW average" for name, _ in test.columns)
    notes = [f"{listed(lines)}: left out, {why}" for why, lines in left.items()]
    if not items:
        raise ProfileError(f"{source.path}: {notes[0] if notes else 'no row of perftest; was the run cut off?'}")
    if in_flight:
        notes.append("all iterations of a size, which are in flight together, count as one long send")
    return Log({}, tuple(items), tuple(notes))


def _why_not(test: _Test, nbytes: int) -> str | None:
    """Why a row says nothing of a send."""
    names = [name for name, _ in test.columns]
    ends = test.ends or {}
    if test.both_ways:
        return "both directions ran at once"
    if ends.get("local") and ends.get("local") == ends.get("remote"):
        return "both ends are the same port"
    if test.verb.startswith("atomic"):
        return "atomic operations send no message"
    if "BW average" in names:
        return (
            None
            if nbytes >= _LEAST_BYTES
            else f"messages below {_LEAST_BYTES} bytes show the rate of posting them (-a tries all sizes)"
        )
    if test.verb in ("rdma_read", "read"):
        return "the latency of a read is a round trip"
    return None


def _row(where: str, test: _Test, cells: list[str], nodes: int) -> Measurement:
    names = [name for name, _ in test.columns]
    if len(cells) < 2 + len(names):
        raise ProfileError(f"{where} has {len(cells)} of {2 + len(names)} columns; was the log cut off?")
    nbytes = int(positive(where, "#bytes", cells[0]))
    values = dict(zip(names, cells[2:], strict=False))
    units = dict(test.columns)
    shape: Shape = {"operation": "send", "num_ranks": 2, "num_nodes": min(nodes, 2), "nbytes": nbytes}
    if "BW average" not in values:
        name = next((name for name in ("t_typical", "t_avg") if name in values), None)
        if name is None or units[name] != "usec":
            raise ProfileError(
                f"{where}: no latency in usec (units {sorted(set(units.values()))}); leave -C/--report-cycles out"
            )
        return Measurement("collective", shape, positive(where, name, values[name]) * 1e-6, source=where)
    unit = _UNITS.get(units["BW average"])
    if unit is None:
        raise ProfileError(f"{where}: unknown unit {units['BW average']!r} of BW average; one of {', '.join(_UNITS)}")
    bandwidth = positive(where, "BW average", values["BW average"]) * unit
    try:
        messages = float(values.get("MsgRate", 0)) * 1e6
    except ValueError:
        raise ProfileError(f"{where}: MsgRate = {values['MsgRate']!r} is not a number") from None
    # Messages are printed in millions with six decimals: half of one a second is rounding.
    if messages and abs(messages * nbytes - bandwidth) > 0.02 * bandwidth + 0.5 * nbytes:
        raise ProfileError(
            f"{where}: {messages:.6g} messages of {nbytes} bytes a second are {messages * nbytes:.4g} bytes/s, but BW "
            f"average says {bandwidth:.4g}; is the unit {units['BW average']} right?"
        )
    stream = nbytes * int(cells[1])
    return Measurement("collective", {**shape, "nbytes": stream}, stream / bandwidth, source=where)
