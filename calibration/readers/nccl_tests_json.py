"""The JSON files of nccl-tests (`-J`) and rccl-tests (`-Z json -x`).

Formats: NVIDIA/nccl-tests:src/util.cu (jsonRankInfo, writeBenchmarkLineBody), ROCm/rccl-tests:src/common.cu. Times are
in µs, bandwidths in GB/s.
"""

from __future__ import annotations

from typing import Any

from flopcast_calibration.readers.collectives import (
    BUS_FACTOR,
    Layout,
    Rank,
    collective,
    layout_of,
    machine_of,
    measured,
    unnamed,
)
from flopcast_calibration.readers.log import Log, Reading, Source
from flopcast_calibration.readers.names import known_name, names_in
from sim.errors import ProfileError

_WRONG = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What a value that is missing, or another than expected, raises."""


def looks_like(data: Any) -> bool:
    """Whether JSON is of nccl-tests or rccl-tests."""
    if isinstance(data, list):
        return bool(data) and isinstance(data[0], dict) and "busBw" in data[0]
    return isinstance(data, dict) and "results" in data and ("config" in data or "args" in data)


def read_json(source: Source, data: Any) -> Log:
    """Read either."""
    reading = Reading(source)
    if isinstance(data, list):
        return _rccl(reading, data)
    config = data.get("config") if isinstance(data.get("config"), dict) else {}
    results = data.get("results") if isinstance(data.get("results"), list) else []
    operation = _operation(source, data)
    try:
        ranks = _ranks(config)
    except _WRONG as error:
        raise ProfileError(f"{source.path}: its list of devices is not one of nccl-tests: {error}") from None
    layout = _layout(reading, ranks)
    for number, row in enumerate(results, start=1):
        where = f"{source.path}: result {number}"
        try:
            sides = [row[name] for name in ("out_of_place", "in_place") if row.get(name)]
            if any(float(side.get("nwrong") or 0) for side in sides):
                raise ProfileError(f"{where}: the test found wrong results; do not use it")
            times = [str(float(side["time"] if "time" in side else side["cpu_time"])) for side in sides]
            busbw = str(float(sides[0]["bus_bw"]))
            reading.items += measured(where, operation, layout, int(row["size"]), times, busbw)
        except _WRONG as error:
            raise ProfileError(f"{where} lacks a value: {error!r}") from None
    return reading.log("no results", **machine_of(ranks, source, len({rank.host for rank in ranks if rank.host})))


def _operation(source: Source, data: dict[str, Any]) -> str:
    """The program's name, the user's word, the file's name: in this order."""
    args = data.get("args")
    program = str(args[0]).rpartition("/")[2] if isinstance(args, list) and args else ""
    name = next((word for word in (known_name(program), source.operation, *names_in(source.path.name)) if word), None)
    if name is None:
        raise unnamed(source)
    return collective(name)


def _layout(reading: Reading, ranks: list[Rank]) -> Layout:
    """How the ranks of a test lie on nodes; what is assumed of them is noted."""
    source = reading.source
    if not ranks and source.ranks is None:
        raise ProfileError(f"{source.path} lists no devices; give the number of ranks (--ranks 8)")
    layout = layout_of(ranks, source, str(source.path)) if ranks else Layout(source.ranks or 1, source.nodes or 1)
    if source.nodes is None and any(not rank.host for rank in ranks or [Rank(0, 0, "", "", 0, "", "")]):
        reading.notes.append(f"no {'hosts' if ranks else 'devices'} are listed; one node is assumed (--nodes)")
    return _talking(source, layout)


def _talking(source: Source, layout: Layout) -> Layout:
    """The layout, if it has more than one rank."""
    if layout.num_ranks == 1:
        raise ProfileError(
            f"{source.path}: one rank communicates with nobody; run it on several GPUs (-g 8, or with MPI)"
        )
    return layout


def _ranks(config: dict[str, Any]) -> list[Rank]:
    """One entry a process is listed, its first GPU; a process may have several (threads × GPUs)."""
    devices = config.get("devices")
    if not isinstance(devices, list):
        return []
    entries, each = [entry if isinstance(entry, dict) else {} for entry in devices], 1
    for name in ("nthreads", "ngpus"):
        value = config.get(name, 1)
        each *= value if isinstance(value, int) and value > 0 else 1
    numbers = [int(entry.get("rank", order * each)) for order, entry in enumerate(entries)]
    if len(numbers) > 1 and numbers == list(range(len(numbers))):
        each = 1  # every rank is listed
    ranks = []
    for number, entry in zip(numbers, entries, strict=True):
        group, pid, host, name = (str(entry.get(key) or "") for key in ("group", "pid", "hostname", "device_info"))
        first = int(entry.get("device", number))
        for more in range(each):
            # Only the first GPU of a process is named; the others of the same process are beside it.
            bus = str(entry.get("device_hex", "")) if more == 0 else ""
            ranks.append(Rank(number + more, int(group or 0), pid, host, first + more, bus, name.strip()))
    return ranks


def _rccl(reading: Reading, data: list[Any]) -> Log:
    """A list of records, each with its own number of ranks."""
    source = reading.source
    for number, row in enumerate(data, start=1):
        where = f"{source.path}: record {number}"
        try:
            operation, wrong = collective(str(row["name"])), str(row.get("wrong", "0"))
            if wrong not in ("0", "N/A", "-1"):
                raise ProfileError(f"{where}: the test found wrong results (wrong = {wrong}); do not use it")
            time, busbw = str(float(row["time"])), str(float(row["busBw"]))
            layout = _talking(source, _rccl_layout(source, row, operation, float(busbw)))
            reading.items += measured(where, operation, layout, int(row["size"]), [time], busbw)
        except _WRONG as error:
            raise ProfileError(f"{where} lacks a value: {error!r}") from None
        if "nodes" not in row and source.nodes is None:
            reading.notes = ["the number of nodes is not stated; one is assumed (--nodes)"]
    return reading.log("no results")


def _rccl_layout(source: Source, row: dict[str, Any], operation: str, busbw: float) -> Layout:
    """Whether `ranks` counts processes or GPUs is told by the bandwidth that is stated."""
    if source.ranks is None and "ranks" not in row:
        raise ProfileError(f"{source.path} does not say how many ranks there were; give their number (--ranks 8)")
    stated = int(row.get("ranks", 1))
    counts = [source.ranks] if source.ranks else [stated, stated * int(row.get("gpusPerRank", 1))]
    algbw = int(row["size"]) / float(row["time"]) * 1e-3
    num_ranks = min(counts, key=lambda n: abs(algbw * BUS_FACTOR[operation](n) - busbw))
    return Layout(num_ranks, min(source.nodes or int(row.get("nodes", 1)), num_ranks))
