"""`flopcast rl`: how long a step of reinforcement learning takes, and how GPUs are dealt to rollouts and training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.commands.options import Json, Overrides, Png, ProfileOption, ScenarioFile, Svg
from sim.commands.output import figure_paths, print_json, print_view
from sim.errors import SpecError

if TYPE_CHECKING:
    from sim.rl.samples import Lengths
    from sim.rl.weight_sync import Exchange


def rl(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    rollout_gpus: Annotated[int | None, typer.Option(help="GPUs that write, besides those of the plan.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of both pools: dealt in the best way.")] = None,
    colocated: Annotated[bool, typer.Option("--colocated", help="The plan's GPUs take turns in both.")] = False,
    prompts: Annotated[int, typer.Option(help="Prompts a step.")] = 512,
    group: Annotated[int, typer.Option(help="Responses to each prompt.")] = 16,
    prompt: Annotated[str, typer.Option(help="Tokens of a prompt.")] = "512",
    response: Annotated[str, typer.Option(help="Tokens of a response, on average.")] = "4k",
    longest: Annotated[
        str | None, typer.Option(help="Tokens of the longest response; 4 times the average if not given.")
    ] = None,
    spread: Annotated[float, typer.Option(help="Standard deviation of responses over their mean.")] = 0.8,
    lengths: Annotated[
        Path | None, typer.Option(help="File of measured response lengths, instead: a number a line.")
    ] = None,
    filtered: Annotated[float, typer.Option(help="Share of groups thrown away (dynamic sampling).")] = 0.0,
    depth: Annotated[float | None, typer.Option(help="Versions that samples may be behind.", show_default="1")] = None,
    in_flight: Annotated[
        bool, typer.Option("--in-flight/--drain", help="New weights under running responses, or behind a batch.")
    ] = True,
    reward: Annotated[str, typer.Option(help="From a response's end to its reward.")] = "0 s",
    updates: Annotated[int, typer.Option(help="Gradient steps that a batch is dealt to.")] = 1,
    epochs: Annotated[int, typer.Option(help="Times that a batch is gone through.")] = 1,
    reference: Annotated[bool, typer.Option("--reference", help="A reference model's log-probs (KL penalty).")] = False,
    old_log_probs: Annotated[
        bool, typer.Option("--old-log-probs/--engine-log-probs", help="By the training engine, or the rollouts'.")
    ] = True,
    critic: Annotated[bool, typer.Option("--critic", help="A value model as large as the policy (PPO).")] = False,
    rollout_tp: Annotated[int | None, typer.Option(help="GPUs of a rollout replica; the fastest if not given.")] = None,
    weights: Annotated[str, typer.Option(help="Rollouts' weights: bf16 or fp8.")] = "bf16",
    cache: Annotated[str, typer.Option(help="Their keys and values: bf16 or fp8.")] = "bf16",
    running: Annotated[int, typer.Option(help="Sequences that a replica decodes at once at most.")] = 1024,
    bandwidth_share: Annotated[
        float | None, typer.Option(help="Of the memory's peak that decoding reaches; the profile's if not given.")
    ] = None,
    memory_share: Annotated[
        float | None, typer.Option(help="Of a GPU's memory for rollouts; 0.9, colocated 0.6, if not given.")
    ] = None,
    step_overhead: Annotated[str, typer.Option(help="What a step of decoding waits for the host.")] = "0 s",
    sync: Annotated[str, typer.Option(help="Weights by broadcast, sharded or storage.")] = "broadcast",
    storage: Annotated[str | None, typer.Option(help="Bandwidth of that storage, such as '20 GB/s'.")] = None,
    overlap_sync: Annotated[bool, typer.Option("--overlap-sync", help="Training goes on meanwhile.")] = False,
    profile: ProfileOption = None,
    as_json: Json = False,
    png: Png = None,
    svg: Svg = None,
) -> None:
    """How long a step of reinforcement learning takes: rollouts, training, weights on the way; what limits it."""
    from sim import load_scenario
    from sim.rl.best_step import DEPTHS, Asynchrony, colocated_step, same_gpus_colocated, split_step
    from sim.rl.pools import Inference
    from sim.rl.samples import Samples
    from sim.rl.split import best_split
    from sim.rl.step import RlStep
    from sim.rl.trainer import Recipe
    from sim.units import parse, parse_count

    paths = figure_paths(png, svg)
    _require_one_way(rollout_gpus, gpus, colocated, depth)
    asked = load_scenario(scenario, overrides or (), profile)
    tokens = parse_count(prompt, "prompt")
    samples = Samples(prompts, group, tokens, _lengths(lengths, response, longest, spread), filtered)
    recipe = Recipe(updates, epochs, reference, old_log_probs, critic)
    inference = Inference(rollout_tp, weights, cache, bandwidth_share, memory_share, running, parse(step_overhead, "s"))
    waited = parse(reward, "s")
    asynchrony = Asynchrony(1.0 if depth is None else depth, in_flight, waited)
    exchange = _exchange(sync, overlap_sync, storage)
    split: tuple[RlStep, ...] = ()
    depths: tuple[RlStep, ...] = ()
    shared: RlStep | None = None
    if colocated:
        step = colocated_step(asked, samples, recipe=recipe, inference=inference, reward_s=waited)
    elif gpus is not None:
        split = best_split(
            asked, samples, gpus, recipe=recipe, inference=inference, exchange=exchange, asynchrony=asynchrony
        )
        step = min(split, key=lambda other: other.step_time_s)
    else:
        assert rollout_gpus is not None
        step = split_step(
            asked, samples, rollout_gpus, recipe=recipe, inference=inference, exchange=exchange, asynchrony=asynchrony
        )
    if not colocated:
        depths = tuple(step.at_depth(each) for each in sorted({*DEPTHS, asynchrony.depth}))
        shared = same_gpus_colocated(step, inference, waited)
    if as_json:
        print_json(
            {
                **step.to_dict(),
                "depths": {f"{other.loop.depth:g}": other.step_time_s for other in depths},
                "colocated_step_time_s": None if shared is None else shared.step_time_s,
                "splits": [other.to_dict() for other in split],
            }
        )
    else:
        from sim.report.rl import rl_view

        print_view(rl_view(step, depths, shared, split))
    if paths:
        from sim.report.figures import save
        from sim.report.rl_figures import rl_figure

        save(rl_figure(step, depths, split), paths)
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


def _lengths(file: Path | None, response: str, longest: str | None, spread: float) -> Lengths:
    from sim.files import MEASUREMENTS, read_text
    from sim.rl.samples import lognormal_lengths, measured_lengths
    from sim.units import parse_count

    if file is None:
        most = None if longest is None else parse_count(longest, "longest")
        return lognormal_lengths(parse_count(response, "response"), most, spread)
    words = read_text(file, MEASUREMENTS, "list of lengths").replace(",", " ").split()
    return measured_lengths([parse_count(word, f"length in {file}") for word in words])


def _exchange(sync: str, overlap: bool, storage: str | None) -> Exchange:
    from sim.rl.weight_sync import Exchange
    from sim.units import parse

    bandwidth = None if storage is None else parse(storage, "bytes_per_s")
    if bandwidth is not None and sync != "storage":
        raise SpecError(f"--storage {storage!r} has no effect with --sync {sync}; leave it out, or set --sync storage")
    return Exchange(sync, overlap, bandwidth)  # type: ignore[arg-type]
