"""The ranks that an nccl-tests log or file lists: how many, on which hosts, in which groups, on which GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flopcast_calibration.readers.collective_names import Layout
from flopcast_calibration.readers.log import Source
from sim.errors import ProfileError

#: Of nccl-tests (with Group since 2.13, bus id or bus number), rccl-tests, and those before MPI had a Pid there.
_RANK = re.compile(
    r"#\s*Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?(?:Pid\s+(?P<pid>\d+)\s+)?on\s+(?P<host>\S+)\s+"
    r"device\s+(?P<index>\d+)\s*(?:\[(?P<bus>[^\]]*)\])?\s*(?P<name>.*)"
)


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank: its number in the whole job, its group, and the GPU it uses (`name` as printed)."""

    number: int
    group: int
    pid: str
    host: str
    index: int
    bus: str
    name: str


def rank_of(line: str) -> Rank | None:
    """The rank that a line lists."""
    match = _RANK.search(line)
    if match is None:
        return None
    return Rank(
        int(match["rank"]),
        int(match["group"] or 0),
        match["pid"] or "",
        match["host"],
        int(match["index"]),
        match["bus"] or "",
        match["name"].strip(),
    )


def layout_of(ranks: Sequence[Rank], source: Source, where: str, per_process: int | None = None) -> Layout:
    """Ranks and nodes of one group, as listed or as the user says; `per_process` are GPUs of a process (nThread ×
    nGpus).

    Copies of a program that did not know of each other, groups that are unlike, a list that is cut off, and GPUs listed
    twice are a ProfileError.
    """
    listed = {(rank.number, rank.host, rank.pid, rank.index): rank for rank in ranks}
    if len({rank.number for rank in listed.values()}) < len(listed):
        raise ProfileError(
            f"{where}: rank {ranks[0].number} is listed more than once: copies of the program ran separately, side by "
            "side; build nccl-tests with MPI=1, or give the output of one copy"
        )
    if per_process and len(listed) % per_process and source.ranks is None:
        raise ProfileError(
            f"{where}: {len(listed)} ranks are listed, but each process has {per_process}; the list is cut off, so "
            "give their number (--ranks and --nodes)"
        )
    groups: dict[int, list[Rank]] = {}
    for rank in listed.values():
        groups.setdefault(rank.group, []).append(rank)
    hosts = {number: len({rank.host for rank in members}) for number, members in groups.items()}
    sizes = {number: len(members) for number, members in groups.items()}
    for what, counts in (("ranks", sizes), ("hosts", hosts)):
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{count} {what} in group {number}" for number, count in counts.items())
            raise ProfileError(f"{where}: the groups that ran at once are unlike ({said}); split them alike")
    if source.nodes is None:
        _refuse_shared_gpus(list(listed.values()), where)
    num_ranks = source.ranks or next(iter(sizes.values()))
    return Layout(num_ranks, min(source.nodes or next(iter(hosts.values())), num_ranks), len(groups))


def _refuse_shared_gpus(ranks: list[Rank], where: str) -> None:
    """Two ranks on one GPU of one host: hosts that share a name, or ranks that share a GPU. Either way, no link."""
    taken: dict[tuple[str, int, str], Rank] = {}
    for rank in ranks:
        other = taken.setdefault((rank.host, rank.index, rank.bus), rank)
        if other is not rank:
            raise ProfileError(
                f"{where}: ranks {other.number} and {rank.number} are both on GPU {rank.index} of host {rank.host!r}. "
                "If machines share that name, say how many (--nodes 2); if ranks share a GPU, no link was timed"
            )


def device_of(ranks: Sequence[Rank], source: Source) -> str | None:
    """The GPU all ranks have, as printed. Several kinds are a ProfileError."""
    names = sorted({rank.name for rank in ranks if rank.name})
    if len(names) > 1:
        raise ProfileError(
            f"{source.path} was measured on several kinds of GPU ({', '.join(names)}); a profile is of one: split it"
        )
    return names[0] if names else None
