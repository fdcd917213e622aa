"""`flopcast check`: what a log of a scenario's own steps is told, and of steps that are not its own."""

import json
import shlex
from pathlib import Path

import pytest
from rows import rows
from typer.testing import CliRunner

from sim import SpecError, estimate, load_scenario
from sim.check import check, measure
from sim.cli import app

ROOT = Path(__file__).parents[1]
SCENARIO = "scenarios/korthikanti-2022/22b-selective.yaml"
LOG = ROOT / "tests" / "foreign" / "logs" / "megatron.log"
LARGE, EXPERTS = "scenarios/gpt3-175b-1024-a100.yaml", "scenarios/qwen3-235b-a22b-256-h100.yaml"
STEPS = [1 + 0.004 * (step % 5 - 2) for step in range(60)]
"""Times of steps over their median."""


@pytest.fixture(scope="module")
def own():
    return estimate(load_scenario(SCENARIO)).step_time_s


def run_of(seconds, steps=STEPS, scenario=SCENARIO):
    return check(lambda changes: load_scenario(scenario, changes), measure([seconds * each for each in steps]))


def test_its_own_estimate_is_normal_and_neither_twice_nor_half_is(own):
    assert (run_of(own).verdict, run_of(own).causes) == ("normal", ())
    slow, fast = run_of(2 * own), run_of(own / 1.8)
    assert (slow.verdict, fast.verdict) == ("slow", "fast")
    for found in (slow, fast):
        assert 0 < len(found.causes) <= 3
        likely = [cause.probability for cause in found.causes]
        assert likely == sorted(likely, reverse=True)
        assert 0 < sum(likely) <= 1
        assert all((cause.step_times_s[0] > own) == (found is slow) for cause in found.causes)


UNFUSED = ["stack.fused_norm=false", "stack.fused_bias_activation=false", "stack.fused_softmax=false"]


@rows(
    "scenario, changes, name",
    [
        (SCENARIO, ["plan.recompute=full"], "more recomputation than stated"),
        (LARGE, ["plan.recompute=selective"], "less recomputation than stated"),
        (LARGE, UNFUSED, "kernels that are not fused"),
        (EXPERTS, ["stack.bound_to_cpus=false"], "a host that launches kernels too slowly"),
    ],
)
def test_a_run_that_is_another_than_stated_is_found_out(scenario, changes, name):
    found = run_of(estimate(load_scenario(scenario, changes)).step_time_s, scenario=scenario)
    assert found.verdict == ("fast" if name.startswith("less") else "slow")
    assert found.causes[0].name == name
    assert found.explained(found.causes[0]) == pytest.approx(1)


def test_stalls_are_seen_in_the_log_itself(own):
    """Half of the steps take as long as expected, half of them 2.2 times: a data loader that does not keep up."""
    uneven = run_of(own, [1.0, 2.2] * 30 + [2.2] * 5)
    assert uneven.verdict == "slow"
    assert uneven.measured.stalls
    assert (uneven.causes[0].name, uneven.causes[0].changes) == ("stalls", ())
    assert uneven.explained(uneven.causes[0]) == pytest.approx(1, abs=0.02)
    assert not run_of(2 * own).measured.stalls


def test_warm_up_evaluations_and_checkpoints_are_left_out():
    steps = [30.0, 4.0, *STEPS]
    steps[20], steps[40] = 9.0, 9.0
    measured = measure(steps)
    assert (measured.warm_up, measured.interrupted, measured.values) == (2, 2, 58)
    assert measured.seconds == pytest.approx(1, rel=0.005)
    regular = measure([1.6 if step % 10 == 9 else 1.0 for step in range(100)])
    assert (regular.every, regular.interrupted, regular.stalls) == (10, 0, True)
    stalling = measure([3.0 if step % 5 == 4 else 1.0 for step in range(100)])  # more than are taken for interruptions
    assert (stalling.every, stalling.interrupted, stalling.stalls) == (5, 0, True)
    assert measure([2.0]).seconds == measure([2.0, 2.0]).seconds == 2.0


def test_what_no_gpu_can_do_is_refused(own):
    with pytest.raises(SpecError, match=r"cannot be: 8,192 tokens .* the peak of one A100.*312 TFLOP/s in fp16"):
        run_of(own / 3)


def answer(*words):
    return CliRunner().invoke(app, ["check", *map(str, words)], env={"COLUMNS": "80"})


def test_a_time_by_hand_is_checked_as_a_log_is(own, tmp_path):
    """The step time alone has the verdict of a log of such steps; several count as a log's."""
    log = tmp_path / "run.csv"
    log.write_text("_step,step_time\n" + "".join(f"{step},{1.5 * own}\n" for step in range(9)), encoding="utf-8")
    of_log = json.loads(answer(log, SCENARIO, "--json").stdout)
    by_hand = json.loads(answer(SCENARIO, "--measured", f"{1.5 * own} s", "--json").stdout)
    for key in ("verdict", "causes", "next", "interval_s"):
        assert by_hand[key] == of_log[key]
    repeats = [word for factor in (1.5, 1, 1.02) for word in ("--measured", f"{factor * own} s")]
    found = json.loads(answer(SCENARIO, *repeats, "--json").stdout)
    assert (found["verdict"], found["log"]["values"], found["log"]["warm_up"]) == ("normal", 2, 1)
    assert found["measured_s"] == pytest.approx(1.01 * own)
    assert "leave one of them out" in str(answer(log, SCENARIO, "--measured", "1 s").exception)
    assert "no step time" in str(answer(SCENARIO, "--measured", "0 s").exception)


def test_json_has_the_command_that_anchors(tmp_path, monkeypatch):
    """Its two halves run as they are printed: the log becomes a scenario, and a profile is drawn to it."""
    monkeypatch.chdir(tmp_path)
    found = json.loads(
        answer(LOG, "--cluster", "selene", "--json", "-s", "stack.attention=flash", "-s", "stack.version=2023").stdout
    )
    assert (found["verdict"], found["source"], found["log"]["warm_up"]) == ("slow", "Megatron-LM", 1)
    assert ["stack.attention=math"] in [cause["set"] for cause in found["causes"]]
    for command in found["next"]:
        run = CliRunner().invoke(app, shlex.split(command)[1:])
        assert run.exit_code == 0, run.output
    assert (tmp_path / "mine.yaml").exists()
    like = estimate(load_scenario(SCENARIO, (), "mine.yaml")).step_time_s
    more = answer(SCENARIO, "--measured", f"{like} s", "--profile", "mine.yaml", "--json")
    again = json.loads(more.stdout)["next"][0]
    assert again.endswith("--profile mine.yaml -o mine-2.yaml")
    assert CliRunner().invoke(app, shlex.split(again)[1:]).exit_code == 0
