"""A step of reinforcement learning in a terminal: both pools, what depth buys, and how GPUs are best dealt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import rich.table
from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.facts import plan_degrees
from sim.report.terminal import assumptions, indented, title
from sim.rl.step import PUBLISHED, RlStep
from sim.table import Table, facts_table, plain_table
from sim.units import show, show_time, significant

BAR = 30
"""Places of the longest bar."""
LIMITS = {
    "rollouts": "limited by rollouts: more GPUs that write shorten it",
    "training": "limited by training: more GPUs that train shorten it",
    "weights": "limited by weights on their way: --sync sharded shortens it",
    "tail": "limited by long responses: more depth shortens it",
}


def rl_view(
    step: RlStep, depths: Sequence[RlStep] = (), colocated: RlStep | None = None, split: Sequence[RlStep] = ()
) -> Group:
    """The step, where each pool's time goes, and what other depths and other splits would give.

    Parameters
    ----------
    step : RlStep
    depths : sequence of RlStep
        The same pools with other depths.
    colocated : RlStep, optional
        The GPUs of both pools, taking turns.
    split : sequence of RlStep
        The same GPUs dealt otherwise.
    """
    parts: list[RenderableType] = [_heading(step), "", indented(_facts(step))]
    for name, seconds in _pools(step).items():
        parts += ["", title(name, f"  ({show_time(step.step_time_s)})", "not bold dim"), indented(_bars(seconds))]
    if depths or colocated is not None:
        parts += ["", title("What asynchrony buys"), indented(_depths(step, depths, colocated))]
    if split:
        parts += ["", title(f"{split[0].num_gpus:,} GPUs, dealt"), indented(_split(step, split))]
    return Group(*parts, *assumptions(step.assumptions))


def _heading(step: RlStep) -> Text:
    samples, plan = step.samples, step.scenario.plan
    shape = f"{samples.prompts:,} prompts × {samples.group} responses of {samples.lengths.mean:,.0f} tokens"
    text = title(step.scenario.name, f"\n{shape}, at most {samples.lengths.longest:,.0f}\n")
    trained = f"{plan.num_gpus:,} × {step.scenario.cluster.gpu.name} train: {plan_degrees(plan)}"
    tp, replicas = step.pool.engine.tp, step.pool.replicas
    running = step.pool.running(samples, step.colocated or step.loop.depth == 0)
    wrote = f"{replicas:,} replicas of tp {tp}, up to {running:,.0f} sequences each"
    words = f"they also write: {wrote}" if step.colocated else f"{step.pool.num_gpus:,} write: {wrote}"
    return text.append(f"{trained}\n{words}", style="dim")


def _facts(step: RlStep) -> RenderableType:
    table = facts_table()
    depth = step.loop.depth
    policy = "on policy" if depth == 0 else f"up to {depth:g} version{'s' * (depth != 1)} off policy"
    table.add_row("RL step", Text(show_time(step.step_time_s), style="bold green"), policy)
    low, high = (show_time(factor * step.step_time_s) for factor in PUBLISHED)
    table.add_row("", "", f"published steps took {PUBLISHED[0]:g} to {PUBLISHED[1]:g} times as long: {low} to {high}")
    table.add_row("", "", LIMITS[step.limit])
    per_gpu = show(step.tokens_per_s / step.num_gpus, "tokens/s")
    table.add_row("Responses", f"{significant(step.responses_per_s)} a second", f"trained on, {per_gpu} per GPU")
    waited = "to the last response" if depth == 0 or not step.loop.in_flight else "a batch, never empty"
    written = show(step.written_tokens_per_s, "tokens/s")
    table.add_row("Rollouts", show_time(step.period.rollout_s), f"{waited}; at most {written} per GPU")
    recipe = step.work.recipe
    steps, each = recipe.updates * recipe.epochs, show_time(step.work.answer.step_time_s)
    packed = step.work.answer.scenario.training
    table.add_row(
        "Training", show_time(step.work.seconds),
        f"{steps} gradient step{'s' * (steps > 1)} of {each}: {packed.global_batch_size:,} × "
        f"{packed.sequence_length:,} tokens",
    )  # fmt: skip
    how = "to the rollouts' shards" if step.colocated else "to the rollout pool"
    table.add_row("Weights", show_time(step.sync_s), how)
    if step.switch_s:
        table.add_row("Switch", show_time(step.switch_s), "training's state to the host and back")
    if not step.work.answer.fits:
        largest = show(float(step.work.answer.largest.total), "B")
        table.add_row("Memory", largest, Text("training does not fit", style="bold red"))
    return table


def _pools(step: RlStep) -> dict[str, Mapping[str, float]]:
    if step.colocated:
        return {"A GPU's step": step.trainer_parts}
    return {"A training GPU's step": step.trainer_parts, "A rollout GPU's step": step.rollout_parts}


def _bars(seconds: Mapping[str, float]) -> rich.table.Table:
    total, longest = sum(seconds.values()), max(seconds.values())
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for name, value in seconds.items():
        if value < 5e-4 * total:
            continue
        style = "yellow" if name in ("tail", "waits for rollouts", "waits for training") else "cyan"
        bar = Text("█" * max(1, round(value / longest * BAR)), style)
        table.add_row(name, show_time(value), f"{value / total:.1%}", bar)
    return table


def _depths(step: RlStep, depths: Sequence[RlStep], colocated: RlStep | None) -> Table:
    table = plain_table("", "RL step", "per depth 0", "limited by", left=("", "limited by"))
    on_policy = next((other for other in depths if other.loop.depth == 0), step).step_time_s
    for other in depths:
        name = "depth 0, on policy" if other.loop.depth == 0 else f"depth {other.loop.depth:g}"
        gain = f"{on_policy / other.step_time_s:.2f}×"
        table.add_row(name, show_time(other.step_time_s), gain, other.limit)
    if colocated is not None:
        gain = f"{on_policy / colocated.step_time_s:.2f}×"
        table.add_row(f"colocated, {colocated.num_gpus:,} GPUs", show_time(colocated.step_time_s), gain, "on policy")
    return table


def _split(best: RlStep, split: Sequence[RlStep]) -> Table:
    table = plain_table("train", "write", "rollout tp", "rollouts", "training", "RL step", "limited by", "",
                        left=("limited by", ""))  # fmt: skip
    for step in split:
        mark = "best" if step is best else ""
        table.add_row(
            f"{step.scenario.plan.num_gpus:,}", f"{step.pool.num_gpus:,}", f"{step.pool.engine.tp}",
            show_time(step.period.rollout_s), show_time(step.work.seconds), show_time(step.step_time_s), step.limit,
            mark,
        )  # fmt: skip
    return table
