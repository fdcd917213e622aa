"""Scenarios without a plan: a search finds one, and nothing else passes it over."""

import re
import shlex

import pytest
from rows import mostly_thorough
from typer.testing import CliRunner

from sim import build_scenario, estimate, search
from sim.cli import app
from sim.errors import SpecError
from sim.specs.writing import scenario_yaml
from sim.specs.yaml12 import parse_yaml

OPEN = """
model: llama3-8b
cluster: {node: dgx-h100, num_nodes: 2, nvlink_domain_gpus: 8}
training: {global_batch_size: 64, sequence_length: 4096}
"""


@pytest.mark.parametrize("plan", mostly_thorough(["", "plan: {}", "plan:"], ("",)))
def test_a_search_finds_the_plan_that_is_not_given(plan, tmp_path):
    scenario = build_scenario(parse_yaml(OPEN + plan, "open"))
    assert scenario.is_open
    with pytest.raises(SpecError, match="has no plan: flopcast search finds the best"):
        estimate(scenario)
    best = search(scenario, top=1).best[0]
    assert not best.scenario.is_open
    assert best.answer.num_gpus == scenario.cluster.num_gpus == 16
    assert not build_scenario(parse_yaml(scenario_yaml(best.scenario), "again")).is_open
    assert not scenario.replace(plan=scenario.plan).is_open
    assert build_scenario(parse_yaml(OPEN, "open"), ["plan.dp=16"]).plan.dp == 16
    path = tmp_path / "open.yaml"
    path.write_text(OPEN + plan)
    run = CliRunner().invoke(app, ["estimate", str(path)])
    assert run.exit_code == 0, run.output
    assert "on 16 GPUs (flopcast search)" in run.output
    assert "Would help" not in run.output
    found = CliRunner().invoke(app, ["search", str(path), "--gpus", "8", "--top", "1"])
    assert found.exit_code == 0, found.output
    assert "own plan:" not in found.output
    assert "it has none" in str(CliRunner().invoke(app, ["search", str(path), "--why", "own"]).exception)


def test_the_search_of_a_faster_plan_can_be_typed(scenarios):
    """On as many GPUs as the answer has, also where the file's own plan has others, or more than there are."""
    file = str(scenarios / "gpt3-175b-4096-a100.yaml")
    smaller = ["-s", "cluster.node=dgx-h100", "-s", "cluster.num_nodes=64", "-s", "profile=h100"]
    for changed, gpus in (([], 2048), (smaller, 512)):
        shown = CliRunner().invoke(app, ["estimate", file, *changed, "-s", f"plan.dp={gpus // 128}"]).output
        said = " ".join(shown.split())
        faster = re.search(r"Would help a plan of (\S+ s),.*?flopcast (search .*? --gpus \d+)", said)
        found = CliRunner().invoke(app, [*shlex.split(faster[2]), "--top", "1"])
        assert found.exit_code == 0
        assert f"the best plan takes {faster[1]}" in " ".join(found.output.split())
        assert f"--gpus {gpus}" in faster[2]


def test_another_tool_s_file_names_the_way_in(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}')
    error = str(CliRunner().invoke(app, ["estimate", str(path)]).exception)
    assert "has no section of a scenario" in error
    assert f"flopcast import {path}" in error
