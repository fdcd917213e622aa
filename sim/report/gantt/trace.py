"""A step as a Chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing.

A pipeline rank is a process; its streams are threads: compute, sends, data-parallel communication. Arrows go from
every send to what waits for it, and a counter shows the activations kept. Written in the Trace Event Format [1]_; times
are whole nanoseconds, so that what follows each other on a stream never overlaps.

.. [1] Google, "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from sim.arrays import Array
from sim.files import write_file
from sim.report.gantt.step_view import Bars, StepView
from sim.report.palette import LOOKS
from sim.schedules.actions import KINDS, F

COMPUTE, SENDS, DATA, GRADIENTS, MORE = 1, 2, 3, 4, 10
"""Threads of a rank; sends that go on at the same moment as others have further ones, from MORE on."""
APART = 1000
"""Between the thread numbers of neighbouring ranks: viewers take them to be unique."""
_COLOUR = {"F": "thread_state_running", "B": "thread_state_iowait", "I": "terrible", "W": "good", "U": "black"}


def write_trace(view: StepView, path: Path) -> int:
    """Write the trace; return how many events it has.

    Raises
    ------
    SpecError
        The file cannot be written.
    """
    written = []
    write_file(path, lambda place: written.append(_write_trace(view, place)))
    return written[-1]


def _write_trace(view: StepView, path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8", buffering=1 << 20) as file:
        file.write('{"displayTimeUnit": "ms", "otherData": ' + json.dumps(_about(view)) + ', "traceEvents": [\n')
        separator = ""
        for block in events(view):
            if block:
                file.write(separator)
                _write(file, block)
                separator = ",\n"
                count += len(block)
        file.write("\n]}\n")
    return count


def _write(file: TextIO, block: list[str]) -> None:
    for at in range(0, len(block), 8192):
        file.write((",\n" if at else "") + ",\n".join(block[at : at + 8192]))


def _about(view: StepView) -> dict[str, str | float]:
    answer = view.answer
    return {
        "scenario": view.scenario.name,
        "model": view.scenario.model.name,
        "schedule": view.scenario.plan.schedule,
        "engine": answer.engine,
        "step_time_s": answer.step_time_s,
        "bubble_fraction": answer.bubble_fraction,
        "what": "the first batches of a stream without flush" if view.streams else "one step",
    }


def events(view: StepView) -> Iterator[list[str]]:
    """The events as JSON text, in blocks; every thread's and counter's in the order of time."""
    lanes = _send_lanes(view)
    yield _names(view, lanes)
    yield _compute(view)
    yield from _sends(view)
    yield _data(view)
    yield _memory(view)


def _ns(seconds: Array) -> Array:
    return np.rint(np.asarray(seconds) * 1e9).astype(np.int64)


def _us(nanoseconds: Array) -> list[str]:
    """Microseconds with exactly three decimals."""
    return [f"{value // 1000}.{value % 1000:03d}" for value in nanoseconds.tolist()]


def _names(view: StepView, lanes: list[list[int]]) -> list[str]:
    """Names of processes and threads, and the order in which they are shown."""
    lines = []

    def name(rank: int, thread: int | None, text: str, index: int) -> None:
        kind = "process" if thread is None else "thread"
        where = {"pid": rank} if thread is None else {"pid": rank, "tid": APART * rank + thread}
        lines.append(json.dumps({"ph": "M", "name": f"{kind}_name", **where, "args": {"name": text}}))
        lines.append(json.dumps({"ph": "M", "name": f"{kind}_sort_index", **where, "args": {"sort_index": index}}))

    for rank in range(view.program.order.num_ranks):
        name(rank, None, f"pipeline rank {rank}", rank)
        name(rank, COMPUTE, "compute", 1)
        for number, thread in enumerate(lanes[rank]):
            name(rank, thread, "sends" if number == 0 else f"sends, at the same moment ({number + 1})", 2 + number)
        name(rank, DATA, "data-parallel communication", MORE + len(lanes[rank]))
        if _gradients(view) != DATA:
            name(rank, GRADIENTS, "data-parallel communication, once a step", MORE + len(lanes[rank]) + 1)
    return lines


def _compute(view: StepView) -> list[str]:
    """Actions, and the update after them, each thread in the order of time."""
    order = view.program.order
    begin, end = _ns(view.start), _ns(view.compute_end)
    ts, dur = _us(begin), _us(end - begin)
    heads = [f'{{"ph":"X","cname":"{_COLOUR[kind]}","cat":"{LOOKS[kind].name}","name":"{kind}' for kind in KINDS]
    kinds = [f'"kind":"{kind}"' for kind in KINDS]
    return [
        f'{heads[kind]}{label}","pid":{rank},"tid":{APART * rank + COMPUTE},"ts":{ts},"dur":{dur},'
        f'"args":{{{kinds[kind]},"stage":{stage},"microbatch":{number}}}}}'
        for kind, label, rank, ts, dur, stage, number in zip(
            order.kind.tolist(),
            view.labels(),
            order.rank.tolist(),
            ts,
            dur,
            order.stage.tolist(),
            order.microbatch.tolist(),
            strict=True,
        )
    ] + _once_a_step([bars for bars in view.after() if bars.what in ("update", "setup")], "once a step", COMPUTE)


def _once_a_step(kinds: Sequence[Bars], category: str, thread: int, exposed_s: Array | None = None) -> list[str]:
    """Events of what ranks do once a step, by rank and time.

    exposed_s : of every rank's gradient reduction, which then says so. [s]
    """
    lines = []
    for bars in kinds:
        begin, end = _ns(bars.begin), _ns(bars.end)
        for rank, at, dur, start in zip(bars.rank.tolist(), _us(begin), _us(end - begin), bars.begin, strict=True):
            args = f'{{"exposed_s":{exposed_s[rank]:.9g}}}' if exposed_s is not None and bars.what == "reduce" else "{}"
            line = (
                f'{{"ph":"X","cat":"{category}","name":"{LOOKS[bars.what].name}","pid":{rank},'
                f'"tid":{APART * rank + thread},"ts":{at},"dur":{dur},"args":{args}}}'
            )
            lines.append((rank, start, line))
    return [line for _, _, line in sorted(lines)]


def _send_lanes(view: StepView) -> list[list[int]]:
    """Of every rank the threads that its sends need: one, or more where several go on at the same moment."""
    lanes, ranks = _assign(view)[0], view.program.order.num_ranks
    _, sender, _, _ = view.sends()
    home = view.program.order.rank[sender]
    return [sorted(set(lanes[home == rank].tolist()) | {SENDS}) for rank in range(ranks)]


def _assign(view: StepView) -> tuple[Array, Array]:
    """(thread of each send, sends in the order of rank and time)."""
    _, sender, begin, end = view.sends()
    rank = view.program.order.rank[sender]
    begin, end = _ns(begin), _ns(end)
    by_time = np.lexsort((end, begin, rank))
    threads = np.full(len(sender), SENDS)
    same = np.diff(rank[by_time]) == 0
    if (same & (begin[by_time][1:] < end[by_time][:-1])).any():
        free: dict[int, list[int]] = {}
        for at in by_time.tolist():
            taken = free.setdefault(int(rank[at]), [])
            lane = next((number for number, until in enumerate(taken) if until <= begin[at]), len(taken))
            if lane == len(taken):
                taken.append(0)
            taken[lane] = int(end[at])
            threads[at] = SENDS if lane == 0 else MORE + lane
    return threads, by_time


def _sends(view: StepView) -> Iterator[list[str]]:
    """Every send, and an arrow from it to the action that waits for it."""
    order = view.program.order
    receiver, sender, begin, end = view.sends()
    threads, by_time = _assign(view)
    threads = threads + APART * order.rank[sender]
    receiver, sender = receiver[by_time], sender[by_time]
    start, stop = _ns(begin)[by_time], _ns(end)[by_time]
    what = np.where(order.kind[sender] == F, "activations", "gradient").tolist()
    here, there = order.rank[sender].tolist(), order.rank[receiver].tolist()
    ts, thread = _us(start), threads[by_time].tolist()
    numbers = order.microbatch[sender].tolist()
    yield [
        f'{{"ph":"X","cat":"send","name":"{kind} to rank {to}","pid":{rank},"tid":{tid},"ts":{at},"dur":{dur},'
        f'"args":{{"microbatch":{number},"stage":{stage}}}}}'
        for kind, to, rank, tid, at, dur, number, stage in zip(
            what, there, here, thread, ts, _us(stop - start), numbers, order.stage[sender].tolist(), strict=True
        )
    ]
    arrow = '"cat":"send","name":"send"'
    yield [
        f'{{"ph":"s",{arrow},"id":{number},"pid":{rank},"tid":{tid},"ts":{at}}}'
        for number, (rank, tid, at) in enumerate(zip(here, thread, ts, strict=True))
    ]
    yield [
        f'{{"ph":"f","bp":"e",{arrow},"id":{number},"pid":{rank},"tid":{APART * rank + COMPUTE},"ts":{at}}}'
        for number, (rank, at) in enumerate(zip(there, _us(_ns(view.start[receiver])), strict=True))
    ]


def _data(view: StepView) -> list[str]:
    """What is moved at visits, or once a step: gradient reduction, beside or after the backward, the tied embedding's
    reduction, the weight gather."""
    beside, exposed = view.overlapped_reductions(), view.timeline.exposed_reduce_s
    kinds = ("tied", "gather") if beside else ("reduce", "tied", "gather")
    after = [bars for bars in view.after() if bars.what in kinds]
    return [
        *_once_a_step(view.at_visits(), "data parallel, once a visit", DATA),
        *_once_a_step([*beside, *after], "data parallel", _gradients(view), exposed),
    ]


def _gradients(view: StepView) -> int:
    """Thread of what is moved once a step: one of its own where visits move things beside it."""
    return GRADIENTS if view.at_visits() and view.overlapped_reductions() else DATA


def _memory(view: StepView) -> list[str]:
    """Activations kept on every rank whenever they change."""
    lines: list[str] = []
    for rank, (times, held) in enumerate(view.kept()):
        head = f'{{"ph":"C","name":"activations kept","pid":{rank},"ts":'
        lines += [
            f'{head}{at},"args":{{"bytes":{amount:.0f}}}}}'
            for at, amount in zip(_us(_ns(times)), held.tolist(), strict=True)
        ]
    return lines
