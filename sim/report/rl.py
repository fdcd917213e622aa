"""A step of reinforcement learning for eyes: both pools, what depth buys, and how GPUs are best dealt."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.facts import plan_degrees, tokens_words
from sim.report.terminal import assumptions, bars_table, block, indented, title
from sim.rl.step import MEASURED, RlStep
from sim.table import Table, columns_table, facts_table
from sim.units import show, show_time, significant

WAITS = ("tail", "waits for rollouts", "waits for training")
BAR = 30
"""Places of the longest bar."""
LEGEND = "depth: weight versions that samples may be behind; tail: the wait for the longest responses"
LIMITS = {
    "rollouts": "limited by rollouts: more rollout GPUs would shorten it",
    "training": "limited by training: more training GPUs would shorten it",
    "weights": "limited by the transfer of weights",
    "tail": "limited by the longest responses: more --depth would shorten it",
}


def rl_view(
    step: RlStep, depths: Sequence[RlStep] = (), colocated: RlStep | None = None, split: Sequence[RlStep] = ()
) -> Group:
    """The step, where each pool's time goes, and what other depths and other splits would give.

    depths : The same pools with other depths.
    colocated : The GPUs of both pools, taking turns.
    split : The same GPUs dealt otherwise.
    """
    parts: list[RenderableType] = [_heading(step), "", indented(_facts(step))]
    pools = {"A GPU's step": step.trainer_parts}
    if not step.colocated:
        pools = {"A training GPU's step": step.trainer_parts, "A rollout GPU's step": step.rollout_parts}
    for name, seconds in pools.items():
        rows = [
            (part, s, s / sum(seconds.values()), "yellow" if part in WAITS else "cyan") for part, s in seconds.items()
        ]
        bars = bars_table([row for row in rows if row[2] >= 5e-4], BAR)
        parts += block(name, f"  ({show_time(step.step_time_s)})", bars)
    if depths or colocated is not None:
        parts += ["", title("What running ahead gives"), indented(_depths(step, depths, colocated))]
    if depths or split:
        parts += [Text(LEGEND, style="dim")]
    if split:
        parts += ["", title(f"Splits of {split[0].num_gpus:,} GPUs"), indented(_split(step, split))]
    return Group(*parts, *assumptions(step.assumptions))


def _heading(step: RlStep) -> Text:
    samples, plan = step.samples, step.scenario.plan
    shape = f"{samples.prompts:,} prompts × {samples.group} responses of {samples.lengths.mean:,.0f} tokens"
    text = title(step.scenario.name, f"\n{shape}, at most {samples.lengths.longest:,.0f}\n")
    trained = f"training on {plan.num_gpus:,} × {step.scenario.cluster.gpu.name}: {plan_degrees(plan)}"
    tp, replicas = step.pool.tp, step.pool.replicas
    running = step.pool.running(samples, step.colocated or step.depth == 0)
    wrote = f"{replicas:,} replicas of tp {tp}, up to {running:,.0f} sequences each"
    where = "the same GPUs" if step.colocated else f"{step.pool.num_gpus:,} × {step.scenario.cluster.gpu.name}"
    words = f"rollouts on {where}: {wrote}"
    return text.append(f"{trained}\n{words}", style="dim")


def _facts(step: RlStep) -> RenderableType:
    depth = step.depth
    policy = "on policy" if depth == 0 else f"up to {depth:g} version{'s' * (depth != 1)} off policy"
    low, high = (show_time(factor * step.step_time_s) for factor in MEASURED)
    per_gpu, written = tokens_words(step.tokens_per_s / step.num_gpus), tokens_words(step.written_tokens_per_s)
    recipe, packed = step.work.recipe, step.work.answer.scenario.training
    steps, each = recipe.updates * recipe.epochs, show_time(step.work.answer.step_time_s)
    batch = f"{packed.global_batch_size:,} × {packed.sequence_length:,} tokens"
    rows: list[tuple[str, str | Text, str | Text]] = [
        ("RL step", Text(show_time(step.step_time_s), style="bold green"), f"90 %: {low} to {high}, {policy}"),
        ("", "", f"limited by {step.limit}: more GPUs would shorten it" if step.colocated else LIMITS[step.limit]),
        ("Responses", f"{significant(step.responses_per_s)} per s", f"trained on, {per_gpu} per GPU"),
        ("Rollouts", show_time(step.period.rollout_s), f"to the last response; up to {written} per GPU"),
        ("Training", show_time(step.work.seconds), f"{steps} gradient step{'s' * (steps > 1)} of {each}, {batch}"),
        ("Weights", show_time(step.sync_s), "to the rollouts' shards" if step.colocated else "to the rollout pool"),
    ]
    if step.switch_s:
        rows.append(("Switch", show_time(step.switch_s), "training's state to the host and back"))
    if not step.work.answer.fits:
        largest = show(float(step.work.answer.largest.total), "B")
        rows.append(("Memory", largest, Text("training does not fit", style="bold red")))
    return facts_table(rows)


def _depths(step: RlStep, depths: Sequence[RlStep], colocated: RlStep | None) -> Table:
    on_policy = next((other for other in depths if other.depth == 0), step).step_time_s
    rows = {
        f"depth {other.depth:g}" if other.depth else "depth 0, on policy": (other.step_time_s, other.limit)
        for other in depths
    }
    if colocated is not None:
        rows[f"colocated, {colocated.num_gpus:,} GPUs"] = (colocated.step_time_s, "on policy")
    columns = {
        "": [*rows],
        "RL step": [show_time(seconds) for seconds, _ in rows.values()],
        "per depth 0": [f"{on_policy / seconds:.2f}×" for seconds, _ in rows.values()],
        "limited by": [limit for _, limit in rows.values()],
    }
    return columns_table(columns, left=("", "limited by"))


def _split(best: RlStep, split: Sequence[RlStep]) -> Table:
    columns = {
        "train": [f"{step.scenario.plan.num_gpus:,}" for step in split],
        "write": [f"{step.pool.num_gpus:,}" for step in split],
        "rollout tp": [f"{step.pool.tp}" for step in split],
        "rollouts": [show_time(step.period.rollout_s) for step in split],
        "training": [show_time(step.work.seconds) for step in split],
        "RL step": [show_time(step.step_time_s) for step in split],
        "limited by": [step.limit for step in split],
        "": ["best" if step is best else "" for step in split],
    }
    return columns_table(columns, left=("limited by", ""))
