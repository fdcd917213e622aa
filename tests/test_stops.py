"""Verbs that are ended half way, and files that are damaged: nothing half is left, and nothing damaged is believed."""

import os
import re
import subprocess
import sys

import pytest
from rows import rows
from tracked import tracked
from typed import ROOT, typed

from sim.commands.exit_codes import INTERRUPTED
from sim.files import write_file, write_text

SMALL = "scenarios/korthikanti-2022/22b-selective.yaml"
WRITERS = {
    f"search {SMALL} --top 1 -o": "best.yaml",
    "import tests/foreign/files/gpt3_175b_slurm.sh --cluster selene -o": "mine.yaml",
    f"export {SMALL} --to megatron-lm -o": "run.sh",
    f"timeline {SMALL} --figure": "step.png",
    "anchor scenarios/megatron-2021/1.7b.yaml --measured 3.7s -o": "mine.yaml",
    "calibrate fit calibration/data/dgx-a100-gemm.csv --node dgx-a100-80gb --draws 1 -o": "dgx.yaml",
}
"""Verbs that write a file, and its name."""


@rows(("verb", "name"), WRITERS.items())
def test_a_verb_that_is_interrupted_as_its_file_gets_its_name_leaves_the_one_before(verb, name, tmp_path, monkeypatch):
    path = tmp_path / name
    assert typed(*verb.split(), path).returncode == 0
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        assert typed(*verb.split(), path).returncode == INTERRUPTED
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_every_file_is_written_by_the_function_that_leaves_no_half_ones():
    """But for journals, which are read to their last whole line, and what parts of the real job tell each other."""
    writes = re.compile(
        r"\.write_text\(|\.write_bytes\(|open\(\s*[\"'][wax]|open\([^)]*,\s*[\"'][wax]|\.savefig\(|\.to_csv\("
    )
    places = {
        path
        for path in tracked("sim/*.py", "calibration/*.py", "validation/*.py")
        for line in (ROOT / path).read_text(encoding="utf-8").splitlines()
        if writes.search(line) and "lambda place" not in line and "os.devnull" not in line
    }
    assert places == {
        "calibration/measurement.py", "sim/canvas.py", "validation/job/launch.py", "validation/job/rank.py", "validation/steps.py",
    }  # fmt: skip


def test_a_name_stands_for_a_whole_file(tmp_path):
    path = tmp_path / "answer.txt"
    path.write_text("old")

    def fail(place):
        place.write_text("half")
        assert path.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(path, fail)
    assert [each.name for each in tmp_path.iterdir()] == ["answer.txt"]
    path.chmod(0o640)
    write_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)


def test_whatever_comes_in_is_answered_or_refused():
    asked = "--inputs 8 --seconds 100 --seed 7 --workers 1"
    command = [sys.executable, "-m", "tests.fuzz", *asked.split()]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert " 0 faults" in found.stdout
