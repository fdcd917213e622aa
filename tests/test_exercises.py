"""The diffs of CONTRIBUTING: exercises apply and do what they say, and what those of commits add still stands in the files."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFFS = re.findall(r"^```diff\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE)
ZERO_3 = {
    "cluster": "ethernet-25", "plan.tp": 1, "plan.pp": 1, "plan.dp": 1024, "plan.zero_stage": 3, "plan.num_chunks": 1,
    "plan.schedule": "1f1b", "plan.microbatch_size": 1, "plan.sequence_parallel": False,
    "training.global_batch_size": 1024,
}  # fmt: skip
OF_COMMITS = re.findall(r'^```diff title="(\w+: [^"]+)"\n(.*?)^```$', CONTRIBUTING, re.DOTALL | re.MULTILINE)
EXERCISES = {
    "fused_residual_norm": {},
    "quantised_gathers": ZERO_3,
    "muon_all_to_all": {"training.optimizer": "muon", "plan.zero_stage": 1},
}
"""Field of the stack -> settings of a scenario in which it matters."""
TIMES = """
import json, sys
from sim import estimate, load_scenario
path, field, settings = json.loads(sys.argv[1])
steps = [estimate(load_scenario(path, [*settings, f"stack.{field}={on}"])).step_time_s for on in ("false", "true")]
print(json.dumps([*steps, estimate(load_scenario(path, settings)).step_time_s]))
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="diffs are applied by git")
@pytest.mark.parametrize(
    ("field", "diff"),
    [pytest.param(field, diff, marks=[pytest.mark.thorough] * (field != "quantised_gathers"))
     for field, diff in zip(EXERCISES, DIFFS, strict=True)],
    ids=EXERCISES,
)  # fmt: skip
def test_a_mechanism_is_a_field_and_one_place(field, diff, tmp_path):
    shutil.copytree(ROOT / "sim", tmp_path / "sim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "scenarios", tmp_path / "scenarios")
    subprocess.run(["git", "apply"], input=diff, text=True, cwd=tmp_path, check=True)
    changed = re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE)
    assert len(changed) == 2
    assert "sim/specs/stack.py" in changed
    settings = [f"{name}={json.dumps(value)}" for name, value in EXERCISES[field].items()]
    asked = json.dumps(["scenarios/gpt3-175b-1024-a100.yaml", field, settings])
    command = [sys.executable, "-c", TIMES, asked]
    off, on, default = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert on < off == default
    if field == "quantised_gathers":
        said = re.search(r"takes ([\d.]+) s a step instead of ([\d.]+)\.\n", CONTRIBUTING)
        assert said.groups() == (f"{on:.1f}", f"{off:.1f}")


@pytest.mark.parametrize(("title", "diff"), OF_COMMITS, ids=[title for title, _ in OF_COMMITS])
def test_what_a_commit_added_is_still_there(title, diff):
    lines: list[str] = []
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            path = line.removeprefix("+++ b/")
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        elif line.strip() != "…":  # lines that are left out
            assert line[1:] in lines, f"{title}: {path} no longer has {line[1:]!r}: show another diff"


def test_each_kind_of_addition_is_shown_by_a_diff():
    assert len(OF_COMMITS) >= 4
