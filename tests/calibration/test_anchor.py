"""One measured step of one's own: the file that it makes, and every verb that takes it as it is printed."""

import json
import shlex
from pathlib import Path

import pytest
from rows import mostly_thorough
from typer.testing import CliRunner

from flopcast_calibration.from_runs import fit_runs
from flopcast_calibration.readers.training_runs import run_of
from sim import build_scenario, estimate, load_scenario
from sim.cli import app
from sim.errors import FlopcastError, SpecError
from sim.specs.yaml12 import load_yaml
from sim.units import show_time

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "scenarios" / "megatron-2021" / "1.7b.yaml"
KIN = ROOT / "scenarios" / "megatron-2021" / "3.6b.yaml"


@pytest.fixture(scope="module")
def anchored(tmp_path_factory):
    """A file drawn to a step a sixth longer than predicted, the printed line that uses it, and that step time. [s]"""
    out = tmp_path_factory.mktemp("my runs") / "mine.yaml"
    measured = 1.17 * estimate(load_scenario(SMALL)).step_time_s
    result = CliRunner().invoke(app, ["anchor", str(SMALL), "--measured", f"{measured} s", "-o", str(out)])
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if line.startswith("use it:"))
    return out, line.removeprefix("use it:").strip(), measured


def test_the_estimate_moves_to_what_was_measured_and_others_with_it(anchored):
    out, _, measured = anchored
    before, after = (estimate(load_scenario(SMALL, (), profile)).step_time_s for profile in (None, str(out)))
    assert before < 0.95 * after
    assert after == pytest.approx(measured, rel=0.05)
    kin = ROOT / "scenarios" / "megatron-2021" / "3.6b.yaml"
    assert estimate(load_scenario(kin, (), str(out))).step_time_s > 1.03 * estimate(load_scenario(kin)).step_time_s


@pytest.mark.parametrize("verb", mostly_thorough(["estimate", "search", "train", "report"], ("estimate",)))
def test_the_printed_line_runs_as_it_is_printed(verb, anchored, tmp_path, monkeypatch):
    _, line, _ = anchored
    words = shlex.split(line.replace("estimate", verb, 1))
    assert words[0] == "flopcast"
    more = {"report": ["-o", str(tmp_path / "page.html")], "train": ["--tokens", "1e9"]}.get(verb, [])
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*words[1:], *more])
    assert result.exit_code == 0, result.output


def test_the_file_stands_inside_a_scenario_and_what_is_stated_wins(anchored):
    out, _, _ = anchored
    data = load_yaml(SMALL)
    inside = build_scenario({**data, "profile": str(out)})
    assert inside.profile.name == "mine"
    assert any(line.startswith("stack.elementwise_rate") for line in inside.assumed)
    assert estimate(inside).step_time_s == estimate(load_scenario(SMALL, (), str(out))).step_time_s
    own = build_scenario({**data, "profile": str(out)}, ["stack.elementwise_rate=0.9"])
    assert own.stack.elementwise_rate == 0.9
    none = build_scenario({**{key: value for key, value in data.items() if key != "stack"}, "profile": str(out)})
    assert none.stack.name == "megatron-core"
    assert "no stack was named; 'megatron-core' is assumed" in none.assumed


def test_a_measurement_that_agrees_moves_next_to_nothing(scenarios):
    scenario = load_scenario(scenarios / "megatron-2021" / "1.7b.yaml")
    found = fit_runs([run_of(scenario, estimate(scenario).step_time_s)], ["gemm.max_efficiency"])
    assert abs(found.errors[0]) < 1e-3
    assert not found.parameters[0].moved


def run(*arguments):
    return CliRunner().invoke(app, ["anchor", *map(str, arguments)])


def test_runs_that_were_measured_are_remembered(anchored, tmp_path):
    """What a run was made of narrows the interval of itself most, and that of its kin; another stack's not."""
    out, _, _ = anchored
    (told,) = load_scenario(SMALL, (), str(out)).profile.provenance.measured
    assert told.name == "gpt-1.7b, 16-bit"
    assert sum(told.shares.values()) == pytest.approx(1.0, abs=1e-3)
    same, kin, plain = (
        estimate(load_scenario(path, (), profile))
        for path, profile in ((SMALL, str(out)), (KIN, str(out)), (SMALL, None))
    )
    width = [answer.step_time_interval_s[1] / answer.step_time_s for answer in (same, kin, plain)]
    assert 1.0 < width[0] <= width[1] < width[2]
    assert "after one run of your own" in same.interval_basis
    other = load_scenario(KIN, ["stack=pytorch"], str(out))
    assert not other.profile.provenance.measured
    again = ["anchor", str(KIN), "--profile", str(out), "--measured", "9 s", "-o", str(tmp_path / "second.yaml")]
    assert "drawn to runs before (gpt-1.7b, 16-bit)" in CliRunner().invoke(app, again).output
    assert any("they do not count as measured" in line for line in other.assumed)
    journal = ROOT / "calibration" / "data" / "h100.jsonl"
    fit = ["calibrate", "fit", str(journal), "--base", str(out), "-o", str(tmp_path / "fit.yaml")]
    assert "was fitted to training runs" in str(CliRunner().invoke(app, fit).exception)


def test_repeats_of_one_scenario_are_one_run(tmp_path):
    out = tmp_path / "mine.yaml"
    step_s = estimate(load_scenario(SMALL)).step_time_s
    times = [text for factor in (1.0, 1.1, 1.2) for text in ("--measured", f"{factor * step_s} s")]
    for scenarios in ([SMALL] * 3, [SMALL]):
        result = run(*scenarios, *times, "-o", out)
        assert result.exit_code == 0, result.output
        assert f"measured {show_time(1.1 * step_s)}" in result.output
        assert len(load_scenario(SMALL, (), str(out)).profile.provenance.measured) == 1


def test_what_values_cannot_explain_is_said_and_does_not_count(tmp_path):
    out = tmp_path / "mine.yaml"
    far = 20 * estimate(load_scenario(SMALL)).step_time_s
    result = run(SMALL, "--measured", f"{far} s", "-o", out)
    said = " ".join(result.output.split())
    assert "It changes nothing, as it is 20.00 times the prediction: further off than three standard deviations" in said
    assert "look at the causes below, at training.precision, training.global_batch_size" in said
    assert not [word for word in ("next:", "use it:", "profile:", "do not depend") if word in said]
    assert isinstance(result.exception, FlopcastError)
    assert f"nothing was learnt, so {out} was not written" in str(result.exception)
    assert not out.exists()
    told = json.loads(run(SMALL, "--measured", f"{far} s", "-o", out, "--json").stdout)
    assert (told["profile"], told["runs"][0]["too_far"], told["moved"]) == (None, True, [])


def test_a_run_that_should_not_have_fitted_is_said(tmp_path):
    """24 sequences of activations need 100 GB of 85: either the scenario or our account of memory is wrong."""
    path = ROOT / "scenarios" / "megatron-2021" / "39.1b.yaml"
    words = (path, "--measured", "18.9 s", "-s", "plan.microbatch_size=24", "-o", tmp_path / "mine.yaml")
    assert "the scenario needs 100 GB a GPU and has 85.1 GB, and yet it ran" in " ".join(run(*words).output.split())
    assert json.loads(run(*words, "--json").stdout)["does_not_fit"] == ["39.1b"]


def test_nothing_else_is_written_over(tmp_path):
    mine = tmp_path / "run.yaml"
    mine.write_text(SMALL.read_text(encoding="utf-8"), encoding="utf-8")
    result = run(mine, "--measured", "2 s", "-o", mine)
    assert "is there and is no profile" in str(result.exception)
    assert mine.read_text(encoding="utf-8") == SMALL.read_text(encoding="utf-8")
    out = tmp_path / "mine.yaml"
    assert [run(SMALL, "--measured", "3 s", "-o", out).exit_code for _ in range(2)] == [0, 0]  # a profile is
    assert "is a folder" in str(run(SMALL, "--measured", "2 s", "-o", tmp_path).exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--measured", "12"], "has no unit"),
        (["--measured", "0 s"], "is no step time"),
        (["--measured", "0.5 s"], "the peak of one A100"),
        (["--measured", "12 GB"], "12 GB"),
        (["--measured", "12 s", "-o", "nowhere/mine.yaml"], "make it first"),
        ([str(KIN), "--measured", "12 s"], "2 scenarios and 1 step times; give --measured once for each"),
        ([str(ROOT / "scenarios" / "llama3-405b-16384-h100.yaml"), "--measured", "1 s", "--measured", "6 s"], "no profile fits both"),
        ([str(ROOT / "scenarios" / "korthikanti-2022" / "22b-full.yaml"), "--measured", "2 s", "--measured", "2 s"], "has stack 'megatron-2021'"),
        (["--measured", "12 s", "--parameter", "gemm.max"], "did you mean 'gemm.max_efficiency'"),
    ],
)  # fmt: skip
def test_mistakes(arguments, says):
    result = CliRunner().invoke(app, ["anchor", str(SMALL), *arguments])
    assert isinstance(result.exception, FlopcastError)
    assert says in str(result.exception)


def test_a_profile_and_a_scenario_are_told_apart(anchored, tmp_path):
    out, _, _ = anchored
    with pytest.raises(SpecError, match="is a profile, not a scenario; give it as --profile"):
        load_scenario(out)
    with pytest.raises(SpecError, match="is a scenario, not a profile"):
        load_scenario(SMALL, (), str(SMALL))
    empty = tmp_path / "empty.yaml"
    empty.touch()
    with pytest.raises(SpecError, match="is empty; a scenario needs"):
        load_scenario(empty)
    with pytest.raises(SpecError, match="is empty"):
        load_scenario(SMALL, (), str(empty))
