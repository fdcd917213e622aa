"""Collectives: how their measurements are written down and checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from flopcast_calibration.measurement import Measurement, Shape
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
