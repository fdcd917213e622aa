"""The grid around a scenario's own plan: each point is the estimate of its overrides, or has the rule that it breaks."""

import pytest

from sim import estimate, load_scenario
from sim.errors import FlopcastError, SpecError
from sim.search.grid import NETWORK, own_axes, own_value, price_grid, read_axes, setting

SCENARIO = "gpt3-175b-1024-a100.yaml"
EXPERTS = "qwen3-235b-a22b-256-h100.yaml"


@pytest.fixture(scope="module")
def grid(scenarios):
    scenario = load_scenario(scenarios / SCENARIO)
    return price_grid(scenario, own_axes(scenario, 80))


def test_every_sampled_point_is_the_estimate_of_its_overrides(grid, scenarios):
    for point in grid.points[::7]:
        settings = grid.overrides(point)
        if point.answer is None:
            with pytest.raises(FlopcastError) as mistake:
                estimate(load_scenario(scenarios / SCENARIO, settings))
            assert point.ruled_out.splitlines()[0] in str(mistake.value)
            continue
        answer, found = estimate(load_scenario(scenarios / SCENARIO, settings)), point.answer
        assert found.step_time_s == pytest.approx(answer.step_time_s, rel=1e-9)
        assert found.step_time_interval_s == pytest.approx(answer.step_time_interval_s, rel=1e-9)
        assert found.total_flop_per_s == pytest.approx(answer.total_flop_per_s, rel=1e-9)
        assert found.memory_bytes == pytest.approx(answer.largest.total, rel=1e-9)
        assert sum(found.memory.values()) == pytest.approx(found.memory_bytes, rel=1e-9)
        assert found.seconds == pytest.approx(answer.breakdown.seconds, rel=1e-9, abs=1e-12)
        assert (found.overfull == "") == answer.fits


def test_the_scenario_itself_is_a_point_without_overrides(grid):
    own = grid.at(grid.own)
    assert grid.overrides(own) == []
    assert own.answer.step_time_s == estimate(grid.scenario).step_time_s
    for number, axis in enumerate(grid.axes):
        along = grid.along(number)
        assert [point.values[number] for point in along] == list(axis.values)
        assert along[grid.own[number]] is own


def test_gpus_stay_as_many_and_what_follows_is_said(grid):
    tp = next(number for number, axis in enumerate(grid.axes) if axis.path == "plan.tp")
    half = grid.along(tp)[grid.own[tp] - 1]
    assert grid.overrides(half) == ["plan.tp=4", "plan.dp=16"]


def test_without_tensor_parallelism_there_is_no_sequence_parallelism(scenarios):
    scenario = load_scenario(scenarios / EXPERTS)
    assert scenario.plan.sequence_parallel
    axes = read_axes(scenario, ["plan.tp=1,2"])
    first = price_grid(scenario, axes).points[0]
    assert "plan.sequence_parallel=false" in first.follows
    assert first.answer is not None


def test_what_cannot_exist_has_its_rule(scenarios):
    scenario = load_scenario(scenarios / SCENARIO)
    grid = price_grid(scenario, read_axes(scenario, ["plan.pp=7,64", "training.global_batch_size=1537"]))
    said = [point.ruled_out for point in grid.points if point.answer is None]
    assert any("does not divide 1,024 GPUs" in text for text in said)
    assert any("must divide the 96 layers" in text for text in said)
    assert any("must be a multiple of plan.dp" in text for text in said)
    assert len(said) == len(grid.points) - 1


def test_axes_stay_within_what_they_may(scenarios):
    scenario = load_scenario(scenarios / SCENARIO)
    axes = {axis.path: axis for axis in own_axes(scenario, 500)}
    assert max(axes["plan.tp"].values) <= scenario.cluster.nvlink_domain_gpus
    assert NETWORK in axes
    for axis in axes.values():
        assert own_value(scenario, axis) in axis.values
    one = load_scenario(scenarios / SCENARIO, ["plan.tp=8", "plan.pp=1", "plan.dp=1", "cluster.num_nodes=1"])
    assert NETWORK not in {axis.path for axis in own_axes(one)}


def test_settings_say_values_exactly(scenarios):
    scenario = load_scenario(scenarios / SCENARIO)
    (axis,) = read_axes(scenario, [f"{NETWORK}=100 Gbit/s"])
    assert setting(axis, axis.values[0]) == f"{NETWORK}=100 Gbit/s"
    assert setting(axis, 12345678901.5) == "cluster.inter_node_bandwidth_bytes_per_s=12345678901.5"


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["gpus=1,2"], "follows from the degrees"),
        (["plan.dp=1,2"], "follows from the degrees"),
        (["plan.tp=1,2", "plan.tp=4"], "named twice"),
        (["plan.schedule=1f1b"], "is a choice"),
        (["plan.tp"], "--slider 'plan.tp' must look like"),
        (["training.tokens_=1"], "no number"),
        (["training.expert_capacity_factor=1,2"], "not set"),
    ],
)
def test_axes_that_cannot_be(scenarios, texts, says):
    with pytest.raises(SpecError, match=says):
        read_axes(load_scenario(scenarios / SCENARIO), texts)


def test_a_grid_has_an_end(scenarios):
    scenario = load_scenario(scenarios / SCENARIO)
    axes = read_axes(scenario, ["training.global_batch_size=1..4096:60", f"{NETWORK}=100..800Gbit/s:40"])
    with pytest.raises(SpecError, match="combinations are more than 1,500"):
        price_grid(scenario, axes)
