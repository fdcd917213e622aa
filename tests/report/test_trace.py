"""The trace against the Trace Event Format's rules: required fields, order, nesting, arrows with two ends."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

from sim import schedule_names
from sim.report.gantt.trace import COMPUTE, write_trace
from tests.rows import rows

REQUIRED = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "M": {"name": str, "pid": int, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": float},
    "f": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": float, "bp": str},
    "b": {"name": str, "cat": str, "id": int, "pid": int, "ts": float, "args": dict},
    "e": {"name": str, "cat": str, "id": int, "pid": int, "ts": float},
    "C": {"name": str, "pid": int, "ts": float, "args": dict},
}
OVERLAPPED = ("stack.overlap_grad_reduce=true", "stack.overlap_p2p=true", "plan.zero_stage=1")


def trace_of(view, tmp_path):
    path = tmp_path / "step.json"
    count = write_trace(view, path)
    trace = json.loads(path.read_text())
    assert count == len(trace["traceEvents"])
    assert trace["displayTimeUnit"] in ("ms", "ns")
    return trace["traceEvents"]


def check(events):
    """Raise where the events break a rule of the format; return the slices of each thread."""
    slices, counters, flows, sends = defaultdict(list), defaultdict(list), defaultdict(dict), defaultdict(dict)
    for event in events:
        for field, kind in REQUIRED[event["ph"]].items():
            value = event[field]
            assert isinstance(value, kind), (field, event)
            if kind is float:
                assert value >= 0
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "C":
            counters[event["pid"], event["name"]].append(event["ts"])
            assert all(isinstance(value, int | float) for value in event["args"].values())
        elif event["ph"] in "sfbe":
            pairs = (flows if event["ph"] in "sf" else sends)[event["id"]]
            assert event["ph"] not in pairs
            pairs[event["ph"]] = event
    for thread in slices.values():
        for before, after in pairwise(thread):  # in the order of time, one after the other
            assert round(after["ts"] * 1000) >= round((before["ts"] + before["dur"]) * 1000)
    for times in counters.values():
        assert times == sorted(times)
    for ends in flows.values():
        assert set(ends) == {"s", "f"}
        assert ends["s"]["ts"] <= ends["f"]["ts"]
        assert ends["s"]["pid"] != ends["f"]["pid"]
        for event in ends.values():
            assert any(event["ts"] == each["ts"] for each in slices[event["pid"], event["tid"]])
    for number, ends in sends.items():  # on the way between what sends and what waits
        assert set(ends) == {"b", "e"}
        assert flows[number]["s"]["ts"] <= ends["b"]["ts"] <= ends["e"]["ts"] <= flows[number]["f"]["ts"] + 1e-3
    return slices, flows


@rows("settings", [(), OVERLAPPED], ids=["plain", "overlapped"])
@rows("schedule", schedule_names())
def test_every_trace_keeps_the_rules(view_of, tmp_path, schedule, settings):
    view = view_of(schedule, *settings)
    events = trace_of(view, tmp_path)
    slices, flows = check(events)
    order = view.program.order
    assert len(flows) == len(view.sends()[0])
    compute = [event for (_, tid), thread in slices.items() if tid % 1000 == COMPUTE for event in thread]
    counted = Counter(event["args"]["kind"] for event in compute if "kind" in event["args"])
    assert sum(counted.values()) == len(order)
    assert {event["pid"] for event in compute} == set(range(order.num_ranks))
    names = {(event["pid"], event.get("tid")): event["args"] for event in events if event["ph"] == "M"}
    assert all((pid, tid) in names for pid, tid in slices)
