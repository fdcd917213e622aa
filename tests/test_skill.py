"""SKILL.md: every command of its table runs, and every key that it names is in what comes out."""

import json
import re
import shlex
from pathlib import Path

import pytest
from rows import mostly_thorough
from typer.testing import CliRunner

from sim.cli import app
from sim.schedules import schedule_names

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SKILL.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split(" | ") for line in TEXT.splitlines() if re.match(r"\| .+ \| `", line)]
SMALL = ROOT / "scenarios" / "megatron-2021" / "1.7b.yaml"
LOG = ROOT / "tests" / "foreign" / "logs" / "megatron.log"
RL = ROOT / "scenarios" / "qwen3-30b-a3b-rl-32-h100.yaml"
SHORTER = {
    "shortest MODEL --cluster C --tokens 15T --gpus 256..32768": "shortest gpt-1.7b --cluster selene --tokens 10B --gpus 64",
    "rl S": f"rl {shlex.quote(str(RL))}",
    "--straggler 1.2@rank3": "--straggler 1.2@rank0",
    "compare A B": f"compare {SMALL} {ROOT / 'scenarios' / 'megatron-2021' / '3.6b.yaml'}",
    "topology C": "topology selene",
    "check LOG S": f"check {LOG} {ROOT / 'scenarios' / 'korthikanti-2022' / '22b-selective.yaml'} -s cluster.node=dgx-h100 -s profile=",
}
"""Words of a command that stand for something else here, or ask for less."""
ELSEWHERE = ("anchor", "validate")
"""Verbs that tests of their own run with --json."""
LONG = ("How many GPUs finish by a deadline?", "How fast could it be trained at all?")
"""Questions that search many sizes: in the thorough form alone, as tests/scaling asks them of less."""


def keys(data):
    """Every key, however deep."""
    if isinstance(data, dict):
        return set(data).union(*map(keys, data.values()))
    return set().union(*map(keys, data)) if isinstance(data, list) else set()


@pytest.fixture
def anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    "row", mostly_thorough(ROWS, [row for row in ROWS if row[0].strip() not in LONG]), ids=lambda row: row[0].strip()
)
def test_commands_of_the_table_give_the_keys_it_names(row):
    line = re.search(r"`([^`]+)`", row[1])[1]
    if line.startswith(ELSEWHERE):
        pytest.skip("tests/calibration and tests/validation")
    for text, less in SHORTER.items():
        line = line.replace(text, less)
    words = [str(SMALL) if word == "S" else word for word in shlex.split(line)]
    if words[0] == "compare-schedules":
        words += ["--schedules", "1f1b,interleaved"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = keys(json.loads(result.stdout))
    named = [re.sub(r"\[\d*\]", "", word).split(".") for word in re.findall(r"`([a-z_]+[a-z_.\[\]0-9]*)`", row[2])]
    assert not [name for path in named for name in path if name not in found]


def test_its_scenario_is_answered_and_its_words_exist():
    question = re.search(r"<<'YAML'\n(.*?)^YAML", TEXT, re.DOTALL | re.MULTILINE)[1]
    result = CliRunner().invoke(app, ["estimate", "-", "--json"], input=question)
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    named = re.findall(r"^\d\. .*?(?=^\d\. |^## )", TEXT, re.DOTALL | re.MULTILINE)
    causes = {word for part in named for word in re.findall(r"`([a-z]+_[a-z_]+)`", part)}
    assert causes <= keys(answer) | {"step_time_interval_s"}, causes - keys(answer)
    assert "interleaved" in schedule_names()
