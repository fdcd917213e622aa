"""The numbers of a scenario by path: all of them are found, and can be set without touching the rest."""

from pathlib import Path

import pytest
from rows import rows

from sim.errors import SpecError
from sim.search.axes import find_field, numeric_fields, with_numbers
from sim.specs import load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@rows("file", ["gpt-1t-3072-a100", "llama3-405b-16384-h100"])
def test_setting_every_number_to_what_it_is_changes_nothing(file):
    scenario = load_scenario(SCENARIOS / f"{file}.yaml")
    assert with_numbers(scenario, {}) == scenario
    given = {field.full_path: field.value for field in numeric_fields(scenario).values() if field.value is not None}
    assert len(given) > 60
    assert with_numbers(scenario, given) == scenario


def test_numbers_of_presets_are_reached_and_what_follows_from_them_follows():
    scenario = load_scenario(SCENARIOS / "gpt3-175b-1024-a100.yaml")
    node = scenario.cluster.node
    faster = with_numbers(scenario, {"cluster.node.nic_bandwidth_bytes_per_s": 2 * node.nic_bandwidth_bytes_per_s})
    before = scenario.cluster.inter_node_bandwidth_bytes_per_s
    assert faster.cluster.inter_node_bandwidth_bytes_per_s == pytest.approx(2 * before)
    wider = with_numbers(scenario, {"model.hidden_size": 2 * scenario.model.hidden_size})
    assert wider.model.intermediate_size == 2 * scenario.model.intermediate_size
    # A value of the scenario's own stands, whatever it once followed from.
    own = with_numbers(scenario, {"cluster.inter_node_bandwidth_bytes_per_s": 1e9})
    same = with_numbers(own, {"cluster.node.nic_bandwidth_bytes_per_s": 2 * node.nic_bandwidth_bytes_per_s})
    assert same.cluster.inter_node_bandwidth_bytes_per_s == 1e9


def test_what_a_number_is():
    scenario = load_scenario(SCENARIOS / "gpt3-175b-1024-a100.yaml")
    fields = numeric_fields(scenario)
    memory = fields["cluster.node.gpu.memory"]
    assert (memory.full_path, memory.unit, memory.whole) == ("cluster.node.gpu.memory_bytes", "bytes", False)
    assert fields["cluster.num_nodes"].whole
    assert fields["cluster.node.gpu.peak.fp16"].value == 312e12
    assert fields["cluster.network_efficiency"].value is None  # left open, and can be set
    assert find_field(scenario, "cluster.node.gpu.memory_bytes") == memory
    # Choices, names, switches and what a profile says of its fit are no numbers of a question.
    assert not any(path.endswith(("overlap_p2p", "routing", "name", "precision")) for path in fields)
    assert not any(path.startswith(("profile.residuals", "profile.unseen", "plan.")) for path in fields)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("cluster.inter_node_bandwith", "did you mean 'cluster.inter_node_bandwidth'"),
        ("cluster.gpu.memory", "did you mean 'cluster.node.gpu.memory'"),
        ("cluster.node.gpu.peak", "is a section; its numbers are cluster.node.gpu.peak.bf16, "),
        ("cluster.node.gpu", "is a section"),
        ("training.precision", "no number 'training.precision'"),
        ("nonsense", "flopcast fields lists them all"),
    ],
)
def test_typos_are_answered(path, says):
    with pytest.raises(SpecError, match=says):
        find_field(load_scenario(SCENARIOS / "gpt3-175b-1024-a100.yaml"), path)


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
    assert find_field(scenario, field).value == value
