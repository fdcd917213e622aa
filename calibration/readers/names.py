"""What files of measurements call collectives, number formats and columns (facts/measurements.yaml), in our words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sim.errors import ProfileError, nearest
from sim.specs.yaml12 import load_yaml

FACTS: dict[str, Any] = load_yaml(Path(__file__).parents[1] / "facts" / "measurements.yaml")


def _by_alias(names: Mapping[Any, Iterable[str]], own: bool = True) -> dict[str, Any]:
    """Every name -> what it stands for; `own` names stand for themselves."""
    return {alias: ours for ours, aliases in names.items() for alias in ([ours, *aliases] if own else aliases)}


OPERATIONS: dict[str, str] = _by_alias(FACTS["collectives"])
NOT_READ: tuple[str, ...] = tuple(FACTS["no_place"])
DTYPES: dict[str, str] = _by_alias(FACTS["number_formats"])
ELEMENT_BYTES: dict[str, int] = _by_alias(FACTS["element_bytes"], own=False)
TIMES: dict[str, float] = {name: float(unit) for name, unit in _by_alias(FACTS["times"], own=False).items()}
FLOP_RATES: dict[str, float] = {name: float(unit) for name, unit in _by_alias(FACTS["flop_rates"], own=False).items()}
STATISTICS: dict[str, int] = FACTS["statistics"]
USUAL = 1
"""How well a time stands for a measurement that does not say which statistic it is, beside those of STATISTICS."""
REMARKS: tuple[str, ...] = tuple(FACTS["remarks"])
DTYPE_NAMES, DEVICE_NAMES = (("dtype", *FACTS["dtype"]), ("device", *FACTS["device"]))
DIRECTIONS: dict[str, str] = _by_alias(FACTS["directions"])
SHAPES: dict[str, dict[str, str]] = {kind: _by_alias(names) for kind, names in FACTS["shapes"].items()}
COPY_RATES, COLLECTIVE_RATES = ("bandwidth", "bw", "throughput"), ("algbw", "busbw")
"""A bandwidth of a copy; for collectives algbw and busbw, alone in GB/s as nccl-tests has them."""
_BITS_OR_BYTES = re.compile(r"(?:^|_)[kmgt](?:bps|b/s|b_per_s|bit/s|bits/s|bits)$", re.IGNORECASE)
#: A collective's name in a file's name or in prose, where it needs no _perf to be one.
_BARE = re.compile(
    r"(?<![a-z])(all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?allv?|broadcast|send[-_]?recv|hypercube)"
)


def known_name(name: str) -> str | None:
    """A collective's own name, be it one that is read or not; None for anything else."""
    words = name.strip().lower().replace("-", "_").replace(" ", "_").lstrip("_")
    words = words.removesuffix("_mpi").removesuffix("_perf")
    return OPERATIONS.get(words) or (words if words in NOT_READ else None)


def names_in(text: str) -> list[str]:
    """The collectives that a file's name or a sentence names, in order."""
    found = (known_name(match[1].replace("-", "_")) for match in _BARE.finditer(text.lower()))
    return list(dict.fromkeys(name for name in found if name))


def torch_dtype(name: str) -> str | None:
    """The name torch has for a number format; None where it is none."""
    return DTYPES.get(name.strip().lower().replace("-", "_").removeprefix("torch.").removeprefix("c10::"))


def read_dtype(where: str, name: str) -> str:
    """Return the number format that a file's cell names. A word that is no number format is a ProfileError."""
    found = torch_dtype(name)
    if found is None:
        raise ProfileError(f"{where}: unknown number format {name!r}{nearest(name, FACTS['number_formats'])}")
    return found


def plain(header: str) -> str:
    """A column's name as compared: `Time (us)` is time_us."""
    return _joined(header.replace("µ", "u").lower()).strip(" ")


def _joined(header: str) -> str:
    return re.sub(r"[\s(\[_]+", "_", header.strip()).strip(")]_ ")


def bandwidth(header: str) -> tuple[str, float | None] | None:
    """The quantity and unit of a bandwidth's column; no unit where bits and bytes cannot be told apart; else None.

    >>> bandwidth("busbw_GBps"), bandwidth("Bandwidth (GB/s)"), bandwidth("busbw")
    (('busbw', 1000000000.0), ('bandwidth', 1000000000.0), ('busbw', 1000000000.0))
    >>> bandwidth("gbps")
    ('bandwidth', None)
    """
    name, rate = _joined(header), None
    unit = next((unit for unit in FACTS["byte_rates"] if name == unit or name.endswith(f"_{unit}")), None)
    if unit is not None:
        quantity, rate = name.removesuffix(unit), float(FACTS["byte_rates"][unit])
    elif plain(name) in COLLECTIVE_RATES:
        return plain(name), 1e9
    elif _BITS_OR_BYTES.search(name):
        quantity = _BITS_OR_BYTES.sub("", name)
    else:
        return None
    words = plain(quantity) or "bandwidth"
    known = words if words in COLLECTIVE_RATES else "bandwidth" if words in COPY_RATES else ""
    return (known, rate) if known else None


def statistic(name: str) -> tuple[str, int]:
    """The name of a time or rate without its statistic, and how well that one stands for a measurement: 0 is best.

    >>> statistic("p50_ms"), statistic("latency_us_avg"), statistic("time_s")
    (('ms', 0), ('latency_us', 2), ('time_s', 1))
    """
    first, _, rest = name.partition("_")
    if rest and first in STATISTICS:
        return rest, STATISTICS[first]
    before, _, last = name.rpartition("_")
    return (before, STATISTICS[last]) if before and last in STATISTICS else (name, USUAL)
