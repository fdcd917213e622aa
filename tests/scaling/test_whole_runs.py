"""Whole runs: published estimates from our own throughput, goals under the batch trade-off, money, `train`."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from rows import refusals
from typed import answered

from sim.errors import SpecError
from sim.reliability.cost import Price
from sim.reliability.goodput import Failures
from sim.reliability.storing import even_storing
from sim.scaling.goal import goal_of, goal_of_model
from sim.scaling.loss_laws import BESIROGLU, critical_batch, power_sum_loss
from sim.scaling.run import Terms, train, training_run
from sim.specs import load_scenario
from sim.specs.machines import price_list
from sim.work.sums import active_params, total_params

SCENARIOS = Path(__file__).parents[2] / "scenarios"
GPT3, TRILLION = SCENARIOS / "gpt3-175b-1024-a100.yaml", SCENARIOS / "gpt-1t-3072-a100.yaml"
LLAMA = SCENARIOS / "llama3-405b-16384-h100.yaml"


def test_llama3s_run():
    """54 days of 16,384 H100 with 419 failures and above 90 % effective time (Grattafiori et al. 2024, 3.3.4)."""
    training = train(load_scenario(LLAMA))
    assert training.run.goodput.useful > 0.9
    month = train(load_scenario(LLAMA), terms=Terms(Failures(gpu_mtbf_s=54 * 86400 * 16384 / 419))).run
    assert month.wall_s == pytest.approx(training.run.wall_s, rel=1e-6)
    # 15.6e12 tokens took 30.84 million GPU-hours (theirs include long contexts and annealing).
    assert training.run.gpu_hours == pytest.approx(30.84e6, rel=0.25)
    assert training.run.gpu_hours == pytest.approx(16384 * training.run.wall_s / 3600)
    assert training.run.energy_j == pytest.approx(training.run.gpu_hours * 3600 * 10_200 / 8 * 1.1)
    # Without a price of one's own an hour of an H100 costs what the price list says.
    assert training.run.cost == pytest.approx(price_list()["h100-sxm-80gb"]["price"] * training.run.gpu_hours)
    own = train(load_scenario(LLAMA), terms=Terms(price=Price(1.5, "EUR"))).run
    assert (own.cost, own.currency) == (pytest.approx(1.5 * own.gpu_hours), "EUR")


def test_spare_nodes_are_paid_for_and_checkpoints_cost():
    cluster = load_scenario(TRILLION).cluster
    storing = even_storing(14e12, 4096, cluster)

    def run(node=cluster.node, **changes):
        return training_run(storing, 4096, node, 100.0, 1e4, 1e11, Terms(**changes))

    spared = run(failures=Failures(spare_nodes=4))
    assert spared.gpu_hours == pytest.approx((4096 + 32) * spared.wall_s / 3600)
    waits, background = run(), run(asynchronous=True)
    assert waits.wall_s > background.wall_s
    assert background.checkpoints.drain_s == waits.checkpoints.blocking_s == storing.write_s
    assert run(failures=Failures(startup_s=60.0)).failures.restart_s == 60.0 + storing.load.seconds
    # Written in the background, one begins when the last is written at the earliest.
    slow = cluster.replace(storage=cluster.storage.replace(write_bandwidth_bytes_per_s=1e9))
    kept = even_storing(14e12, 4096, slow)
    saved = training_run(kept, 4096, cluster.node, 100.0, 1e4, 1e11, Terms(asynchronous=True))
    assert saved.checkpoints.interval_s == pytest.approx(saved.checkpoints.drain_s - saved.checkpoints.blocking_s)
    # A GPU of unknown power costs the energy alone.
    powerless = run(cluster.node.replace(max_power_w=None, gpu=cluster.gpu.replace(max_power_w=None)))
    assert powerless.energy_j is None
    assert powerless.cost == run().cost


def test_a_goals_data_and_steps():
    goal = goal_of(70e9, tokens=1.4e12)
    loss = float(power_sum_loss(70e9, 1.4e12, BESIROGLU))
    assert goal.loss == pytest.approx(loss)
    assert goal.critical_batch == pytest.approx(float(critical_batch("kaplan-2020", loss=loss)))
    assert goal.tokens(goal.critical_batch) == pytest.approx(2 * 1.4e12)
    assert goal.steps(goal.critical_batch) == pytest.approx(2 * goal.least_steps)
    again = goal_of(70e9, loss=loss)
    assert again.min_tokens == pytest.approx(1.4e12, rel=1e-6)
    assert goal_of(70e9, tokens=1e12, critical_batch=4e6).critical_batch == 4e6
    assert goal_of(7.22e10).min_tokens == pytest.approx(1.33e12, rel=0.01)  # compute-optimal
    said = " ".join(goal.notes)
    assert "zhang-2024" in said  # the laws disagree, and it says so
    assert "read in the paper" in said


def test_a_mixture_of_experts_is_held_against_laws_by_its_active_parameters():
    model = load_scenario(SCENARIOS / "qwen3-235b-a22b-256-h100.yaml").model
    goal = goal_of_model(model, loss=2.0)
    assert goal.min_tokens == goal_of(float(active_params(model)), loss=2.0).min_tokens
    assert goal.params == total_params(model)  # which checkpoints hold
    assert goal.notes[-1].endswith("taken at the 22.2B active parameters")
    dense = load_scenario(LLAMA).model
    assert goal_of_model(dense, loss=2.0) == goal_of(float(total_params(dense)), loss=2.0)


test_goals_that_cannot_be = refusals(SpecError, lambda asked: goal_of(1e9, **asked), [
    ({"loss": 1.5}, "no model goes below the irreducible loss"),
    ({"loss": 1.9}, "1.00B parameters reach no loss of 1.9 on any number of tokens; they tend to"),
    ({"tokens": 1e9, "loss": 3.0}, "either tokens or a loss"),
    ({"tokens": -1.0}, "tokens = -1"),
    ({"tokens": 1e9, "batch_law": "kaplan"}, "did you mean 'kaplan-2020'"),
    ({"tokens": 1e9, "batch_law": "deepseek-2024-best"}, "no limit; choose from"),
])  # fmt: skip


test_buildings_that_cannot_be = refusals(SpecError, lambda pue: Terms(pue=pue), [
    (0.9, "pue = 0.9 is below 1"), (float("inf"), "pue = inf is above 10"),
])  # fmt: skip


def test_a_given_time_leaves_the_tokens_open():
    found = train(GPT3, within_s=28 * 86400.0)
    assert train(GPT3, tokens=found.run.tokens).run.wall_s == pytest.approx(28 * 86400.0)
    assert [each.wall_s for each in (found.low, found.high)] == pytest.approx([28 * 86400.0] * 2)
    ends = [found.run.tokens * found.answer.step_time_s / end for end in found.answer.step_time_interval_s]
    assert [found.low.tokens, found.high.tokens] == pytest.approx(ends)
    assert found.to_dict()["intervals"]["tokens"] == pytest.approx(sorted(ends), rel=1e-12)
    assert re.search(r"Tokens +\S+ +90 %: \S+ to \S+", ask(GPT3, "--within", "28 d"))
    with pytest.raises(SpecError, match="leave --tokens and --loss out"):
        train(GPT3, within_s=1e6, tokens=1e12)


ask = partial(answered, "train")


def test_the_command():
    printed = ask(TRILLION)
    assert all(len(line) <= 80 for line in printed.splitlines())
    answer = json.loads(ask(TRILLION, "--price", "3", "--pue", "1.5", "--json"))
    assert answer["cost"] == pytest.approx(3 * answer["gpu_hours"])
    assert answer["energy_j"] == pytest.approx(answer["gpu_hours"] * 3600 * 6500 / 8 * 1.5)
    assert answer["intervals"]["days"][0] < answer["days"] < answer["intervals"]["days"][1]
    assert sum(answer["goodput_parts"].values()) == pytest.approx(1)
    with pytest.raises(SpecError, match="irreducible"):
        ask(TRILLION, "--loss", "1.7")


def test_the_answer_says_how_checkpoints_and_restarts_are_made():
    """Their seconds are the published ones in tests/reliability/test_storage.py."""
    answer, storing = json.loads(ask(TRILLION, "--json")), train(load_scenario(TRILLION)).run.storing
    saved, restart = answer["checkpoint"], answer["restart"]
    assert saved["write_s"] == answer["checkpoint_blocking_s"] == storing.write_s
    assert saved["limit"] == "file system"
    assert restart["load_s"] == pytest.approx(min(sum(load.values()) for load in restart["loads"].values()))
    assert restart["seconds"] == restart["startup_s"] + restart["load_s"]
    background = json.loads(ask(TRILLION, "--asynchronous", "--json"))
    assert answer["goodput"] < background["goodput"] == pytest.approx(saved["asynchronous"]["goodput"])
    assert background["checkpoint"]["drain_s"] == pytest.approx(saved["write_s"])
    assert 6 < background["checkpoint_blocking_s"] < 8


def test_data_that_come_too_slowly_set_the_pace():
    answer = train(load_scenario(TRILLION))
    hungry = train(load_scenario(TRILLION, ["training.bytes_per_token=1e8"]))
    assert hungry.run.useful_s == pytest.approx(hungry.data.slowdown * answer.run.useful_s)
    assert hungry.run.tokens * 2e8 / hungry.run.useful_s == pytest.approx(1e12)
    assert any(
        note.startswith("limited by data: ") and "of storage that gives 1.00 TB/s" in note
        for note in hungry.assumptions
    )
    assert not any(note.startswith("limited by data") for note in answer.assumptions)
    printed = ask(TRILLION, "-s", "training.bytes_per_token=1e8")
    assert "which limits the run" in printed


def test_failures_that_leave_no_time_say_how_many_gpus_would_work():
    cluster = load_scenario(TRILLION).cluster
    slow = cluster.storage.replace(write_bandwidth_bytes_per_s=1e10 / cluster.storage.write_share)
    node, storing = cluster.node, even_storing(14e12, 30_000, cluster.replace(storage=slow))
    terms = Terms(Failures(gpu_mtbf_s=30 * 86400))
    with pytest.raises(
        SpecError, match=r"hardly any work gets done on 30,000 GPUs.*every 86\.4 s.*GPUs work half"
    ) as no:
        training_run(storing, 30_000, node, 100.0, 1e4, 1e11, terms)
    most = int(str(no.value).partition("restart 614 s; ")[2].split()[0].replace(",", ""))
    assert training_run(storing, most, node, 100.0, 1e4, 1e11, terms).goodput.useful == pytest.approx(0.5, abs=0.01)
    with pytest.raises(SpecError, match="not even one GPU works half of the time"):
        training_run(storing, 30_000, node, 100.0, 1e4, 1e11, Terms(Failures(gpu_mtbf_s=1.0)))
