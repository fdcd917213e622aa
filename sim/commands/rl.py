"""`flopcast rl`: how long a step of reinforcement learning takes, and how GPUs are dealt to rollouts and training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

from sim.commands.fills import COUNT, Fills, Opt
from sim.commands.options import Answer
from sim.errors import SpecError
from sim.rl.inference import Inference
from sim.rl.samples import Lengths, Samples, lognormal_lengths
from sim.rl.step import DEPTHS, RlStep, best_split, colocated_step, same_gpus_colocated, split_step
from sim.rl.trainer import Recipe
from sim.specs import Scenario
from sim.units import parse_count

PROMPT = Opt("--prompt", parse_count, "512")
PROMPTS = Fills(Samples, "lengths", prompts=Opt(default=512), group=Opt(default=16), prompt_tokens=PROMPT)
RESPONSES = Fills(lognormal_lengths, mean=Opt("--response", parse_count, "4k"), longest=COUNT)
RECIPE = Fills(Recipe, old_log_probs="--old-log-probs/--engine-log-probs", depth=Opt(show_default="1"))
INFERENCE = Fills(Inference, tp="--rollout-tp", most_running="--running")


def rl(
    scenario: Scenario,
    *,
    rollout_gpus: int | None = None,
    gpus: int | None = None,
    colocated: bool = False,
    batch: Annotated[partial[Samples], PROMPTS],
    law: Annotated[partial[Lengths], RESPONSES],
    algorithm: Annotated[partial[Recipe], RECIPE],
    rollouts: Annotated[partial[Inference], INFERENCE],
) -> Answer:
    """How long a step of reinforcement learning takes: rollouts, training, weights on the way; what limits it.

    rollout_gpus : GPUs for rollouts, beside those of the plan, which train.
    gpus : GPUs in all; the best split is searched.
    colocated : Rollouts and training take turns on the plan's GPUs.
    """
    from sim.report.rl import rl_view

    _require_one_way(rollout_gpus, gpus, colocated, algorithm.keywords.get("depth"))
    inference, recipe, samples = rollouts(), algorithm(), batch(lengths=law())
    split: tuple[RlStep, ...] = ()
    depths: tuple[RlStep, ...] = ()
    shared: RlStep | None = None
    if colocated:
        step = colocated_step(scenario, samples, recipe, inference)
    elif gpus is not None:
        split = best_split(scenario, samples, gpus, recipe, inference)
        step = min(split, key=lambda other: other.step_time_s)
    else:
        assert rollout_gpus is not None
        step = split_step(scenario, samples, rollout_gpus, recipe, inference)
    if not colocated:
        depths = tuple(replace(step, depth=each) for each in sorted({*DEPTHS, recipe.depth}))
        shared = same_gpus_colocated(step, inference)
    found = {
        **step.to_dict(),
        "depths": {f"{other.depth:g}": other.step_time_s for other in depths},
        "colocated_step_time_s": None if shared is None else shared.step_time_s,
        "splits": [other.to_dict() for other in split],
    }
    return Answer(lambda: found, lambda: [rl_view(step, depths, shared, split)], (step.work.answer,))


def _require_one_way(rollout_gpus: int | None, gpus: int | None, colocated: bool, depth: float | None) -> None:
    if sum([rollout_gpus is not None, gpus is not None, colocated]) != 1:
        raise SpecError(
            "who writes the responses? Give one of --rollout-gpus 32 (besides the plan's), --gpus 64 (dealt in the "
            "best way) and --colocated (the plan's own)"
        )
    if colocated and depth:
        raise SpecError(
            f"--depth {depth:g}: GPUs that take turns are on policy; leave it out, or give --rollout-gpus instead of "
            "--colocated"
        )
