"""nccl-tests and rccl-tests: the text that all_reduce_perf and its kin print, run after run.

Formats: NVIDIA/nccl-tests:src/util.cu (writeDeviceReport, writeResultHeader, writeBenchmarkLineBody), before 2.17
src/common.cu; the first releases print times in ms. ROCm/rccl-tests prints the same. Bandwidths are in GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.collective_names import (
    BUS_FACTOR,
    NOT_READ,
    Layout,
    collective,
    known_name,
    measured,
    names_in,
)
from flopcast_calibration.readers.log import Log, Source, listed
from flopcast_calibration.readers.prefixes import without_prefix
from flopcast_calibration.readers.rank_list import Rank, device_of, layout_of, rank_of
from sim.errors import ProfileError

_STARTS = re.compile(r"Collective test starting:\s*(\S+)")
_PROCESS = re.compile(r"\bnThread (\d+) nGpus (\d+)\b")
_PROGRAM = re.compile(r"(?<!\w)(\w{1,60}_perf(?:_mpi)?)\b")  # bounded, as a damaged log may be one word of megabytes
_HEADER = re.compile(r"#?\s*\b(size\s+count|bytes\s+N)\b(?=.*\b(?:cpu)?time\b)(.*)")
_ROW = re.compile(r"(?<!\S)\d+\s+\d+\s+(?:u?int\d*|u?char|float|half|double|bfloat16|f8e\w+|fp8\w*)\s")
_END = re.compile(r"#\s*(?:Out of bounds values|Avg bus bandwidth)")
_MARKS = re.compile(
    r"Collective test starting:|# nThread \d+ nGpus|#\s*Rank\s+\d+ .*\bon\b.*\bdevice\b|size\s+count\s+type.*\btime\b"
)


@dataclass(slots=True)
class _Run:
    """One run of a program: what it says of itself, and its table.

    announced, program : the name it prints itself, and the last one before it (a command line).
    next_program : named after its table, so the next run's.
    rows : line, cells. unit_s : of its times.
    """

    line: int
    announced: str | None = None
    program: str | None = None
    next_program: str | None = None
    ranks: list[Rank] = field(default_factory=list)
    per_process: int | None = None
    columns: list[str] | None = None
    unit_s: float = 1e-6
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    ended: bool = False


def looks_like(text: str) -> bool:
    """Whether a text is of nccl-tests."""
    return _MARKS.search(text) is not None


def read(source: Source) -> Log:
    """Every table of a text, each with the ranks listed before it."""
    runs = [run for run in _runs(source) if run.rows]
    if not runs:
        raise ProfileError(f"{source.path} holds no row of an nccl-tests table; did the test fail?")
    notes: list[str] = []
    items: list[Measurement] = []
    alone = 0
    for run in runs:
        operation = _operation(source, run, notes)
        if operation in NOT_READ:
            notes.append(f"line {run.line}: a table of {operation} is left out, profiles have no such value")
            continue
        layout = _layout(source, run, operation, notes)
        if layout.num_ranks == 1:
            alone += 1
            continue
        items += _table(source, run, operation, layout, notes)
    if alone and not items:
        remedy = (
            f"; {alone} copies of the program ran separately; build it with MPI (make MPI=1)"
            if alone > 1
            else "; run it on several GPUs (-g 8), or built with MPI (make MPI=1) under mpirun"
        )
        raise ProfileError(f"{source.path}: one rank communicates with nobody{remedy}")
    if alone:
        notes.append(f"{alone} tables of one rank are left out: it communicates with nobody")
    if not items:
        raise ProfileError(f"{source.path}: {notes[-1] if notes else 'no row is of a message that is not empty'}")
    ranks = [rank for run in runs for rank in run.ranks]
    device = device_of(ranks, source)
    hosts = max((len({rank.host for rank in run.ranks}) for run in runs), default=0)
    return Log(
        {**({"device": device} if device else {}), **({"hosts": hosts} if hosts else {})}, tuple(items), tuple(notes)
    )


def _runs(source: Source) -> list[_Run]:
    """The runs of a text; each task's lines apart, where a launcher says whose they are."""
    runs: list[_Run] = []
    open_runs: dict[str, _Run] = {}
    spoken = None  # by no task: a command line in a job's log
    for number, raw in enumerate(source.text.splitlines(), start=1):
        task, line = without_prefix(raw)
        run = open_runs.get(task)
        if run is None:
            run = open_runs[task] = _Run(number, program=spoken)
            runs.append(run)
        following = _follow(run, number, line)
        if following is not run:
            open_runs[task] = following
            runs.append(following)
        if not task:
            spoken = following.next_program or following.program
    return runs


def _follow(run: _Run, number: int, line: str) -> _Run:
    """Take in one line; the run it belongs to, a new one where it starts one."""
    rank = rank_of(line)
    starts = _STARTS.search(line)
    process = _PROCESS.search(line)
    header = _HEADER.search(line)
    if rank or starts or process or header:
        fresh = run.rows or (starts and run.announced) or (process and run.per_process)
        if fresh:  # a table without a list of its own has the ranks of the one before
            kept = {"ranks": run.ranks, "per_process": run.per_process, "announced": run.announced} if header else {}
            run = _Run(number, program=run.next_program or run.program, **kept)
        if rank:
            run.ranks.append(rank)
        elif starts:
            run.announced = starts[1] if known_name(starts[1]) else None
        elif process:
            run.per_process = int(process[1]) * int(process[2])
        elif header:
            run.line = number
            run.columns = header[1].split() + header[2].split()
            run.unit_s = 1e-3 if run.columns[0] == "bytes" else 1e-6
        return run
    row = _ROW.search(line)
    cells = line[row.start() :].split() if row else line.split()
    if row or (run.columns and not run.ended and cells and cells[0].isdigit()):
        if run.columns is None:
            # A row cannot be told from other numbers without its header, whose columns differ between releases.
            run.rows.append((number, []))
        else:
            run.rows.append((number, cells))
    elif _END.search(line):
        run.ended = True
    else:
        named = {name for name in _PROGRAM.findall(line) if known_name(name)}
        if len(named) == 1 and run.rows:
            run.next_program = named.pop()
        elif len(named) == 1:
            run.program = named.pop()
    return run


def _operation(source: Source, run: _Run, notes: list[str]) -> str:
    """The collective of a run: by its own word, else the user's, else its command line or the file's name."""
    asked = collective(source.operation) if source.operation else None
    if run.announced:
        own = known_name(run.announced)
        assert own is not None
        if asked not in (None, own):
            notes.append(f"line {run.line}: it says {run.announced} itself; --operation {asked} is not used")
        return own
    name = asked or run.program or next(iter(names_in(source.path.name)), None)
    if name is None:
        prose = [line for line in source.text.splitlines() if "NCCL" not in line and not _ROW.search(line)]
        found = {name for line in prose for name in names_in(line)}
        name = found.pop() if len(found) == 1 else None
    name = name or _by_its_rows(run)
    if name is None:
        raise ProfileError(
            f"{source.path} does not say which collective it timed; name it (--operation): {', '.join(BUS_FACTOR)}"
        )
    return known_name(name) or collective(name)


def _by_its_rows(run: _Run) -> str | None:
    """The collective by what its rows print: they reduce (redop), and the bus bandwidth is that of its factor.

    A gather and an all-to-all reduce nothing and have the same factor, so nothing tells them apart.
    """
    n = len({rank.number for rank in run.ranks})
    for ratio, sides in _ratios(run) if n > 2 else ():
        if sides.get("redop", ["none"])[0] != "none" and float(sides["algbw"][0]) > 1:
            reducing = ("all_reduce", "reduce_scatter")
            return next((name for name in reducing if abs(BUS_FACTOR[name](n) / ratio - 1) < 0.02), None)
    return None


def _ratios(run: _Run) -> Iterator[tuple[float, dict[str, list[str]]]]:
    """Bus bandwidth over algorithm bandwidth, and the cells, of every row that has both."""
    for _, cells in run.rows:
        sides = _sides(run, cells)
        with suppress(KeyError, IndexError, ValueError, ZeroDivisionError):
            yield float(sides["busbw"][0]) / float(sides["algbw"][0]), sides


def _layout(source: Source, run: _Run, operation: str, notes: list[str]) -> Layout:
    where = source.at(run.line)
    if run.ranks:
        return layout_of(run.ranks, source, where, run.per_process)
    if source.ranks is None:
        raise ProfileError(f"{source.path} lists no ranks; give their number (--ranks {_guess(run, operation)})")
    if source.nodes is None:
        note = f"no ranks and hosts are listed; {source.ranks} ranks on one node are assumed (--nodes)"
        notes += [note] if note not in notes else []
    return Layout(source.ranks, source.nodes or 1)


def _guess(run: _Run, operation: str) -> int:
    """The number of ranks that the ratio of the two bandwidths speaks for, as an example in a message."""
    *_, (ratio, _) = [(0.0, {}), *_ratios(run)]
    if not ratio or operation in ("broadcast", "send"):
        return 8
    return min(range(2, 1025), key=lambda n: abs(BUS_FACTOR[operation](n) - ratio))


def _table(source: Source, run: _Run, operation: str, layout: Layout, notes: list[str]) -> list[Measurement]:
    """The rows of a table. Those that another process's lines tore apart are left out, unless none is whole."""
    items: list[Measurement] = []
    torn: list[tuple[int, str]] = []
    for number, cells in run.rows:
        where = source.at(number)
        if run.columns is None:
            raise ProfileError(f"{where} comes before the table's header (# size count type …); was the log cut off?")
        if len(cells) < len([name for name in run.columns if name != "timestamp"]):
            torn.append((number, f"{where} has {len(cells)} of {len(run.columns)} columns; was the log cut off?"))
            continue
        sides = _sides(run, cells)
        wrong = set(sides.get("#wrong", [])) - {"0", "N/A"}
        times = sides.get("time", sides.get("cputime", []))
        try:
            nbytes, busbw = int(cells[0]), sides["busbw"][0]
            for cell in (times[0], *times, busbw):
                float(cell)
        except (KeyError, IndexError, ValueError) as error:
            torn.append((number, f"{where}: not a row of the table: {error}"))
            continue
        if wrong:
            said = ", ".join(sorted(wrong))
            raise ProfileError(f"{where}: the test found wrong results (#wrong = {said}); do not use it")
        items += measured(where, operation, layout, nbytes, times, busbw, run.unit_s)
    if torn and not items:
        raise ProfileError(torn[0][1])
    if torn:
        lines = listed([number for number, _ in torn])
        notes.append(f"{lines}: rows that are not whole (cut off, or other lines between) are left out")
    if items and not run.ended:
        notes.append(f"the table that begins in line {run.line} ends without its summary; was the run stopped?")
    return items


def _sides(run: _Run, cells: list[str]) -> dict[str, list[str]]:
    """The cells of a row by column: out of place, then in place."""
    sides: dict[str, list[str]] = {}
    for name, cell in zip(run.columns or (), cells, strict=False):
        sides.setdefault(name, []).append(cell)
    return sides
