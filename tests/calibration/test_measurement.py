"""The journal of a calibration: nothing measured is lost, and what is wrong is refused with its line."""

import json

import pytest
from rows import rows

from flopcast_calibration.measurement import Journal, Measurement, read_journal, write_journal
from sim.errors import ProfileError

MACHINE = {"device": "a test", "torch": "1"}
ITEMS = [Measurement("gemm", {"m": 8, "n": 8, "k": size, "dtype": "float32"}, 1e-3 * size) for size in (1, 2, 3)]


def test_what_is_added_is_on_disk_at_once_and_read_back(tmp_path):
    path = tmp_path / "raw.jsonl"
    journal = Journal(path, MACHINE)
    for item in ITEMS:
        journal.add(item)
        assert read_journal(path).measurements[-1] == item
    assert read_journal(path).machine == MACHINE
    assert Journal(path, MACHINE).done.keys() == {item.key for item in ITEMS}


def test_another_machine_is_not_mixed_in(tmp_path):
    path = tmp_path / "raw.jsonl"
    write_journal(path, MACHINE, ITEMS)
    with pytest.raises(ProfileError, match="another machine"):
        Journal(path, {"device": "another", "torch": "1"})


GOOD = {"kind": "gemm", "shape": {"m": 8, "n": 8, "k": 8, "dtype": "bfloat16"}, "time_s": 1e-3}


@rows(
    ("line", "says"),
    [
        ("{", "line 3 is not a measurement"),
        ({"kind": "launch", "shape": {}, "time_s": -1}, "time_s = -1 is not a positive time"),
        ({"kind": "gem", "shape": {}, "time_s": 1}, "unknown kind 'gem'"),
        ({"kind": "gemm", "shape": {}}, "line 3"),
        ({"kind": "gemm", "shape": {}, "time_s": 1, "colour": "red"}, "colour"),
        ({**GOOD, "shape": {"n": 8, "k": 8}}, "line 3 is not a measurement: .*needs m"),
        ({**GOOD, "shape": {"m": "x", "n": 8, "k": 8}}, "line 3 is not a measurement: .*m = 'x' is not a number"),
        ({**GOOD, "shape": {"m": float("nan"), "n": 8, "k": 8}}, "line 3 is not a measurement: .*is not a number"),
        ({**GOOD, "shape": [8, 8, 8]}, "line 3 is not a measurement: .*must hold values by name"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, says):
    path = tmp_path / "raw.jsonl"
    write_journal(path, MACHINE, ITEMS[:1])
    path.write_text(f"{path.read_text()}{line if isinstance(line, str) else json.dumps(line)}\n{json.dumps(GOOD)}\n")
    with pytest.raises(ProfileError, match=says):
        read_journal(path)
