"""`flopcast mcp`, asked by the SDK's own client: in this process, and started as programs start it."""

import asyncio
import json
import sys

import pytest

from sim import estimate, load_scenario
from sim.commands import mcp as ours
from sim.errors import SpecError
from sim.files import shipped_scenarios

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
