"""A step as a Chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing.

A pipeline rank is a process; its streams are threads: compute, and data-parallel communication at visits of chunks and
once a step. Sends are asynchronous events beside them, arrows go from an action that sends to the one that waits for
it, and a counter shows the activations kept. Written in the Trace Event Format [1]_; times are whole nanoseconds, so
that what follows each other on a stream never overlaps.

.. [1] Google, "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.engines import tasks
from sim.files import write_file
from sim.report.figures import LOOKS
from sim.report.gantt.chart import StepView
from sim.schedules.actions import F

COMPUTE, VISITS, ONCE = 1, 2, 3
"""Threads of a rank."""
THREADS = {
    COMPUTE: "compute",
    VISITS: "data-parallel communication, once a visit",
    ONCE: "data-parallel communication, once a step",
}
APART = 1000
"""Distance between the thread numbers of neighbouring ranks. Viewers expect thread numbers to be unique."""

_COLOUR = {"F": "thread_state_running", "B": "thread_state_iowait", "I": "terrible", "W": "good", "U": "black"}

Event = dict[str, Any]


def write_trace(view: StepView, path: Path) -> int:
    """Write the trace; return how many events it has."""
    answer, found = view.answer, [*_names(view), *_tasks(view), *_sends(view), *_kept(view)]
    about = {
        "scenario": view.scenario.name,
        "model": view.scenario.model.name,
        "schedule": view.scenario.plan.schedule,
        "engine": answer.engine,
        "step_time_s": answer.step_time_s,
        "bubble_fraction": answer.bubble_fraction,
        "what": "the first batches of a stream without flush" if view.streams else "one step",
    }
    text = json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": found}, separators=(",", ":"))
    write_file(path, lambda place: place.write_text(text, encoding="utf-8"))
    return len(found)


def _us(seconds: Array) -> Array:
    """Microseconds of whole nanoseconds."""
    return np.rint(np.asarray(seconds) * 1e9) / 1e3


def _names(view: StepView) -> Iterator[Event]:
    """Names of processes and threads, and the order in which they are shown."""
    for rank in range(view.program.order.num_ranks):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"pipeline rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        for thread, name in THREADS.items():
            where = {"pid": rank, "tid": APART * rank + thread}
            yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": thread}}


def _tasks(view: StepView) -> Iterator[Event]:
    """Actions, and what is moved or updated beside and after them, each thread in the order of time."""
    order, labels, bars = view.program.order, view.labels(), view.bars()
    occupies = (bars.stream == tasks.COMPUTE) | np.isin(bars.what, ("update", "setup"))
    thread = np.where(occupies, COMPUTE, np.where(bars.stream == tasks.DATA, VISITS, ONCE))
    if (bars.stream == tasks.GRADIENTS).any():  # what of them is exposed is told with them
        kept = ~((bars.stream == tasks.ONCE) & (bars.what == "reduce"))
        bars, thread = bars.where(kept), thread[kept]
    turn = np.lexsort((bars.end_s, bars.begin_s, bars.rank, thread, bars.action < 0))  # actions first
    begin, end = _us(bars.begin_s[turn]).tolist(), _us(bars.end_s[turn]).tolist()
    columns = (thread[turn], bars.what[turn], bars.rank[turn], bars.action[turn])
    exposed = view.timeline.exposed_reduce_s.tolist()
    for track, what, rank, at, since, until in zip(*(each.tolist() for each in columns), begin, end, strict=True):
        look: Event = {"cat": THREADS[track], "name": LOOKS[what].name}
        about: Event = {"exposed_s": exposed[rank]} if track == ONCE and what == "reduce" else {}
        if at >= 0:
            look = {"cname": _COLOUR[what], "cat": LOOKS[what].name, "name": f"{what}{labels[at]}"}
            about = {"kind": what, "stage": int(order.stage[at]), "microbatch": int(order.microbatch[at])}
        where = {"pid": rank, "tid": APART * rank + track}
        yield {"ph": "X", **look, **where, "args": about, "ts": since, "dur": round(until - since, 3)}


def _sends(view: StepView) -> Iterator[Event]:
    """Every send, and an arrow from the action that sends to the one that waits for it."""
    order = view.program.order
    receiver, sender, begin, end = view.sends()
    what = np.where(order.kind[sender] == F, "activations", "gradient")
    start = view.timeline.start
    columns = [_us(begin), _us(end), _us(start[sender]), _us(start[receiver])]
    columns += [order.rank[sender], order.rank[receiver], order.microbatch[sender], order.stage[sender], what]
    rows = zip(*map(np.ndarray.tolist, columns), strict=True)
    for number, (at, until, sent, needed, here, there, microbatch, stage, name) in enumerate(rows):
        send = {"cat": "send", "id": number, "pid": here, "name": f"{name} to rank {there}"}
        yield {"ph": "b", **send, "ts": at, "args": {"microbatch": microbatch, "stage": stage}}
        yield {"ph": "e", **send, "ts": until}
        arrow = {"cat": "arrow", "name": "send", "id": number}
        yield {"ph": "s", **arrow, "pid": here, "tid": APART * here + COMPUTE, "ts": sent}
        yield {"ph": "f", "bp": "e", **arrow, "pid": there, "tid": APART * there + COMPUTE, "ts": needed}


def _kept(view: StepView) -> Iterator[Event]:
    """Activations kept on every rank whenever they change."""
    for rank, (times, kept) in enumerate(view.kept()):
        for at, amount in zip(_us(times).tolist(), kept.round().tolist(), strict=True):
            yield {"ph": "C", "name": "activations kept", "pid": rank, "ts": at, "args": {"bytes": amount}}
