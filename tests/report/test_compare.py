"""Two scenarios side by side: inputs that differ, whether the difference is clear, files with overrides of their own."""

import math
import re
from pathlib import Path

import pytest

from sim import estimate, load_scenario
from sim.breakdown import waiting_for_sends
from sim.commands.estimate import split_scenario
from sim.report.terminal import console
from sim.report.text import clear_words, compare_view, field_words
from sim.uncertainty import least_told_apart
from tests.typed import typed

ROOT = Path(__file__).parents[2]
SCENARIO = "scenarios/gpt3-175b-1024-a100.yaml"


def ask(*settings):
    return estimate(load_scenario(ROOT / SCENARIO, settings))


def printed(*answers, verbose=False):
    out = console()
    with out.capture() as shown:
        out.print(compare_view(*answers, verbose))
    return shown.get()


def test_a_difference_is_clear_beyond_both_intervals():
    own = ask()
    low, high = own.interval.factors
    least = least_told_apart(own.interval, own.interval)
    assert math.log(least) == pytest.approx(math.sqrt(2) * math.log(high / low) / 2)
    slower = ask("plan.dp=4", "training.global_batch_size=768")  # the same step on half the GPUs
    assert clear_words(own, own) == ""
    step = abs(math.log(slower.step_time_s / own.step_time_s))
    told = least_told_apart(own.interval, slower.interval)
    assert ("is clear" in clear_words(own, slower)) == (step > math.log(told))
    small = ask("plan.pp=2", "plan.dp=64", "training.global_batch_size=6144")
    assert "is clear" in clear_words(own, small)
    near = clear_words(own, ask("plan.num_chunks=2", "plan.schedule=interleaved"))
    assert "not clear" in near
    assert "Both share machine and framework" in near
    assert "The two differ in framework." in clear_words(own, ask("stack.framework=unknown"))


def test_only_inputs_that_differ_are_listed():
    text = printed(ask(), ask("plan.num_chunks=2", "plan.schedule=interleaved"))
    fields = re.findall(r"^ +([a-z]+\.[\w.]+) ", text.partition("What differs")[2], re.MULTILINE)
    assert set(fields) == {"plan.schedule", "plan.num_chunks"}
    assert printed(ask(), ask()).rstrip().endswith("nothing")
    assert field_words("cluster.inter_node_bandwidth_bytes_per_s", 25e9) == "200 Gbit/s"
    assert field_words("plan.recompute_modules", []) == field_words("plan.x", None) == "–"


def test_what_sends_take_of_the_bubble_is_what_it_loses_without_them():
    fast = ask("plan.num_chunks=2", "plan.schedule=interleaved", "stack.overlap_p2p=true")
    settings = ("plan.num_chunks=2", "plan.schedule=interleaved", "stack.overlap_p2p=true")
    slow = ask(*settings, "cluster.inter_node_bandwidth=10 Gbit/s")
    bubbles = [each.breakdown.seconds["pipeline_bubble"] for each in (fast, slow)]
    sends = [waiting_for_sends(each.timeline) for each in (fast, slow)]
    assert sends[1] > sends[0] > 0.0
    assert bubbles[1] - sends[1] == pytest.approx(bubbles[0] - sends[0])
    assert "of it for sends" in printed(fast, slow)


def test_files_with_overrides_of_their_own(tmp_path, monkeypatch):
    assert split_scenario("a.yaml") == ("a.yaml", [])
    assert split_scenario("a.yaml@plan.tp=4@plan.dp=2") == ("a.yaml", ["plan.tp=4", "plan.dp=2"])
    assert split_scenario("me@home/a.yaml") == ("me@home/a.yaml", [])
    assert split_scenario("-@name=x") == ("-", ["name=x"])
    monkeypatch.chdir(tmp_path)
    Path("a.yaml@b=c").write_text("name: odd")
    assert split_scenario("a.yaml@b=c") == ("a.yaml@b=c", [])


def test_the_command_compares_the_same_file_twice():
    done = typed("compare", SCENARIO, f"{SCENARIO}@plan.num_chunks=2@plan.schedule=interleaved")
    assert (done.returncode, done.stderr) == (0, "")
    assert ["plan.num_chunks", "1", "2"] in map(str.split, done.stdout.splitlines())
