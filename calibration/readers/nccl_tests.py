"""nccl-tests and rccl-tests: the text that all_reduce_perf and its kin print, run after run.

Formats: NVIDIA/nccl-tests:src/util.cu (writeDeviceReport, writeResultHeader, writeBenchmarkLineBody), before 2.17
src/common.cu; the first releases print times in ms. ROCm/rccl-tests prints the same. Bandwidths are in GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.collectives import BUS_FACTOR, Layout, collective, measured
from flopcast_calibration.readers.log import Log, Reading, Source, listed, without_prefix
from flopcast_calibration.readers.names import NOT_READ, known_name, names_in
from sim.errors import ProfileError

_STARTS = re.compile(r"Collective test starting:\s*(\S+)")
_PROCESS = re.compile(r"\bnThread (\d+) nGpus (\d+)\b")
_PROGRAM = re.compile(r"(?<!\w)(\w{1,60}_perf(?:_mpi)?)\b")  # bounded, as a damaged log may be one word of megabytes
_HEADER = re.compile(r"#?\s*\b(size\s+count|bytes\s+N)\b(?=.*\b(?:cpu)?time\b)(.*)")
_ROW = re.compile(r"(?<!\S)\d+\s+\d+\s+(?:u?int\d*|u?char|float|half|double|bfloat16|f8e\w+|fp8\w*)\s")
_END = re.compile(r"#\s*(?:Out of bounds values|Avg bus bandwidth)")
LOOKS = re.compile(
    r"Collective test starting:|# nThread \d+ nGpus|#\s*Rank\s+\d+ .*\bon\b.*\bdevice\b|size\s+count\s+type.*\btime\b"
)


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

    def sides(self, cells: list[str]) -> dict[str, list[str]]:
        """The cells of a row by column: out of place, then in place."""
        sides: dict[str, list[str]] = {}
        for name, cell in zip(self.columns or (), cells, strict=False):
            sides.setdefault(name, []).append(cell)
        return sides


def read(source: Source) -> Log:
    """Every table of a text, each with the ranks listed before it."""
    runs = [run for run in _runs(source) if run.rows]
    if not runs:
        raise ProfileError(f"{source.path} holds no row of an nccl-tests table; did the test fail?")
    reading, alone = Reading(source), 0
    for run in runs:
        operation = _operation(reading, run)
        if operation in NOT_READ:
            reading.notes.append(f"line {run.line}: a table of {operation} is left out, profiles have no such value")
            continue
        layout = _layout(reading, run)
        if layout.num_ranks == 1:
            alone += 1
        else:
            _read_table(reading, run, operation, layout)
    if alone and not reading.items:
        remedy = (
            f"; {alone} copies of the program ran separately; build it with MPI (make MPI=1)"
            if alone > 1
            else "; run it on several GPUs (-g 8), or built with MPI (make MPI=1) under mpirun"
        )
        raise ProfileError(f"{source.path}: one rank communicates with nobody{remedy}")
    if alone:
        reading.notes.append(f"{alone} tables of one rank are left out: it communicates with nobody")
    if reading.notes and not reading.items:
        raise ProfileError(f"{source.path}: {reading.notes[-1]}")
    hosts = max(len({rank.host for rank in run.ranks}) for run in runs)
    return reading.log(
        "no row of a message that is not empty",
        **machine_of([rank for run in runs for rank in run.ranks], source, hosts),
    )


def _runs(source: Source) -> list[_Run]:
    """The runs of a text; each task's lines apart, where a launcher says whose they are."""
    runs: list[_Run] = []
    open_runs: dict[str, _Run] = {}
    spoken = None  # by no task: a command line in a job's log
    for number, raw in enumerate(source.text.splitlines(), start=1):
        task, line = without_prefix(raw)
        if task not in open_runs:
            open_runs[task] = _Run(number, program=spoken)
            runs.append(open_runs[task])
        following = _follow(open_runs[task], number, line)
        if following is not open_runs[task]:
            open_runs[task] = following
            runs.append(following)
        if not task:
            spoken = following.next_program or following.program
    return runs


def _follow(run: _Run, number: int, line: str) -> _Run:
    """Take in one line; the run it belongs to, a new one where it starts one."""
    rank, starts, process, header = rank_of(line), *(each.search(line) for each in (_STARTS, _PROCESS, _HEADER))
    if rank or starts or process or header:
        # A table without a list of its own has the ranks of the one before.
        if run.rows or (starts and run.announced) or (process and run.per_process):
            kept = {"ranks": run.ranks, "per_process": run.per_process, "announced": run.announced} if header else {}
            run = _Run(number, program=run.next_program or run.program, **kept)
        if rank:
            run.ranks.append(rank)
        elif starts:
            run.announced = starts[1] if known_name(starts[1]) else None
        elif process:
            run.per_process = int(process[1]) * int(process[2])
        elif header:
            run.line, run.columns = number, header[1].split() + header[2].split()
            run.unit_s = 1e-3 if run.columns[0] == "bytes" else 1e-6
        return run
    row = _ROW.search(line)
    cells = line[row.start() :].split() if row else line.split()
    if row or (run.columns and not run.ended and cells and cells[0].isdigit()):
        # A row cannot be told from other numbers without its header, whose columns differ between releases.
        run.rows.append((number, cells if run.columns else []))
    elif _END.search(line):
        run.ended = True
    else:
        named = {name for name in _PROGRAM.findall(line) if known_name(name)}
        if len(named) == 1 and run.rows:
            run.next_program = named.pop()
        elif len(named) == 1:
            run.program = named.pop()
    return run


def _operation(reading: Reading, run: _Run) -> str:
    """The collective of a run: by its own word, else the user's, else its command line or the file's name."""
    source = reading.source
    asked = collective(source.operation) if source.operation else None
    if run.announced:
        own = known_name(run.announced)
        assert own is not None
        if asked not in (None, own):
            reading.notes.append(f"line {run.line}: it says {run.announced} itself; --operation {asked} is not used")
        return own
    name = asked or run.program or next(iter(names_in(source.path.name)), None)
    if name is None:
        raise ProfileError(
            f"{source.path} does not say which collective it timed; name it (--operation): {', '.join(BUS_FACTOR)}"
        )
    return known_name(name) or collective(name)


def _layout(reading: Reading, run: _Run) -> Layout:
    source = reading.source
    if run.ranks:
        return layout_of(run.ranks, source, source.at(run.line), run.per_process)
    if source.ranks is None:
        raise ProfileError(f"{source.path} lists no ranks; give their number (--ranks 8)")
    if source.nodes is None:
        reading.notes.append(f"no ranks and hosts are listed; {source.ranks} ranks on one node are assumed (--nodes)")
    return Layout(source.ranks, source.nodes or 1)


def _read_table(reading: Reading, run: _Run, operation: str, layout: Layout) -> None:
    """The rows of a table. Those that another process's lines tore apart are left out, unless none is whole."""
    items: list[Measurement] = []
    torn: list[tuple[int, str]] = []
    for number, cells in run.rows:
        where = reading.source.at(number)
        if run.columns is None:
            raise ProfileError(f"{where} comes before the table's header (# size count type …); was the log cut off?")
        if len(cells) < len([name for name in run.columns if name != "timestamp"]):
            torn.append((number, f"{where} has {len(cells)} of {len(run.columns)} columns; was the log cut off?"))
            continue
        sides = run.sides(cells)
        times = sides.get("time", sides.get("cputime", []))
        try:
            nbytes, busbw = int(cells[0]), sides["busbw"][0]
            for cell in (times[0], *times, busbw):
                float(cell)
        except (KeyError, IndexError, ValueError) as error:
            torn.append((number, f"{where}: not a row of the table: {error}"))
            continue
        wrong = set(sides.get("#wrong", [])) - {"0", "N/A"}
        if wrong:
            said = ", ".join(sorted(wrong))
            raise ProfileError(f"{where}: the test found wrong results (#wrong = {said}); do not use it")
        items += measured(where, operation, layout, nbytes, times, busbw, run.unit_s)
    if torn and not items:
        raise ProfileError(torn[0][1])
    if torn:
        lines = listed([number for number, _ in torn])
        reading.notes.append(f"{lines}: rows that are not whole (cut off, or other lines between) are left out")
    if items and not run.ended:
        reading.notes.append(f"the table that begins in line {run.line} ends without its summary; was the run stopped?")
    reading.items += items
