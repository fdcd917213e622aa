"""Questions in users' words: answers are those of search, train and estimate, and what makes a run fit does so."""

import json
import re
from pathlib import Path

import pytest
from rows import forms, refusals, rows
from typer.testing import CliRunner

from sim.cli import app
from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import estimate
from sim.scaling.finetuning import FineTuning, with_fused_kernels
from sim.scaling.offers import rank
from sim.scaling.questions import batch_of, sequences_near
from sim.scaling.run import train
from sim.search import search
from sim.specs import load_scenario
from sim.specs.machines import price_list

PLAN = "plan llama3-8b --gpu h100 --gpus 16 --tokens 1T"
TUNE = "finetune qwen2.5-7b --samples 50k --gpu 4090"
QWEN = FineTuning("qwen2.5-7b", samples=50e3)


def run(words, *more):
    return CliRunner().invoke(app, [*words.split(), *more])


def answer(words, *more):
    result = run(words, *more, "--json")
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


def test_a_plan_is_what_search_and_train_say_of_the_file_that_it_writes(tmp_path):
    file = tmp_path / "best.yaml"
    found = answer(PLAN, "-o", str(file))
    scenario = load_scenario(file)
    assert found["plan"] == scenario.plan.model_dump(mode="json")
    assert found["step_time_s"] == search(scenario, top=1).best[0].answer.step_time_s == estimate(scenario).step_time_s
    written = train(scenario).to_dict()
    assert {name: found["training"][name] for name in ("days", "cost", "gpu_hours", "intervals", "goodput")} == {
        name: written[name] for name in ("days", "cost", "gpu_hours", "intervals", "goodput")
    }


@forms("some", ("h100-sxm-80gb", "rtx-4090-24gb", "a100-sxm-40gb"), None)
def test_without_a_machine_a_plan_compares_those_that_have_a_price(some, monkeypatch):
    listed = {name: row for name, row in price_list().items() if some is None or name in some}
    monkeypatch.setattr("sim.scaling.offers.price_list", lambda: listed)
    found = answer("plan llama3-8b --gpus 8 --memory-limit", "40 GB")
    assert {each["gpu"] for each in found["all"]} == {name for name, row in listed.items() if row.get("most", 8) >= 8}
    assert [each["cost"] for each in found["best"]] == sorted(each["cost"] for each in found["best"])
    assert all(each["memory_bytes"] <= 40e9 for each in found["best"])
    here = next(each for each in found["best"] if each["gpu"] == "h100-sxm-80gb")
    alone = answer("plan llama3-8b --gpu h100 --gpus 8 --tokens 1T --memory-limit", "40 GB")  # as many as are assumed
    assert (alone["training"]["cost"], alone["plan"]) == (here["cost"], here["plan"])
    assert alone["memory"]["available_bytes"] == 79.11 * 2**30  # as drivers report an H100


DEFAULTS = {"--batch": "2M", "--seq": "4k", "--framework": "torchtitan", "--precision": "bf16"}
"""Options of which a default is an assumption, and what fills them."""


def test_every_default_is_an_assumption_until_it_is_said():
    before = " ".join(answer(PLAN)["assumptions"])
    after = " ".join(answer(PLAN, *(word for pair in DEFAULTS.items() for word in pair))["assumptions"])
    for option in DEFAULTS:
        assert f"{option})" in before
        assert f"{option})" not in after
    assert "list price of 2026-09-20" in before
    assert "list price" not in " ".join(answer(PLAN, "--price", "2 EUR")["assumptions"])


def test_a_profile_is_taken_for_the_gpu_that_it_was_made_for(tmp_path):
    file, words = tmp_path / "mine.yaml", "plan llama3-8b --gpus 8 --profile"
    file.write_text("preset: h100\nname: mine\ngemm: {max_efficiency: 0.5}\n", encoding="utf-8")
    slower = answer(f"{words} {file} --gpu h100")
    assert slower["profile"] == "mine"
    assert slower["step_time_s"] > 1.1 * answer("plan llama3-8b --gpus 8 --gpu h100")["step_time_s"]
    refused = run(f"{words} {file} --gpu b200")
    remedy = re.search(r"-s (profile\.gpu=\S+)$", str(refused.exception))
    assert answer(f"{words} {file} --gpu b200 -s {remedy[1]}")["profile"] == "mine"
    assert "is of one kind of GPU; name it with --gpu" in str(run(f"{words} {file}").exception)


def test_a_deadline_that_is_far_too_short_says_how_many_gpus_the_peak_rate_would_take():
    result = run("plan llama3-8b --gpu h100 --tokens 300B --within", "1 s")
    assert isinstance(result.exception, InfeasiblePlan)
    assert re.match(r"no run ends within 1\.00 s: it would take [\d,]+ GPUs or more", str(result.exception))


def test_the_gpus_given_have_a_chance_to_end_in_time():
    """A node's preset is a machine of as many of them as the GPUs fill."""
    words = "--gpus 16 --tokens 100B"
    found = answer(f"plan llama3-8b --gpu h100 {words} --within", "6 d")
    assert (found["within"]["num_gpus"], found["within"]["certain"]) == (16, None)
    assert (
        0.0
        < found["within"]["chance"]
        < answer(f"plan llama3-8b --gpu h100 {words} --within", "8 d")["within"]["chance"]
    )
    assert answer(f"plan llama3-8b --cluster dgx-h100 {words}")["step_time_s"] == found["step_time_s"]
    fewest = answer("plan llama3-8b --gpu h100 --tokens 100B --within", "8 d")["within"]
    sure = answer(f"plan llama3-8b --gpu h100 --gpus {fewest['certain']['num_gpus']} --tokens 100B --within", "8 d")
    assert 0.5 <= fewest["chance"] < 0.95 <= sure["within"]["chance"]


@rows(("wanted", "gpus", "batch"), [(488, 512, 512), (488, 384, 384), (64, 3, 48), (1.2, 1, 1)])
def test_a_batch_is_near_what_is_wanted_and_shared_evenly(wanted, gpus, batch):
    assert sequences_near(wanted, gpus) == batch


@rows(("said", "batch"), [("512", 512), ("4M", 1024), ("0.5M", 128)])
def test_a_batch_is_sequences_or_millions_of_tokens(said, batch):
    size, notes = batch_of(said, 4096, 8)
    assert size == batch
    assert [f"nearest to {said}" in note for note in notes] == [True] * (not said.isdecimal())


@pytest.fixture(scope="module")
def found():
    return rank(QWEN, (2, 8), ("rtx-4090-24gb", "a100-sxm-40gb", "h100-sxm-80gb"))


def test_what_fits_and_how_fast_it_is_estimate_says(found):
    offers, lacking = found.offers, found.lacking
    assert len(offers) + len(lacking) == 6
    for offer in offers:
        alone = estimate(offer.answer.scenario)
        assert alone.fits
        assert alone.num_gpus == offer.answer.num_gpus
        assert offer.run.wall_s == train(alone.scenario).run.wall_s
        # 150,000 samples, in steps of 64.
        assert offer.run.useful_s == pytest.approx(150e3 / 64 * alone.step_time_s)
    for gpu, gpus, why in lacking:
        assert "it still needs" in why
        with pytest.raises(InfeasiblePlan, match="memory rules them all out"):
            search(QWEN.scenario(gpu, gpus), gpus=(gpus, gpus))


@forms("most", 1, None)
def test_every_change_that_is_named_makes_it_fit(most):
    result = run(TUNE, "--gpus", "2", "--json")
    assert isinstance(result.exception, InfeasiblePlan)
    said = json.loads(result.stdout)
    changes = [remedy["change"] for remedy in said["remedies"]]
    tried = {change.split()[0] for change in (*changes, *said["do_not_help"])}
    assert tried == {"--lora", "--qlora", "--offload", "--framework", "--seq", "--gpus", "--gpu"}
    assert changes[0] in str(result.exception)
    for remedy in said["remedies"][:most]:
        words = f"{TUNE} --gpus 2"
        option = remedy["change"].split()[0]
        if option in ("--gpu", "--gpus"):  # instead of the one that is there
            words = words.replace("--gpu 4090" if option == "--gpu" else "--gpus 2", "")
        found = answer(words, *remedy["change"].split())
        assert found["fits"]
        assert (found["cost"], found["plan"]) == (remedy["cost"], remedy["plan"])
    for change in said["do_not_help"][:most]:
        assert isinstance(run(TUNE, "--gpus", "2", *change.split()).exception, InfeasiblePlan)


def test_fused_kernels_are_named_where_they_shorten_a_run():
    plain = QWEN.planned("h100-sxm-80gb", 8)
    fused = with_fused_kernels(QWEN, plain)
    assert fused.run.wall_s < 0.98 * plain.run.wall_s


def refused(words):
    raise run(words).exception


test_what_cannot_be_asked_names_the_remedy = refusals((SpecError, InfeasiblePlan), refused, [
        ("finetune qwen2.5-7b", "Give --samples 50k"),
        ("finetune qwen2.5-7b --samples 50k --price 3", "name it with --gpu"),
        ("finetune qwen2.5-7b --samples 0.5", "no whole number"),
        ("plan llama3-8b --gpus 8 --batch 2k", "write 2048 for sequences, or 0.5M for tokens"),
        ("plan llama3-8b", "give a number, such as --gpus 512, or --within 30d"),
        ("plan llama3-8b --within 30d --gpu h100", "add --tokens, such as --tokens 15T"),
        ("plan llama3-8b --within 30d --tokens 1T", "add --gpu, such as --gpu h100, or --cluster"),
        ("plan llama3-8b --gpus 8 -s training.precision=fp16", "plan sets training.precision by --precision"),
        ("plan llama3-8b --gpus 8 --gpu h100 --cluster selene", "leave --gpu out"),
        ("plan llama3-8b --gpus 8 --framework none", "unknown framework 'none'"),
        ("plan llama3-8b --gpus 8 --gpu h100 --tokens 2", "less than the 2,097,152 of one step; write 2T for trillions"),
        ("plan llama3-8b --gpus 8 --gpu h100 -s plan.offloaded_layers=2", "no plan of this search has plan.offloaded"),
])  # fmt: skip


def test_the_page_shows_what_is_printed_where_nothing_fits():
    """Pages' own test runs commands that succeed."""
    page = (Path(__file__).parents[2] / "docs" / "questions.md").read_text(encoding="utf-8")
    command, shown = re.search(
        r"`flopcast (finetune [^`]*)`\sends\swith\sexit\scode\s3:\n\n```text\n(.*?)\n```", page, re.DOTALL
    ).groups()
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, command.split())
    assert [line.rstrip() for line in result.stdout.rstrip().splitlines()] == shown.splitlines()
