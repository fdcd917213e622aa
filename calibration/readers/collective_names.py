"""Collectives: what programs call them, and how their measurements are written down and checked."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from flopcast_calibration.measurement import Measurement, Shape
from sim.errors import ProfileError, nearest

#: what nccl-tests, PARAM, torch and people call it -> ours
OPERATIONS = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "all_gather_base": "all_gather",
    "allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "all2all": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "sendrecv": "send",
    "send_recv": "send",
    "send": "send",
    "p2p": "send",
}
#: what has no place in a profile: no plan of a training run waits for it
NOT_READ = (
    "reduce",
    "gather",
    "scatter",
    "hypercube",
    "alltoallv",
    "all_to_allv",
    "all_reduce_bias",
    "barrier",
    "incast",
    "multicast",
)
#: bus bandwidth over algorithm bandwidth on n ranks (NVIDIA/nccl-tests:doc/PERFORMANCE.md)
BUS_FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "send": lambda n: 1.0,
}
#: A collective's name in a file's name or in prose, where it needs no _perf to be one.
_BARE = re.compile(
    r"(?<![a-z])(all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?allv?|broadcast|send[-_]?recv|hypercube)"
)


def known_name(name: str) -> str | None:
    """A collective's own name, be it one that is read or not; None for anything else."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_").lstrip("_")
    plain = plain.removesuffix("_mpi").removesuffix("_perf")
    return OPERATIONS.get(plain) or (plain if plain in NOT_READ else None)


def names_in(text: str) -> list[str]:
    """The collectives that a file's name or a sentence names, in order."""
    found = (known_name(match[1].replace("-", "_")) for match in _BARE.finditer(text.lower()))
    return list(dict.fromkeys(name for name in found if name))


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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a collective ran.

    num_ranks, num_nodes : of one group.
    groups : that ran at once and shared the machine.
    """

    num_ranks: int
    num_nodes: int
    groups: int = 1

    def shape(self, operation: str, nbytes: int) -> Shape:
        """The shape of a measurement: nbytes is the whole buffer (what a gather ends with), of a send one message."""
        shape: Shape = {
            "operation": operation,
            "num_ranks": self.num_ranks,
            "num_nodes": self.num_nodes,
            "nbytes": nbytes,
        }
        return shape if self.groups == 1 else {**shape, "groups": self.groups}


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
    seconds = [float(time) * unit_s for time in times]
    printed = float(busbw)
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
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)
