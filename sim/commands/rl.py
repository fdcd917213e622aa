"""`flopcast rl`: how long a step of reinforcement learning takes, and how GPUs are dealt to rollouts and training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sim.commands.options import Output, Overrides, ProfileOption, ScenarioFile, with_records
from sim.errors import SpecError

if TYPE_CHECKING:
    from sim.rl.best_step import Asynchrony
    from sim.rl.pools import Inference
    from sim.rl.samples import Lengths, Samples
    from sim.rl.trainer import Recipe
    from sim.rl.weight_sync import Exchange


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """What a step asks for."""

    prompts: Annotated[int, Option(help="Prompts a step.")] = 512
    group: Annotated[int, Option(help="Responses to each prompt.")] = 16
    prompt: Annotated[str, Option(help="Tokens of a prompt.")] = "512"
    response: Annotated[str, Option(help="Tokens of a response, on average.")] = "4k"
    longest: Annotated[str | None, Option(help="Tokens of the longest response; 4 times the average if not given.")] = (
        None
    )
    spread: Annotated[float, Option(help="Standard deviation of responses over their mean.")] = 0.8
    lengths: Annotated[Path | None, Option(help="File of measured response lengths, instead: a number a line.")] = None
    filtered: Annotated[float, Option(help="Share of groups thrown away (dynamic sampling).")] = 0.0
    turns: Annotated[int, Option(help="Calls of tools or an environment in a response.")] = 0
    tool: Annotated[str, Option(help="What each of these takes.")] = "0 s"

    def samples(self) -> Samples:
        """The record that they fill."""
        from sim.rl.samples import Samples
        from sim.units import parse, parse_count

        tokens, tool = parse_count(self.prompt, "prompt"), parse(self.tool, "s")
        return Samples(self.prompts, self.group, tokens, self._lengths(), self.filtered, self.turns, tool)

    def _lengths(self) -> Lengths:
        from sim.files import MEASUREMENTS, read_text
        from sim.rl.samples import lognormal_lengths, measured_lengths
        from sim.units import parse_count

        if self.lengths is None:
            most = None if self.longest is None else parse_count(self.longest, "longest")
            return lognormal_lengths(parse_count(self.response, "response"), most, self.spread)
        words = read_text(self.lengths, MEASUREMENTS, "list of lengths").replace(",", " ").split()
        return measured_lengths([parse_count(word, f"length in {self.lengths}") for word in words])


@dataclass(frozen=True, slots=True)
class AsynchronyOptions:
    """How far rollouts run ahead."""

    depth: Annotated[float | None, Option(help="Versions that samples may be behind.", show_default="1")] = None
    reward: Annotated[str, Option(help="Rewards, advantages and logs of a batch.")] = "5 s"

    def asynchrony(self) -> Asynchrony:
        """The record that they fill."""
        from sim.rl.best_step import Asynchrony
        from sim.units import parse

        return Asynchrony(1.0 if self.depth is None else self.depth, parse(self.reward, "s"))


@dataclass(frozen=True, slots=True)
class RecipeOptions:
    """What the algorithm computes."""

    updates: Annotated[int, Option(help="Gradient steps that a batch is dealt to.")] = 1
    epochs: Annotated[int, Option(help="Times that a batch is gone through.")] = 1
    reference: Annotated[bool, Option("--reference", help="A reference model's log-probs (KL penalty).")] = False
    old_log_probs: Annotated[
        bool, Option("--old-log-probs/--engine-log-probs", help="By the training engine, or the rollouts'.")
    ] = True
    critic: Annotated[bool, Option("--critic", help="A value model as large as the policy (PPO).")] = False

    def recipe(self) -> Recipe:
        """The record that they fill."""
        from sim.rl.trainer import Recipe

        return Recipe(self.updates, self.epochs, self.reference, self.old_log_probs, self.critic)


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """How rollouts are run."""

    rollout_tp: Annotated[int | None, Option(help="GPUs of a rollout replica; the fastest if not given.")] = None
    weights: Annotated[str, Option(help="Rollouts' weights: bf16 or fp8.")] = "bf16"
    cache: Annotated[str, Option(help="Their keys and values: bf16 or fp8.")] = "bf16"
    running: Annotated[int, Option(help="Sequences that a replica decodes at once at most.")] = 1024
    bandwidth_share: Annotated[
        float | None, Option(help="Of the memory's peak that decoding reaches; the profile's if not given.")
    ] = None
    memory_share: Annotated[
        float | None, Option(help="Of a GPU's memory for rollouts; 0.9, colocated 0.6, if not given.")
    ] = None
    step_overhead: Annotated[str, Option(help="What a step of decoding waits for the host.")] = "4 ms"
    rollout_cluster: Annotated[
        str | None, Option(help="Another cluster preset whose GPUs write; the scenario's if not given.")
    ] = None

    def inference(self) -> Inference:
        """The record that they fill."""
        from sim.rl.pools import Inference
        from sim.specs import ClusterSpec
        from sim.specs.loading import resolve
        from sim.units import parse

        waited, name = parse(self.step_overhead, "s"), self.rollout_cluster
        shares = (self.bandwidth_share, self.memory_share)
        apart = None if name is None else ClusterSpec.read(resolve(name, "cluster"), f"cluster preset {name!r}")
        return Inference(self.rollout_tp, self.weights, self.cache, *shares, self.running, waited, apart)


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """How weights reach the rollouts."""

    sync: Annotated[str, Option(help="Weights by broadcast, sharded or storage.")] = "sharded"
    storage: Annotated[str | None, Option(help="Bandwidth of that storage, such as '20 GB/s'.")] = None
    overlap_sync: Annotated[bool, Option("--overlap-sync", help="Training goes on meanwhile.")] = False

    def exchange(self) -> Exchange:
        """The record that they fill."""
        from sim.rl.weight_sync import Exchange
        from sim.units import parse

        bandwidth = None if self.storage is None else parse(self.storage, "bytes_per_s")
        if bandwidth is not None and self.sync != "storage":
            raise SpecError(
                f"--storage {self.storage!r} has no effect with --sync {self.sync}; leave it out, or set --sync storage"
            )
        return Exchange(self.sync, self.overlap_sync, bandwidth)  # type: ignore[arg-type]


@with_records
def rl(
    *,
    scenario: ScenarioFile,
    overrides: Overrides = None,
    rollout_gpus: Annotated[int | None, Option(help="GPUs that write, besides those of the plan.")] = None,
    gpus: Annotated[int | None, Option(help="GPUs of both pools: dealt in the best way.")] = None,
    colocated: Annotated[bool, Option("--colocated", help="The plan's GPUs take turns in both.")] = False,
    batch: SampleOptions,
    ahead: AsynchronyOptions,
    algorithm: RecipeOptions,
    rollouts: InferenceOptions,
    handover: ExchangeOptions,
    profile: ProfileOption = None,
    output: Output,
) -> None:
    """How long a step of reinforcement learning takes: rollouts, training, weights on the way; what limits it."""
    from sim import load_scenario
    from sim.report.rl import rl_figure, rl_view
    from sim.rl.best_step import DEPTHS, colocated_step, same_gpus_colocated, split_step
    from sim.rl.split import best_split
    from sim.rl.step import RlStep

    _require_one_way(rollout_gpus, gpus, colocated, ahead.depth)
    if rollouts.rollout_cluster is not None and rollout_gpus is None:
        raise SpecError(f"--rollout-cluster {rollouts.rollout_cluster}: give --rollout-gpus, how many of it write")
    asked = load_scenario(scenario, overrides or (), profile)
    samples, asynchrony = batch.samples(), ahead.asynchrony()
    recipe, inference = algorithm.recipe(), rollouts.inference()
    apart: dict[str, Any] = {"recipe": recipe, "inference": inference}
    apart |= {"exchange": handover.exchange(), "asynchrony": asynchrony}
    split: tuple[RlStep, ...] = ()
    depths: tuple[RlStep, ...] = ()
    shared: RlStep | None = None
    if colocated:
        step = colocated_step(asked, samples, recipe=recipe, inference=inference, reward_s=asynchrony.reward_s)
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
    output.show(lambda: found, lambda: [rl_view(step, depths, shared, split)], lambda: rl_figure(step, depths, split))
    step.work.answer.require_fit()


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
