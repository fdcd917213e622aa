"""PARAM comms.py: collectives timed through torch.distributed.

Format: facebookresearch/param:train/comms/pt/comms.py (printPreamble, reportBenchTimeColl): a header COMMS-RES with the
columns, and a row COMMS-RES-<collective>-<dtype> for each size. Latencies are in µs, bandwidths in GB/s; a size is the
whole buffer. Ranks are in its first lines (groupSize, host).
"""

from __future__ import annotations

import re

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.collectives import Layout, collective, measured
from flopcast_calibration.readers.log import Log, Reading, Source
from sim.errors import ProfileError

LOOKS = re.compile("COMMS-RES")
_ROW = re.compile(r"COMMS-RES-(?P<what>\S+)\s+(?P<numbers>.*)")
_HEADER = re.compile(r"COMMS-RES\s+size \(B\)\s+(?P<columns>.*)")
_HOST = re.compile(r"\[Rank\s+(\d+)\] host (\S+?),|Running on host: (\S+) g-rank: (\d+)")
_GROUPS = re.compile(r"\bnum_pg (\d+), groupSize (\d+)")
_WORLD = re.compile(r"\bworld_size:? (\d+)")


def read(source: Source) -> Log:
    """Every row of every table."""
    reading, columns, hosts = Reading(source), list[str](), dict[int, str]()
    groups, size = 1, source.ranks
    for number, line in reading.lines():
        if host := _HOST.search(line):
            hosts[int(host[1] or host[4])] = host[2] or host[3]
        if match := _GROUPS.search(line):
            groups, size = int(match[1]), source.ranks or int(match[2])
        elif match := _WORLD.search(line):
            size = size or int(match[1])
        if match := _HEADER.search(line):
            columns = ["size", *match["columns"].split()]
        elif match := _ROW.search(line):
            if not columns:
                raise ProfileError(
                    f"{source.at(number)} comes before the header (COMMS-RES size (B) …); was the log cut off?"
                )
            if why := _why_not(match["what"], columns):
                reading.leave(why, number)
            else:
                reading.items += _row(source.at(number), match, columns, _layout(reading, hosts, groups, size))
    return reading.log("no row of PARAM comms (COMMS-RES-all_reduce …)", hosts=len(set(hosts.values())))


def _why_not(what: str, columns: list[str]) -> str | None:
    """Why a row says nothing a profile has a place for."""
    if what.startswith("QUANT-"):
        return "quantised collectives are no collectives of one format"
    if "nElementsPairPerRank" in columns:
        return "two collectives ran at once (--pair)"
    if any(name.startswith("pingLatency") for name in columns):
        return "point-to-point tests time other patterns than sends"
    try:
        collective(what.rpartition("-")[0] or what)
    except ProfileError as error:
        return str(error)
    return None


def _row(where: str, match: re.Match[str], columns: list[str], layout: Layout) -> list[Measurement]:
    cells = match["numbers"].split()
    if len(cells) < len([name for name in columns if not name.startswith(("Total", "Comp", "TFlops"))]):
        raise ProfileError(f"{where} has {len(cells)} of {len(columns)} columns; was the log cut off?")
    row, operation = dict(zip(columns, cells, strict=False)), collective(match["what"].rpartition("-")[0])
    try:
        return measured(where, operation, layout, int(row["size"]), [row["Latency(us):p50"]], row["BusBW(GB/s)"])
    except (KeyError, ValueError) as error:
        raise ProfileError(f"{where}: not a row of PARAM comms: {error}") from None


def _layout(reading: Reading, hosts: dict[int, str], groups: int, num_ranks: int | None) -> Layout:
    """Ranks of a group as printed, and the nodes its ranks are on."""
    path, nodes = reading.source.path, reading.source.nodes
    if num_ranks is None:
        raise ProfileError(f"{path} does not say how many ranks there were; give their number (--ranks 8)")
    if num_ranks < 2:
        raise ProfileError(f"{path}: one rank communicates with nobody; start several (torchrun, mpirun)")
    if nodes is None and len(hosts) >= num_ranks:
        nodes = len({hosts.get(rank) for rank in range(num_ranks)})
    if nodes is None:
        reading.notes.append(f"hosts are not listed; {num_ranks} ranks on one node are assumed (--nodes)")
    return Layout(num_ranks, min(nodes or 1, num_ranks), groups)
