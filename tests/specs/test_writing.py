"""Files of scenarios: presets by their names and what differs, numbers as people write them, and plans that are left open."""

import re
import shlex
from pathlib import Path

import pytest
from random_scenarios import scenario_of
from rows import forms, mostly_thorough, rows
from typer.testing import CliRunner

from sim import build_scenario, estimate, load_scenario, search
from sim.cli import app
from sim.errors import FlopcastError, SpecError
from sim.specs.writing import differing_fields, overridden, scenario_yaml, whole_yaml
from sim.specs.yaml12 import parse_yaml


def same(scenario, text):
    again = build_scenario(parse_yaml(text, "again"))
    return again.model_copy(update={"assumed": scenario.assumed}) == scenario


def test_shipped_scenarios_are_written_shortly(scenarios):
    written = 0
    for path in scenarios.rglob("*.yaml"):
        try:
            scenario = load_scenario(path)
        except FlopcastError:
            continue  # described runs
        text = scenario_yaml(scenario)
        assert same(scenario, text), path
        assert same(scenario, whole_yaml(scenario)), path
        assert len(text.splitlines()) < 90, path
        written += 1
    assert written > 20


@forms("seeds", range(12), range(40))
@rows("framework", ["megatron-lm", "torchtitan", "deepspeed"])
def test_random_scenarios_come_back(framework, seeds):
    for seed in seeds:
        scenario = scenario_of(framework, seed)
        assert same(scenario, scenario_yaml(scenario)), seed


def test_what_a_framework_would_set_is_said(scenarios):
    """A plan without ZeRO under a framework that shards where a file is silent: the file says zero_stage: 0."""
    scenario = load_scenario(scenarios / "gpt3-175b-1024-a100.yaml", ["stack={framework: nemo}", "plan.zero_stage=0"])
    text = scenario_yaml(scenario)
    assert "zero_stage: 0" in text
    assert same(scenario, text)
    changed = load_scenario(
        scenarios / "gpt3-175b-1024-a100.yaml", ["cluster.node.gpu.memory=96 GB", "stack.nvls=false"]
    )
    assert same(changed, scenario_yaml(changed))
    assert "preset: a100-sxm-80gb" in scenario_yaml(changed) or "memory" in scenario_yaml(changed)


def test_scenarios_differ_in_fields_or_in_a_profile_s_name(scenarios):
    file, faster = scenarios / "gpt3-175b-1024-a100.yaml", "cluster.inter_node_bandwidth=100 Gbit/s"
    given = ([], ["plan.tp=4", "plan.dp=16"], [faster, "name=other"], ["profile.nvlink.hop_latency=9 us"])
    one, cut, slow, tuned = (load_scenario(file, each) for each in given)
    assert differing_fields([one, cut, slow]) == {
        "plan.tp": (8, 4, 8), "plan.dp": (8, 16, 8), "cluster.inter_node_bandwidth_bytes_per_s": (25e9, 25e9, 12.5e9),
    }  # fmt: skip
    assert differing_fields([one, one.replace(name="another", description="in words")]) == {}
    assert list(differing_fields([one, tuned])) == ["profile.nvlink.hop_latency_s"]
    assert differing_fields([one, one.replace(profile=tuned.profile.replace(name="mine"))]) == {
        "profile": ("a100", "mine")
    }


SCENARIOS = Path(__file__).parents[2] / "scenarios"


@rows("file", ["gpt-1t-3072-a100", "llama3-405b-16384-h100"])
def test_overriding_nothing_changes_nothing(file):
    scenario = load_scenario(SCENARIOS / f"{file}.yaml")
    assert overridden(scenario, []).replace(description=scenario.description) == scenario


@rows(("overrides", "said"), [(["plan.tp=4"], 1), (["plan.tp=4", "plan.dp=16"], 0), (["plan.tp=4", "plan.dp=8"], 0)])
def test_degrees_that_change_the_number_of_gpus_say_so_unless_replicas_were_set(overrides, said):
    told = "the plan has 512 GPUs, and the file's has 1,024: plan.tp changed it, and plan.dp did not"
    assert load_scenario(SCENARIOS / "gpt3-175b-1024-a100.yaml", overrides).assumed.count(told) == said


def test_what_follows_from_a_number_that_is_overridden_follows():
    scenario = load_scenario(SCENARIOS / "gpt3-175b-1024-a100.yaml")
    before = scenario.cluster.inter_node_bandwidth_bytes_per_s
    faster = overridden(scenario, ["cluster.node.nic_bandwidth=400 Gbit/s"])
    assert faster.cluster.inter_node_bandwidth_bytes_per_s == pytest.approx(2 * before)
    # A value of the scenario's own stands, whatever it once followed from.
    own = overridden(scenario, ["cluster.inter_node_bandwidth=8 Gbit/s"])
    same = overridden(own, ["cluster.node.nic_bandwidth=400 Gbit/s"])
    assert same.cluster.inter_node_bandwidth_bytes_per_s == 1e9


@rows(
    ("field", "said", "value"),
    [
        ("training.sequence_length", "4k", 4096),
        ("training.sequence_length", "0.5k", 512),
        ("training.packed_length", "1k", 1024),
        ("model.max_sequence_length", "1M", 2**20),
        ("training.global_batch_size", "2k", 2048),
        ("model.vocab_size", "128k", 128_000),
        ("cluster.num_nodes", "2_0k", 20_000),
        *(("training.tokens", said, tokens) for said, tokens in (("15T", 15e12), ("300e9", 300e9), (1.4e12, 1.4e12), ("1_000B", 1e12))),
    ],
)  # fmt: skip
def test_numbers_are_written_as_people_do(field, said, value):
    """The k of a length in tokens and of a batch is 1,024, every other one is 1,000."""
    given = ["training.sequence_length=4096", "model.max_sequence_length=8192"]
    scenario = load_scenario("scenarios/megatron-2021/1.7b.yaml", [*given, "plan.dp=1", f"{field}={said}"])
    section, name = field.split(".")
    assert getattr(getattr(scenario, section), name) == value


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
