"""What late gradients cost: laws of the range, delayed SGD on noisy quadratics beside it, and the commands."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sim import SpecError, estimate, load_scenario
from sim.cli import app
from sim.scaling.run import goal_of
from sim.scaling.staleness import _MODELS, Staleness, staleness_of
from sim.scaling.training import train

SMALL = Path(__file__).parents[2] / "scenarios" / "megatron-2021" / "39.1b.yaml"
PIPELINE = ["plan.pp=4", "plan.dp=16", "plan.microbatch_size=2", "plan.schedule=pipedream_2bw"]
GOAL = goal_of(1e9, tokens=20e9, critical_batch=1e6)
delays, batches = st.integers(0, 64), st.floats(1e2, 1e10)


def ends(delay, batch, updates=1.0):
    return tuple(float(GOAL.tokens(end)) for end in Staleness(_MODELS["delayed-sgd"], delay, updates).batches(batch))


@given(delays, batches)
def test_the_range_begins_with_no_loss_and_ends_with_that_of_waiting(delay, batch):
    least, most = ends(delay, batch)
    assert least == float(GOAL.tokens(batch))
    # Steps: the noise's as before, the least ones once for each update that a gradient is late, and once more.
    assert most / batch == pytest.approx(GOAL.least_steps * (1 + delay) + GOAL.min_tokens / batch)
    assert least <= most <= (1 + delay) * least * (1 + 1e-12)
    assert most <= ends(delay + 1, batch)[1]
    if not delay:
        assert least == most


@given(delays)
def test_delay_costs_nothing_far_below_the_critical_batch_and_all_of_it_far_above(delay):
    least, most = ends(delay, 1e-6 * GOAL.critical_batch)
    assert most / least == pytest.approx(1, abs=1e-6 * (delay + 1))
    least, most = ends(delay, 1e6 * GOAL.critical_batch)
    assert most / least == pytest.approx(1 + delay, rel=1e-5)


def test_updates_of_a_part_of_the_batch_take_the_data_of_that_part():
    assert ends(0, 1e6, updates=4)[0] == float(GOAL.tokens(2.5e5))
    assert ends(3, 1e6, updates=4)[1] == float(GOAL.tokens(1e6))


@cache
def steps(delay, noise, rate):
    """Steps of SGD on a noisy quadratic, every gradient so late, until 2 % of the loss are left."""
    curvature = 1.0 / np.arange(1, 25)
    size = delay + 1
    advance = np.zeros((len(curvature), size, size))
    advance[:, 0, 0] = 1
    advance[:, 0, delay] -= rate * curvature
    advance[:, range(1, size), range(size - 1)] = 1
    moments, added = np.ones_like(advance), np.zeros_like(advance)
    added[:, 0, 0] = rate**2 * noise * curvature
    turned, first = advance.transpose(0, 2, 1), float(curvature.sum())
    for step in range(1, 1200):
        moments = advance @ moments @ turned + added
        loss = float((curvature * moments[:, 0, 0]).sum()) / first
        if loss <= 0.02:
            return step
        if loss > 100:
            break
    return np.inf


@pytest.mark.parametrize(("delay", "allowed"), [(1, 1.06), (3, 1.15)])
def test_delayed_sgd_on_noisy_quadratics_stays_near_the_range(delay, allowed):
    """Both with their best learning rate: late is between at once and waiting, up to a few per cent above."""
    rates = np.geomspace(0.02, 2.0, 30)
    costs = []
    for noise in (0.0, 0.03, 0.3):
        at_once, late = (min(steps(tau, noise, rate) for rate in rates) for tau in (0, delay))
        waiting = (1 + delay) * min(steps(0, noise / (1 + delay), rate) for rate in rates)
        assert at_once <= late <= allowed * waiting
        costs.append(late / at_once)
    assert costs == sorted(costs, reverse=True)  # the more noise, the less a delay matters
    assert costs[0] > 0.85 * (1 + delay)
    assert costs[-1] < 1 + 0.1 * delay


def test_a_run_says_nothing_of_it_unless_asked():
    scenario = load_scenario(SMALL, PIPELINE)
    plain = train(scenario, loss=2.2)
    asked = train(scenario, loss=2.2, staleness="delayed-sgd")
    assert (plain.late, plain.stale) == (None, None)
    assert "staleness" not in plain.to_dict()
    assert asked.run == plain.run
    assert asked.late is not None
    assert (asked.late.delay, asked.late.updates) == (1, 1)
    assert asked.stale is not None
    assert asked.stale.wall_s > asked.run.wall_s
    found = asked.to_dict()["staleness"]
    assert found["tokens"] == [asked.run.tokens, asked.stale.tokens]
    assert any("1 update a step late" in note for note in asked.assumptions)
    measured = train(scenario, loss=2.2, staleness="measured")
    assert measured.stale is not None
    assert measured.stale.tokens == measured.run.tokens


def test_an_update_after_every_micro_batch_is_a_smaller_batch_and_late_by_more():
    scenario = load_scenario(SMALL, [*PIPELINE[:-1], "plan.schedule=pipedream"])
    late = staleness_of("delayed-sgd", estimate(scenario).timeline)
    assert late is not None
    assert (late.delay, late.updates) == (3, scenario.num_microbatches)
    asked = train(scenario, loss=2.2, staleness="delayed-sgd")
    assert asked.run.tokens < train(scenario, loss=2.2).run.tokens
    assert staleness_of("delayed-sgd", estimate(load_scenario(SMALL)).timeline) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("train", str(SMALL), "--loss", "2.2", "--staleness-model", "delayed"), "did you mean 'delayed-sgd'"),
        (("train", str(SMALL), "--tokens", "1T", "--staleness-model", "measured"), "give --loss"),
        (("shortest", "gpt3-175b", "--cluster", "selene", "--staleness-model", "sgd"), "unknown staleness model 'sgd'"),
        (
            ("shortest", "gpt3-175b", "--cluster", "selene", "--ramp", "1/2, 1@10%", "--staleness-model", "measured"),
            "leave --ramp or --staleness-model out",
        ),
    ],
)
def test_what_cannot_be_asked_is_said(arguments, says):
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, SpecError)
    assert says in str(result.exception)


def test_shortest_adds_what_its_plans_take_without_a_flush():
    line = ["shortest", "gpt3-175b", "--cluster", "ethernet-25", "--loss", "2.0", "--gpus", "512"]
    line += ["--batches", "1024", "--no-layered"]
    plain = CliRunner().invoke(app, [*line, "--json"])
    asked = json.loads(CliRunner().invoke(app, [*line, "--staleness-model", "delayed-sgd", "--json"]).stdout)
    found = asked.pop("without_flush")
    assert {**json.loads(plain.stdout), "elapsed_s": 0} == {**asked, "elapsed_s": 0}
    assert (found["schedule"], found["delay"]) == ("pipedream_2bw", 1)
    least, most = found["days"]
    assert least < most < 2 * least
    assert found["tokens"][0] == pytest.approx(asked["fastest"]["tokens"])
    text = CliRunner().invoke(app, [*line, "--staleness-model", "delayed-sgd"], env={"COLUMNS": "200"}).stdout
    assert "No flush" in text
