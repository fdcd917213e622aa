"""The JSON files of nccl-tests (`-J`) and rccl-tests (`-Z json -x`).

Formats: NVIDIA/nccl-tests:src/util.cu (jsonRankInfo, writeBenchmarkLineBody), ROCm/rccl-tests:src/common.cu. Times are
in µs, bandwidths in GB/s.
"""

from __future__ import annotations

from typing import Any

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.collective_names import BUS_FACTOR, Layout, collective, known_name, measured, names_in
from flopcast_calibration.readers.log import Log, Source
from flopcast_calibration.readers.rank_list import Rank, device_of, layout_of
from sim.errors import ProfileError


def looks_like(data: Any) -> bool:
    """Whether JSON is of nccl-tests or rccl-tests."""
    if isinstance(data, list):
        return bool(data) and isinstance(data[0], dict) and "busBw" in data[0]
    return isinstance(data, dict) and "results" in data and ("config" in data or "args" in data)


def _layout(source: Source, ranks: list[Rank]) -> tuple[Layout, list[str]]:
    """How the ranks of a test lie on nodes, and what is assumed of them."""
    notes: list[str] = []
    if ranks:
        layout = layout_of(ranks, source, str(source.path))
        if source.nodes is None and any(not rank.host for rank in ranks):
            notes.append("no hosts are listed; one node is assumed (--nodes)")
    elif source.ranks is None:
        raise ProfileError(f"{source.path} lists no devices; give the number of ranks (--ranks 8)")
    else:
        layout = Layout(source.ranks, source.nodes or 1)
        notes += [] if source.nodes else ["no devices are listed; one node is assumed (--nodes)"]
    if layout.num_ranks == 1:
        raise ProfileError(
            f"{source.path}: one rank communicates with nobody; run it on several GPUs (-g 8, or with MPI)"
        )
    return layout, notes


def read_json(source: Source, data: Any) -> Log:
    """Read either."""
    if isinstance(data, list):
        return _rccl(source, data)
    config = data.get("config") if isinstance(data.get("config"), dict) else {}
    results = data.get("results") if isinstance(data.get("results"), list) else []
    operation = _operation(source, data)
    try:
        ranks = _ranks(config)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProfileError(f"{source.path}: its list of devices is not one of nccl-tests: {error}") from None
    layout, notes = _layout(source, ranks)
    items: list[Measurement] = []
    for number, row in enumerate(results, start=1):
        where = f"{source.path}: result {number}"
        try:
            sides = [row[name] for name in ("out_of_place", "in_place") if row.get(name)]
            if any(float(side.get("nwrong") or 0) for side in sides):
                raise ProfileError(f"{where}: the test found wrong results; do not use it")
            times = [str(float(side["time"] if "time" in side else side["cpu_time"])) for side in sides]
            items += measured(where, operation, layout, int(row["size"]), times, str(float(sides[0]["bus_bw"])))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ProfileError(f"{where} lacks a value: {error!r}") from None
    if not items:
        raise ProfileError(f"{source.path} holds no results")
    device = device_of(ranks, source)
    hosts = len({rank.host for rank in ranks if rank.host})
    facts: dict[str, Any] = {**({"device": device} if device else {}), **({"hosts": hosts} if hosts else {})}
    return Log(facts, tuple(items), tuple(notes))


def _operation(source: Source, data: dict[str, Any]) -> str:
    """The program's name, the user's word, the file's name: in this order."""
    args = data.get("args")
    program = str(args[0]).rpartition("/")[2] if isinstance(args, list) and args else ""
    name = next((word for word in (known_name(program), source.operation, *names_in(source.path.name)) if word), None)
    if name is None:
        raise ProfileError(
            f"{source.path} does not say which collective it timed; name it (--operation): {', '.join(BUS_FACTOR)}"
        )
    return collective(name)


def _ranks(config: dict[str, Any]) -> list[Rank]:
    """One entry a process is listed, its first GPU; a process may have several (threads × GPUs)."""
    devices = config.get("devices")
    if not isinstance(devices, list):
        return []
    each = 1
    numbers = []
    for name in ("nthreads", "ngpus"):
        value = config.get(name, 1)
        each *= value if isinstance(value, int) and value > 0 else 1
    for order, entry in enumerate(devices):
        entry = entry if isinstance(entry, dict) else {}
        numbers.append(int(entry.get("rank", order * each)))
    if len(numbers) > 1 and numbers == list(range(len(numbers))):
        each = 1  # every rank is listed
    ranks = []
    for number, entry in zip(numbers, devices, strict=True):
        entry = entry if isinstance(entry, dict) else {}
        for more in range(each):
            # Only the first GPU of a process is named; the others of the same process are beside it.
            first = int(entry.get("device", number))
            bus = str(entry.get("device_hex", "")) if more == 0 else ""
            group, host, name = (entry.get(key, "") for key in ("group", "hostname", "device_info"))
            pid = str(entry.get("pid", ""))
            ranks.append(Rank(number + more, int(group or 0), pid, str(host), first + more, bus, str(name).strip()))
    return ranks


def _rccl(source: Source, data: list[Any]) -> Log:
    """A list of records, each with its own number of ranks."""
    items: list[Measurement] = []
    notes: list[str] = []
    for number, row in enumerate(data, start=1):
        where = f"{source.path}: record {number}"
        try:
            operation = collective(str(row["name"]))
            wrong = str(row.get("wrong", "0"))
            if wrong not in ("0", "N/A", "-1"):
                raise ProfileError(f"{where}: the test found wrong results (wrong = {wrong}); do not use it")
            time, busbw = str(float(row["time"])), str(float(row["busBw"]))
            layout = _rccl_layout(source, row, operation, float(busbw))
            items += measured(where, operation, layout, int(row["size"]), [time], busbw)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ProfileError(f"{where} lacks a value: {error!r}") from None
        if "nodes" not in row and source.nodes is None and not notes:
            notes.append("the number of nodes is not stated; one is assumed (--nodes)")
    if any(item.shape["num_ranks"] == 1 for item in items):
        raise ProfileError(f"{source.path}: one rank communicates with nobody; run it on several GPUs")
    if not items:
        raise ProfileError(f"{source.path} holds no results")
    return Log({}, tuple(items), tuple(notes))


def _rccl_layout(source: Source, row: dict[str, Any], operation: str, busbw: float) -> Layout:
    """Whether `ranks` counts processes or GPUs is told by the bandwidth that is stated."""
    if source.ranks is None and "ranks" not in row:
        raise ProfileError(f"{source.path} does not say how many ranks there were; give their number (--ranks 8)")
    stated = int(row.get("ranks", 1))
    counts = [source.ranks] if source.ranks else [stated, stated * int(row.get("gpusPerRank", 1))]
    algbw = int(row["size"]) / float(row["time"]) * 1e-3
    num_ranks = min(counts, key=lambda n: abs(algbw * BUS_FACTOR[operation](n) - busbw))
    return Layout(num_ranks, min(source.nodes or int(row.get("nodes", 1)), num_ranks))
