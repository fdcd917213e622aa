"""`flopcast rl`: how long a step of reinforcement learning takes, and how GPUs are dealt to rollouts and training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from sim.commands.fills import Fills, Opt, count
from sim.commands.options import AsJson, Overrides, ProfileOption, ScenarioFile, print_answer
from sim.errors import SpecError
from sim.files import MEASUREMENTS, read_text
from sim.rl.pools import Inference
from sim.rl.samples import Lengths, Samples, lognormal_lengths, measured_lengths
from sim.rl.step import DEPTHS, Asynchrony, RlStep, best_split, colocated_step, same_gpus_colocated, split_step
from sim.rl.trainer import Exchange, Recipe
from sim.specs import ClusterSpec, load_scenario
from sim.specs.loading import resolve
from sim.units import parse_count, show_bare

PROMPTS = Fills(
    Samples, "lengths", prompts=Opt(default=512), group=Opt(default=16), prompt_tokens=Opt("--prompt", count, "512")
)
RESPONSES = Fills(lognormal_lengths, mean=Opt("--response", count, "4k"), longest=Opt(read=count))
RECIPE = Fills(
    Recipe,
    "packing",
    reference="--reference",
    old_log_probs="--old-log-probs/--engine-log-probs",
    critic="--critic",
)
INFERENCE = Fills(
    Inference,
    tp="--rollout-tp",
    most_running="--running",
    cluster=Opt(
        "--rollout-cluster",
        lambda name, _: ClusterSpec.read(resolve(name, "cluster"), f"cluster preset {name!r}"),
        help="Cluster preset of the rollouts; default: the scenario's cluster.",
    ),
)
EXCHANGE = Fills(Exchange, method="--sync", overlap="--overlap-sync", storage_bytes_per_s="--storage")


def rl(
    *,
    scenario: ScenarioFile,
    overrides: Overrides = None,
    rollout_gpus: int | None = None,
    gpus: int | None = None,
    colocated: bool = False,
    batch: Annotated[partial[Samples], PROMPTS],
    law: Annotated[partial[Lengths], RESPONSES],
    lengths: Path | None = None,
    ahead: Annotated[partial[Asynchrony], Fills(Asynchrony, depth=Opt(show_default="1"))],
    algorithm: Annotated[partial[Recipe], RECIPE],
    rollouts: Annotated[partial[Inference], INFERENCE],
    handover: Annotated[partial[Exchange], EXCHANGE],
    profile: ProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """How long a step of reinforcement learning takes: rollouts, training, weights on the way; what limits it.

    rollout_gpus : GPUs for rollouts, beside those of the plan, which train.
    gpus : GPUs in all; the best split is searched.
    colocated : Rollouts and training take turns on the plan's GPUs.
    lengths : File of measured response lengths, one number a line, instead of a law.
    """
    from sim.report.rl import rl_view

    depth = ahead.keywords.get("depth")
    _require_one_way(rollout_gpus, gpus, colocated, depth)
    inference, asynchrony, recipe = rollouts(), ahead(), algorithm()
    if inference.cluster is not None and rollout_gpus is None:
        raise SpecError(f"--rollout-cluster {inference.cluster.name}: give --rollout-gpus, how many of it write")
    asked = load_scenario(scenario, overrides or (), profile)
    words = [] if lengths is None else read_text(lengths, MEASUREMENTS, "list of lengths").replace(",", " ").split()
    measured = [parse_count(word, f"length in {lengths}") for word in words]
    samples = batch(lengths=law() if lengths is None else measured_lengths(measured))
    exchange = _exchange(handover)
    split: tuple[RlStep, ...] = ()
    depths: tuple[RlStep, ...] = ()
    shared: RlStep | None = None
    how: dict[str, Any] = {"recipe": recipe, "inference": inference}
    apart = {**how, "exchange": exchange, "asynchrony": asynchrony}
    if colocated:
        step = colocated_step(asked, samples, **how, reward_s=asynchrony.reward_s)
    elif gpus is not None:
        split = best_split(asked, samples, gpus, **apart)
        step = min(split, key=lambda other: other.step_time_s)
    else:
        assert rollout_gpus is not None
        step = split_step(asked, samples, rollout_gpus, **apart)
    if not colocated:
        depths = tuple(step.at_depth(each) for each in sorted({*DEPTHS, asynchrony.depth}))
        if inference.cluster is None:
            shared = same_gpus_colocated(step, inference, asynchrony.reward_s)
    found = {
        **step.to_dict(),
        "depths": {f"{other.loop.depth:g}": other.step_time_s for other in depths},
        "colocated_step_time_s": None if shared is None else shared.step_time_s,
        "splits": [other.to_dict() for other in split],
    }
    print_answer(as_json, lambda: found, lambda: [rl_view(step, depths, shared, split)])
    step.work.answer.require_fit()


def _exchange(handover: partial[Exchange]) -> Exchange:
    """How weights reach the rollouts."""
    method, bandwidth = handover.keywords["method"], handover.keywords.get("storage_bytes_per_s")
    if bandwidth is not None and method != "storage":
        raise SpecError(
            f"--storage {show_bare(bandwidth, 'bytes_per_s')!r} has no effect with --sync {method}; leave it out, or "
            "set --sync storage"
        )
    return handover()


def _require_one_way(rollout_gpus: int | None, gpus: int | None, colocated: bool, depth: float | None) -> None:
    ways = [rollout_gpus is not None, gpus is not None, colocated]
    if sum(ways) != 1:
        raise SpecError(
            "who writes the responses? Give one of --rollout-gpus 32 (besides the plan's), --gpus 64 (dealt in the "
            "best way) and --colocated (the plan's own)"
        )
    if colocated and depth:
        raise SpecError(
            f"--depth {depth:g}: GPUs that take turns are on policy; leave it out, or give --rollout-gpus instead of "
            "--colocated"
        )
