"""Files of scenarios: presets by their names and what differs, read again the same; and numbers as people write them."""

from pathlib import Path

import pytest
from random_scenarios import scenario_of
from rows import forms, rows

from sim import load_scenario
from sim.errors import FlopcastError
from sim.specs import build_scenario
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
