"""Figures of a step of reinforcement learning. Every function returns a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.report.figures import label_panel, new_figure, open_panels, place_title, plain_axis, stacked_bars
from sim.rl.step import RlStep
from sim.units import show_time

COLOURS = {
    "writing": "#0072B2",
    "rollouts": "#0072B2",
    "gradient steps": "#009E73",
    "old log-probs": "#56B4E9",
    "reference": "#8FD0F5",
    "critic": "#CC79A7",
    "weight sync": "#D55E00",
    "switch": "#E69F00",
    "tail": "#BBBBBB",
    "waits for rollouts": "#DDDDDD",
    "waits for training": "#DDDDDD",
}


def rl_figure(step: RlStep, depths: Sequence[RlStep] = (), split: Sequence[RlStep] = ()) -> Any:
    """Where each pool's time goes, beside what depth buys or how GPUs are best dealt."""
    figure = new_figure(11, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    pools = {"training GPU": step.trainer_parts, "rollout GPU": step.rollout_parts}
    stacked_bars(left, {"GPU": step.trainer_parts} if step.colocated else pools, COLOURS)
    title = f"where {show_time(step.step_time_s)} go"
    label_panel(left, title, "seconds of an RL step", legend="", xlim=(0, step.step_time_s * 1.02))
    left.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    if split:
        gpus = [other.scenario.plan.num_gpus for other in split]
        right.plot(gpus, [other.step_time_s for other in split], "o-", color="#0072B2", ms=4, label="RL step")
        right.plot(gpus, [other.work.seconds for other in split], ":", color="#009E73", label="training")
        right.plot(gpus, [other.period.rollout_s for other in split], ":", color="#D55E00", label="rollouts")
        right.plot(step.scenario.plan.num_gpus, step.step_time_s, "o", color="#D55E00", ms=8, mfc="none")
        of = f"GPUs that train, of {step.num_gpus:,}"
        label_panel(right, "how the GPUs are dealt", of, "seconds", yscale="log")
        plain_axis(right.yaxis)
    elif depths:
        names = [f"{other.loop.depth:g}" for other in depths]
        right.bar(names, [other.step_time_s for other in depths], color="#0072B2", width=0.6)
        for place, other in enumerate(depths):
            right.annotate(f"{other.limit}\n", (place, other.step_time_s), ha="center", va="center", fontsize=8)
        depth, seconds = "depth: versions that samples may be behind", "seconds of an RL step"
        label_panel(right, "what asynchrony buys", depth, seconds)
        right.margins(y=0.15)
    else:
        right.set_axis_off()
    open_panels(left, right)
    samples = step.samples
    place_title(figure, f"{step.scenario.name}: {samples.prompts:,} × {samples.group} responses a step", size=12)
    return figure
