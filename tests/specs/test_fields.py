"""The numbers of a scenario by path: all of them are found, and can be set without touching the rest."""

from pathlib import Path

import pytest
from rows import rows

from sim.specs import load_scenario
from sim.specs.writing import overridden

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
