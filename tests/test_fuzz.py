"""A few damaged inputs through every verb; `python -m tests.fuzz` tries thousands."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_whatever_comes_in_is_answered_or_refused():
    asked = "--inputs 8 --seconds 100 --seed 7 --workers 1"
    command = [sys.executable, "-m", "tests.fuzz", *asked.split()]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert " 0 faults" in found.stdout
