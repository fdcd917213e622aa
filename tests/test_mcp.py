"""What assistants use: `flopcast mcp`, asked by the SDK's own client, and SKILL.md, whose commands run and whose keys come out."""

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from rows import mostly_thorough
from typer.testing import CliRunner

from sim import estimate, load_scenario
from sim.cli import app
from sim.commands import mcp as ours
from sim.errors import SpecError
from sim.files import shipped_scenarios
from sim.schedules import schedule_names

NAME = "megatron-2021/1.7b"
FILE = f"scenarios/{NAME}.yaml"


def ask(server, calls):
    """(names of the tools, each call's answer or the error in words)."""
    client = pytest.importorskip("mcp").Client

    async def talk():
        async with client(server) as there:
            names = {tool.name: tool.description for tool in (await there.list_tools()).tools}
            answers = [await there.call_tool(name, arguments) for name, arguments in calls]
        return names, [
            json.loads(each.content[0].text) if not each.is_error else each.content[0].text for each in answers
        ]

    return asyncio.run(talk())


def test_tools_answer_with_the_same_json():
    pytest.importorskip("mcp")
    own = load_scenario(FILE)
    text = shipped_scenarios()[FILE].read_text()
    names, answers = ask(
        ours.server(),
        [
            ("estimate", {"scenario": text, "overrides": ["plan.recompute=none"]}),
            ("estimate", {"scenario": "1.7b"}),
            ("search", {"scenario": "1.7b", "top": 2}),
            ("train", {"scenario": FILE, "tokens": "300B"}),
            ("plan", {"model": "llama3-8b", "gpus": 16, "gpu": "h100", "tokens": "1T", "memory_limit": "60 GB"}),
            ("finetune", {"model": "qwen2.5-7b", "samples": "50k", "gpu": "h100", "gpus": 1, "lora": "8"}),
            ("check", {"log": "1.7b", "measured": ["9.0 s", "6.6 s", "6.7 s", "6.6 s"]}),
            ("presets", {"kind_of_preset": "clusters"}),
            ("fields", {"which": "plan.tp"}),
            ("estimate", {"scenario": "1.8b"}),
            ("estimate", {"scenario": "1.7b", "overrides": ["plan.tp=7"]}),
        ],
    )
    changed, plain, found, run, planned, tuned, checked, presets, fields, unknown, wrong = answers
    assert set(names) == {"estimate", "search", "plan", "finetune", "train", "check", "presets", "fields"}
    assert all(names.values())
    assert plain == json.loads(json.dumps(estimate(own).to_dict()))
    assert changed["plan"]["recompute"] == "none"
    assert len(found["best"]) == 2
    assert run["tokens"] == 300e9
    assert planned["training"]["tokens"] == 1e12
    assert planned["memory"]["largest_bytes"] < 60e9
    assert tuned["fits"]
    assert (checked["verdict"], checked["log"]["warm_up"]) == ("slow", 1)
    assert "selene" in presets["clusters"]
    assert "Tensor" in fields["answer"][0]["meaning"]
    assert "did you mean '1.7b'" in unknown
    assert "must divide" in wrong


def test_it_starts_as_a_program():
    mcp = pytest.importorskip("mcp")
    program = mcp.stdio_client(mcp.StdioServerParameters(command=sys.executable, args=["-m", "sim", "mcp"]))
    names, (answer,) = ask(program, [("estimate", {"scenario": "1.7b"})])
    assert "estimate" in names
    assert answer["step_time_s"] == estimate(load_scenario(FILE)).step_time_s


def test_without_the_sdk_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    with pytest.raises(SpecError, match=r"pip install 'flopcast\[mcp\]'"):
        ours.server()


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
