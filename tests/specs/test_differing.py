"""Fields in which scenarios differ: those and no others, of as many scenarios as there are."""

from sim import load_scenario
from sim.specs.writing import differing_fields

SCENARIO = "gpt3-175b-1024-a100.yaml"


def test_only_what_differs_is_told(scenarios):
    given = [[], ["plan.tp=4", "plan.dp=16"], ["cluster.inter_node_bandwidth=100 Gbit/s", "name=other"]]
    found = differing_fields([load_scenario(scenarios / SCENARIO, each) for each in given])
    assert found["plan.tp"] == (8, 4, 8)
    assert found["plan.dp"] == (8, 16, 8)
    assert found["cluster.inter_node_bandwidth_bytes_per_s"] == (25e9, 25e9, 12.5e9)
    assert set(found) == {"plan.tp", "plan.dp", "cluster.inter_node_bandwidth_bytes_per_s"}


def test_the_same_twice_differs_in_nothing(scenarios):
    one = load_scenario(scenarios / SCENARIO)
    assert differing_fields([one, one.replace(name="another", description="in words")]) == {}


def test_of_profiles_the_name_or_the_values(scenarios):
    one = load_scenario(scenarios / SCENARIO)
    tuned = load_scenario(scenarios / SCENARIO, ["profile.nvlink.hop_latency=9 us"])
    assert list(differing_fields([one, tuned])) == ["profile.nvlink.hop_latency_s"]
    named = one.replace(profile=tuned.profile.replace(name="mine"))
    assert differing_fields([one, named]) == {"profile": ("a100", "mine")}
