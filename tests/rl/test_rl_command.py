"""`flopcast rl` as one types it."""

import json
import shlex
from pathlib import Path

import pytest
from rows import refusals
from typed import answered

from sim.errors import FlopcastError

ROOT = Path(__file__).parents[2]
SCENARIO = "scenarios/qwen3-30b-a3b-rl-32-h100.yaml"
WAYS = {
    "split": "--rollout-gpus 32 --response 2k --longest 10k",
    "dealt": "--gpus 48 --response 2k --longest 10k --updates 4 --reference",
    "colocated": "--colocated --response 2k --longest 10k --reference",
    "agents": "--rollout-gpus 32 --response 2k --longest 10k --depth 2 --turns 4 --tool '3 s'",
}


def ask(line):
    return answered("rl", SCENARIO, *shlex.split(line))


@pytest.mark.parametrize("way", WAYS)
def test_it_answers_in_words_and_in_numbers(way):
    shown = ask(WAYS[way])
    assert all(len(line) <= 80 for line in shown.splitlines())
    for part in ("RL step", "limited by", "Rollouts", "Training", "Weights", "Assumptions"):
        assert part in shown
    found = json.loads(ask(f"{WAYS[way]} --json"))
    assert sum(found["training_pool"].values()) == pytest.approx(found["step_time_s"])
    assert found["colocated"] == (way == "colocated")
    assert (found["splits"] == []) == (way != "dealt")


def test_the_keys_are_documented():
    page = (ROOT / "docs" / "reinforcement-learning.md").read_text(encoding="utf-8")
    found = json.loads(ask(f"{WAYS['split']} --json"))
    assert not [key for key in found if f"`{key}`" not in page]


test_mistakes_say_what_to_type = refusals(FlopcastError, ask, [
    ("", "Give one of --rollout-gpus 32"),
    ("--colocated --gpus 64", "Give one of --rollout-gpus 32"),
    ("--colocated --depth 2", "--depth 2: GPUs that take turns are on policy"),
    ("--rollout-gpus 8 --response many", "response = 'many' is not a number"),
    ("--rollout-gpus 8 --response 8k --longest 4k", "the mean must be below the longest"),
    ("--rollout-gpus 8 --prompts 0 --longest 10k", "prompts = 0"),
    ("--rollout-gpus 8 --reward 3 --longest 10k", "has no unit"),
    ("--rollout-gpus 8 --longest 10k --set plan.ep=1 --set plan.recompute=none", "does not fit"),
    ("--rollout-gpus 8 --response 10k", "add -s training.sequence_length=40960"),
])  # fmt: skip
