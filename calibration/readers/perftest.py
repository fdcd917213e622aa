"""perftest: ib_write_bw, ib_send_bw, ib_read_bw and their latency tests, as sends between two nodes.

Formats: linux-rdma/perftest:src/perftest_parameters.h (RESULT_FMT, RESULT_FMT_LAT). MB/sec are 2^20 bytes a second,
Gb/sec 10^9 bits; the rate of messages, printed beside them, says the same and is compared. Bandwidth tests keep many
messages in flight, so that all iterations of a size count as one long message; small sizes show how fast messages are
posted and are not read. A latency is half a round trip.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.collectives import Layout
from flopcast_calibration.readers.log import Log, Reading, Source, positive
from sim.errors import ProfileError

#: Smaller messages in flight by the hundred do not tell what one takes. [bytes]
_LEAST_BYTES = 64 * 1024
_UNITS = {"MB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
_TITLE = re.compile(r"^\s*(RDMA_Write|RDMA_Read|Send|Atomic\w*|WRITE|READ|SEND)\b(.*?)(BW|Latency|Lat)\b.*\bTest\b")
LOOKS = re.compile(r"#bytes\s+#iterations\s+(.*)")
_COLUMN = re.compile(r"(BW peak|BW average|MsgRate|t_min|t_max|t_typical|t_avg)\[([^\]]*)\]")
_ADDRESS = re.compile(r"^\s*(local|remote) address: LID (\S+)")
_GID = re.compile(r"^\s*GID: (\S+)")


def read(source: Source) -> Log:
    """Every row of every test, those of small messages and of both directions left out."""
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
        elif header := LOOKS.search(line):
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
