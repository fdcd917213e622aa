"""Collectives: how their measurements are written down and checked, and the ranks that a log or file lists."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flopcast_calibration.measurement import Measurement, Shape
from flopcast_calibration.readers.log import Source
from flopcast_calibration.readers.names import NOT_READ, OPERATIONS, known_name
from sim.errors import ProfileError, nearest

#: bus bandwidth over algorithm bandwidth on n ranks (NVIDIA/nccl-tests:doc/PERFORMANCE.md)
BUS_FACTOR: dict[str, Callable[[float], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), lambda n: (n - 1) / n),
    "send": lambda n: 1.0,
}


def collective(name: str) -> str:
    """The collective of that name.

    A name that no collective has, or one that a profile has no place for, is a ProfileError.
    """
    found = known_name(name)
    if found is None:
        raise ProfileError(f"unknown collective {name!r}{nearest(name, OPERATIONS)}")
    if found in NOT_READ:
        raise ProfileError(f"no profile has a place for {found}; give one of {', '.join(BUS_FACTOR)}")
    return found


def unnamed(source: Source) -> ProfileError:
    """What is wrong with a file that does not say which collective it is of."""
    return ProfileError(
        f"{source.path} does not say which collective it timed; name it (--operation): {', '.join(BUS_FACTOR)}"
    )


class Layout(NamedTuple):
    """Where a collective ran.

    num_ranks, num_nodes : of one group.
    groups : that ran at once and shared the machine.
    """

    num_ranks: int
    num_nodes: int
    groups: int = 1

    def shape(self, operation: str, nbytes: int) -> Shape:
        """The shape of a measurement: nbytes is the whole buffer (what a gather ends with), of a send one message."""
        own: Shape = {"operation": operation, "num_ranks": self.num_ranks, "num_nodes": self.num_nodes}
        return {**own, "nbytes": nbytes, **({} if self.groups == 1 else {"groups": self.groups})}


def measured(
    where: str, operation: str, layout: Layout, nbytes: int, times: list[str], busbw: str, unit_s: float = 1e-6
) -> list[Measurement]:
    """The faster of out of place and in place, checked against the bandwidth printed beside it; no empty message.

    Times [unit_s] and bus bandwidths [GB/s] are as printed, so that the check allows for their rounding. A ProfileError
    says that there is no positive time, or that the bandwidth contradicts it: a wrong number of ranks, collective or
    unit.
    """
    if nbytes == 0:
        return []
    seconds, printed = [float(time) * unit_s for time in times], float(busbw)
    wrong = next((time for time, s in zip(times, seconds, strict=True) if not (math.isfinite(s) and s > 0)), None)
    if wrong is not None:
        raise ProfileError(f"{where}: time {wrong} is not positive")
    if not math.isfinite(printed):
        raise ProfileError(f"{where}: a bus bandwidth of {busbw} is none; is the row whole?")
    expected = nbytes / seconds[0] * 1e-9 * BUS_FACTOR[operation](layout.num_ranks)
    # Printed with two decimals of GB/s and few of the time: allow rounding, catch a wrong number of ranks.
    rounding = _half_digit(times[0]) * unit_s / seconds[0] * expected + max(_half_digit(busbw), 0.02)
    if not abs(expected - printed) <= 0.01 * printed + rounding:
        raise ProfileError(
            f"{where}: the time gives a bus bandwidth of {expected:.2f} GB/s on {layout.num_ranks} ranks, but "
            f"{printed:.2f} is printed; is the number of ranks right?"
        )
    return [Measurement("collective", layout.shape(operation, nbytes), min(seconds), source=where)]


def _half_digit(text: str) -> float:
    """Half of the last printed digit: 0.05 of '12.3', 5e5 of '1.2e+07'."""
    mantissa, _, exponent = text.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


#: Of nccl-tests (with Group since 2.13, bus id or bus number), rccl-tests, and those before MPI had a Pid there.
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+(\d+)\s+)?on\s+(\S+)\s+device\s+(\d+)\s*(?:\[([^\]]*)\])?\s*(.*)"
)


class Rank(NamedTuple):
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
    number, group, pid, host, index, bus, name = (cell or "" for cell in match.groups())
    return Rank(int(number), int(group or 0), pid, host, int(index), bus, name.strip())


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


def machine_of(ranks: Sequence[Rank], source: Source, hosts: int) -> dict[str, Any]:
    """The GPU all ranks have, as printed, and the number of hosts. Several kinds of GPU are a ProfileError."""
    names = sorted({rank.name for rank in ranks if rank.name})
    if len(names) > 1:
        raise ProfileError(
            f"{source.path} was measured on several kinds of GPU ({', '.join(names)}); a profile is of one: split it"
        )
    return {"device": "".join(names), "hosts": hosts}
