"""PARAM comms.py: collectives timed through torch.distributed.

Format: facebookresearch/param:train/comms/pt/comms.py (printPreamble, reportBenchTimeColl): a header COMMS-RES with the
columns, and a row COMMS-RES-<collective>-<dtype> for each size. Latencies are in µs, bandwidths in GB/s; a size is the
whole buffer. Ranks are in its first lines (groupSize, host).
"""

from __future__ import annotations

import re

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.collective_names import Layout, collective, measured
from flopcast_calibration.readers.log import Log, Source, listed
from flopcast_calibration.readers.prefixes import without_prefix
from sim.errors import ProfileError

_ROW = re.compile(r"COMMS-RES-(?P<what>\S+)\s+(?P<numbers>.*)")
_HEADER = re.compile(r"COMMS-RES\s+size \(B\)\s+(?P<columns>.*)")
_HOST = re.compile(r"\[Rank\s+(\d+)\] host (\S+?),|Running on host: (\S+) g-rank: (\d+)")
_GROUPS = re.compile(r"\bnum_pg (\d+), groupSize (\d+)")
_WORLD = re.compile(r"\bworld_size:? (\d+)")


def looks_like(text: str) -> bool:
    """Whether a text is of PARAM comms."""
    return "COMMS-RES" in text


def read(source: Source) -> Log:
    """Every row of every table."""
    notes: list[str] = []
    items: list[Measurement] = []
    left: dict[str, list[int]] = {}
    columns: list[str] | None = None
    hosts: dict[int, str] = {}
    groups: tuple[int, int] | None = None
    world = None
    for number, raw in enumerate(source.text.splitlines(), start=1):
        line = without_prefix(raw)[1]
        if host := _HOST.search(line):
            hosts[int(host[1] or host[4])] = host[2] or host[3]
        if match := _GROUPS.search(line):
            groups = int(match[1]), int(match[2])
        if match := _WORLD.search(line):
            world = int(match[1])
        if match := _HEADER.search(line):
            columns = ["size", *match["columns"].split()]
        elif match := _ROW.search(line):
            where = source.at(number)
            if columns is None:
                raise ProfileError(f"{where} comes before the header (COMMS-RES size (B) …); was the log cut off?")
            why = _why_not(match["what"], columns)
            if why:
                left.setdefault(why, []).append(number)
                continue
            layout = _layout(source, hosts, groups, world, notes)
            items += _row(where, match, columns, layout)
    for why, lines in left.items():
        notes.append(f"{listed(lines)}: left out, {why}")
    if not items:
        why = notes[-1] if left else "no row of PARAM comms (COMMS-RES-all_reduce …)"
        raise ProfileError(f"{source.path}: {why}")
    return Log({"hosts": len(set(hosts.values()))} if hosts else {}, tuple(items), tuple(dict.fromkeys(notes)))


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
    operation = collective(match["what"].rpartition("-")[0])
    cells = match["numbers"].split()
    if len(cells) < len([name for name in columns if not name.startswith(("Total", "Comp", "TFlops"))]):
        raise ProfileError(f"{where} has {len(cells)} of {len(columns)} columns; was the log cut off?")
    row = dict(zip(columns, cells, strict=False))
    try:
        time, busbw = row["Latency(us):p50"], row["BusBW(GB/s)"]
        return measured(where, operation, layout, int(row["size"]), [time], busbw)
    except (KeyError, ValueError) as error:
        raise ProfileError(f"{where}: not a row of PARAM comms: {error}") from None


def _layout(
    source: Source, hosts: dict[int, str], groups: tuple[int, int] | None, world: int | None, notes: list[str]
) -> Layout:
    """Ranks of a group as printed, and the nodes its ranks are on."""
    num_groups, size = groups or (1, world)
    num_ranks = source.ranks or size
    if num_ranks is None:
        raise ProfileError(f"{source.path} does not say how many ranks there were; give their number (--ranks 8)")
    if num_ranks < 2:
        raise ProfileError(f"{source.path}: one rank communicates with nobody; start several (torchrun, mpirun)")
    nodes = source.nodes
    if nodes is None and len(hosts) >= num_ranks:
        nodes = len({hosts.get(rank) for rank in range(num_ranks)})
    if nodes is None:
        notes.append(f"hosts are not listed; {num_ranks} ranks on one node are assumed (--nodes)")
    return Layout(num_ranks, min(nodes or 1, num_ranks), num_groups)
