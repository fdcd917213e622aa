"""Published steps of reinforcement learning, predicted: what `flopcast rl` says beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sim.rl.best_step import Asynchrony, colocated_step, split_step
from sim.rl.pools import Inference
from sim.rl.samples import Samples, lognormal_lengths
from sim.rl.step import RlStep
from sim.rl.trainer import Recipe
from sim.specs import build_scenario

NEMO_RL = Path(__file__).parent / "nemo-rl-0.4.yaml"


@dataclass(frozen=True, slots=True)
class Published:
    """A run as its source prints it, and our answer.

    measured_s : the source's step time. [s]
    """

    name: str
    measured_s: float
    predicted: RlStep

    @property
    def error(self) -> float:
        """Of the step time; negative is predicted too fast."""
        return self.predicted.step_time_s / self.measured_s - 1.0


def published_steps(path: Path = NEMO_RL) -> list[Published]:
    """All runs of a file."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [_predicted(run, data) for run in data["runs"]]


def _predicted(run: Mapping[str, Any], data: Mapping[str, Any]) -> Published:
    common, rollout_gpus = data["common"], run.get("rollout_gpus", 0)
    name = f"{run['model']} {run['gpus']} GPUs, {'one step off' if rollout_gpus else 'on policy'}"
    cut = run["plan"]["tp"] > 1
    plan = {"microbatch_size": 1, "zero_stage": 1, "recompute": run["recompute"], "sequence_parallel": cut}
    scenario = build_scenario(
        {
            "name": name,
            "model": data["models"].get(run["model"], run["model"]),
            "cluster": common["cluster"],
            "plan": {**plan, **run["plan"], **_uneven(run)},
            "training": {
                "global_batch_size": run["plan"]["dp"],
                "sequence_length": run["longest"],
                "precision": "bf16",
            },
            "stack": common["stack"],
        }
    )
    # Prompts count into the longest sequence.
    prompt = float(data["prompt_tokens"])
    lengths = lognormal_lengths(float(run["mean"]), float(run["longest"]) - prompt)
    samples = Samples(run["prompts"], run["group"], prompt, lengths)
    recipe = Recipe(run["updates"], reference=common["reference"], old_log_probs=common["old_log_probs"])
    inference = Inference(tp=run["rollout_tp"], memory_share=0.8 if rollout_gpus else 0.6)
    if rollout_gpus:
        after = Asynchrony(depth=1, in_flight=run["in_flight"])
        step = split_step(scenario, samples, rollout_gpus, recipe=recipe, inference=inference, asynchrony=after)
    else:
        step = colocated_step(scenario, samples, recipe=recipe, inference=inference)
    return Published(name, float(run["measured_s"]), step)


def _uneven(run: Mapping[str, Any]) -> dict[str, Any]:
    """Layers that no pipeline divides are dealt unevenly."""
    return {"uneven_layers": True} if run["model"] in ("qwen3-235b-a22b", "deepseek-v3") else {}
