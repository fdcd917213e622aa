"""`flopcast validate rl`: printed rates of inference engines and steps of reinforcement learning beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sim.rl.best_step import Asynchrony, colocated_step, split_step
from sim.rl.fluid import batch_time
from sim.rl.pools import Inference, pool_of
from sim.rl.samples import Samples, lognormal_lengths
from sim.rl.step import RlStep
from sim.rl.trainer import Recipe
from sim.specs import build_scenario
from sim.specs.yaml12 import load_yaml
from sim.table import plain_table
from sim.units import show_time

_FACTS = Path(__file__).parent / "published" / "rl"
MANY = 100_000
"""Sequences at once: memory decides."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate as its source prints it, and ours.  [tokens/s]

    engine : model, GPU and tensor-parallel degree.
    prompt, output : lengths, the same for all requests. [tokens]
    """

    engine: str
    prompt: int
    output: int
    measured: float
    predicted: float

    @property
    def share(self) -> float:
        """Of the predicted rate what was measured."""
        return self.measured / self.predicted


def published_rates() -> list[Rate]:
    """All rates that TensorRT-LLM printed."""
    data = load_yaml(_FACTS / "tensorrt-llm-1.0.yaml")
    found = []
    for engine in data["engines"]:
        training = {"global_batch_size": 1, "sequence_length": 2048, "precision": "bf16"}
        scenario = build_scenario(
            {"model": engine["model"], "cluster": engine["cluster"], "plan": {}, "training": training}, []
        )
        tp = engine["tp"]
        how = Inference(tp, "fp8", "fp8", memory_share=data["memory_share"], most_running=MANY)
        pool = pool_of(scenario, how, tp, tp, colocated=False)
        name = f"{engine['model']} {scenario.cluster.gpu.name.split('-')[0]} tp {tp}"
        for (prompt, output, count), measured in zip(data["requests"], engine["tokens_per_s"], strict=True):
            if measured is not None:
                samples = Samples(count, 1, float(prompt), lognormal_lengths(float(output), spread=0.0))
                predicted = count * output / batch_time(pool, samples)
                found.append(Rate(name, prompt, output, float(measured), predicted))
    return found


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


def published_steps() -> list[Published]:
    """All runs that NeMo RL printed."""
    data = load_yaml(_FACTS / "nemo-rl-0.4.yaml")
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


def to_dict(rates: list[Rate], steps: list[Published]) -> dict[str, Any]:
    """Rates and steps as data."""
    return {
        "rates": [{**asdict(rate), "share": rate.share} for rate in rates],
        "steps": [{"name": run.name, "measured_s": run.measured_s, **run.predicted.to_dict()} for run in steps],
    }


def view(rates: list[Rate], steps: list[Published]) -> Group:
    """Both as tables."""
    return Group(*_rates(rates), "", *_steps(steps))


def _rates(rates: list[Rate]) -> tuple[RenderableType, ...]:
    table = plain_table("engine", "rates", "median", "least", "most")
    by_engine: dict[str, list[float]] = {}
    for rate in rates:
        by_engine.setdefault(rate.engine, []).append(rate.share)
    by_engine["all"] = [rate.share for rate in rates]
    for name, shares in by_engine.items():
        table.add_row(name, str(len(shares)), *(f"{each(shares):.0%}" for each in (median, min, max)))
    return Text("Tokens a second of TensorRT-LLM 1.0, of what is predicted", style="bold"), table


def _steps(runs: list[Published]) -> tuple[RenderableType, ...]:
    table = plain_table("run", "measured", "predicted", "error", "rollouts", "training", "limited by",
                        left=("run", "limited by"))  # fmt: skip
    for run in runs:
        step = run.predicted
        table.add_row(
            run.name, show_time(run.measured_s), show_time(step.step_time_s), f"{run.error:+.0%}",
            show_time(step.period.rollout_s), show_time(step.work.seconds), step.limit,
        )  # fmt: skip
    ratios = [1.0 / (1.0 + run.error) for run in runs]
    words = (
        f"measured over predicted: {min(ratios):.1f} to {max(ratios):.1f}, {median(ratios):.1f} in the median; nothing "
        "is fitted to these runs"
    )
    return Text("GRPO steps of NeMo RL 0.4", style="bold"), table, Text(words, style="dim")
