"""`flopcast validate rl`: printed rates of inference engines and steps of reinforcement learning beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.terminal import grouped
from sim.rl.inference import Inference
from sim.rl.rollout import batch_time, pool_of
from sim.rl.samples import Samples, lognormal_lengths
from sim.rl.step import RlStep, colocated_step, split_step
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
        """Measured rate over the predicted one."""
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
        how = Inference(tp, "fp8", "fp8", memory_share=data["memory_share"], most_running=MANY, step_overhead_s=0.0)
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

    measured_s, rollout_s : the source's step, and its generation of a batch where it was timed by itself. [s]
    drafted : the engine wrote tokens ahead by a draft, which is not modelled.
    """

    name: str
    source: str
    measured_s: float
    rollout_s: float | None
    drafted: bool
    predicted: RlStep

    @property
    def error(self) -> float:
        """Relative error of the step time; negative is predicted too fast."""
        return self.predicted.step_time_s / self.measured_s - 1.0

    @property
    def rollout_error(self) -> float | None:
        """The generation of a batch, from its first token to its last."""
        if self.rollout_s is None:
            return None
        return batch_time(self.predicted.pool, self.predicted.samples) / self.rollout_s - 1.0


def published_steps() -> list[Published]:
    """All runs that NeMo RL printed."""
    data = load_yaml(_FACTS / "nemo-rl.yaml")
    return [
        _predicted(run, {**data, **source}, place)
        for source in data["sources"]
        for place, run in enumerate(source["runs"], 1)
    ]


def _predicted(run: Mapping[str, Any], data: Mapping[str, Any], place: int) -> Published:
    rollout_gpus, depth = run.get("rollout_gpus", 0), run.get("depth", 0)
    cluster = "superpod-gb200" if run.get("gb200") else "superpod-h100"
    words = f"{depth} off" if depth else "on policy"
    version = data["name"].removeprefix("NeMo RL ")
    name = f"{version} #{place} {run['model']} {run['gpus']} {cluster.rpartition('-')[2].upper()}, {words}"
    plan = {"microbatch_size": 1, "zero_stage": 1, "recompute": run["recompute"], "uneven_layers": True}
    scenario = build_scenario(
        {
            "name": name,
            "model": data["models"].get(run["model"], run["model"]),
            "cluster": cluster,
            "plan": {**plan, "sequence_parallel": run["plan"]["tp"] > 1, **run["plan"]},
            "training": {
                "global_batch_size": run["plan"]["dp"],
                "sequence_length": run["longest"],
                "precision": "bf16",
            },
            "stack": data["stack"],
        }
    )
    # Prompts count into the longest sequence; of one run nearly all responses are cut off there.
    prompt = float(data["prompt_tokens"])
    longest = float(run["longest"]) - prompt
    lengths = lognormal_lengths(min(float(run["mean"]), 0.99 * longest), longest)
    samples = Samples(run["prompts"], run["group"], prompt, lengths)
    recipe = Recipe(run["updates"], reference=data["reference"], depth=depth)
    share, weights = 0.8 if rollout_gpus else 0.6, run.get("weights", "bf16")
    inference = Inference(tp=run["rollout_tp"], weights=weights, memory_share=share)
    if rollout_gpus:
        step = split_step(scenario, samples, rollout_gpus, recipe, inference)
    else:
        step = colocated_step(scenario, samples, recipe, inference)
    measured, rollout = float(run["measured_s"]), run.get("rollout_s")
    return Published(name, data["name"], measured, rollout, "draft" in run, step)


def mean_error(runs: Iterable[Published]) -> float:
    """Mean over sources of the mean absolute error of step times."""
    return mean(mean(errors) for errors in grouped((run.source, abs(run.error)) for run in runs).values())


def factors(runs: Sequence[Published], inside: float = 0.9) -> tuple[float, float]:
    """Measured over predicted, between which so many of the runs lie, each source counting as much."""
    counts = Counter(run.source for run in runs)
    ratios = sorted((1.0 / (1.0 + run.error), 1.0 / counts[run.source] / len(counts)) for run in runs)
    sums = np.cumsum([weight for _, weight in ratios])
    low, high = np.searchsorted(sums, [(1.0 - inside) / 2.0, (1.0 + inside) / 2.0])
    return ratios[int(low)][0], ratios[min(int(high), len(ratios) - 1)][0]


def to_dict(rates: list[Rate], steps: list[Published]) -> dict[str, Any]:
    """Rates and steps as data."""
    return {
        "rates": [{**asdict(rate), "share": rate.share} for rate in rates],
        "steps": [
            {"name": run.name, "source": run.source, "measured_s": run.measured_s, "measured_rollout_s": run.rollout_s}
            | run.predicted.to_dict()
            for run in steps
        ],
    }


def view(rates: list[Rate], steps: list[Published]) -> Group:
    """Both as tables."""
    return Group(*_rates(rates), "", *_steps(steps))


def _rates(rates: list[Rate]) -> tuple[RenderableType, ...]:
    table = plain_table("engine", "rates", "median", "least", "most")
    by_engine = grouped((rate.engine, rate.share) for rate in rates)
    by_engine["all"] = [rate.share for rate in rates]
    for name, shares in by_engine.items():
        table.add_row(name, str(len(shares)), *(f"{each(shares):.0%}" for each in (median, min, max)))
    return Text("Tokens a second of TensorRT-LLM 1.0, of what is predicted", style="bold"), table


def _steps(runs: list[Published]) -> tuple[RenderableType, ...]:
    table = plain_table("run", "measured", "predicted", "error", "generation", "error", "limited by",
                        left=("run", "limited by"))  # fmt: skip
    for run in runs:
        step, timed = run.predicted, run.rollout_error
        table.add_row(
            f"{run.name}{' *' * run.drafted}", show_time(run.measured_s), show_time(step.step_time_s),
            f"{run.error:+.0%}", show_time(batch_time(step.pool, step.samples)),
            "" if timed is None else f"{timed:+.0%}", step.limit,
        )  # fmt: skip
    low, high = factors(runs)
    rollouts = [abs(run.rollout_error) for run in runs if run.rollout_error is not None and not run.drafted]
    words = (
        f"steps are {mean_error(runs):.0%} off in the mean over sources, generation {mean(rollouts):.0%}. Nine tenths "
        f"took {low:.2f} to {high:.2f} of the predicted time.\n* with a draft of a token, which is not modelled"
    )
    return Text("GRPO steps of NeMo RL", style="bold"), table, Text(words, style="dim")
