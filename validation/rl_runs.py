"""`flopcast validate rl`: printed rates of inference engines and steps of reinforcement learning beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from rich.text import Text

from sim.report.terminal import grouped
from sim.rl.inference import Inference, RolloutPool
from sim.rl.rollout import batch_time
from sim.rl.samples import Samples, lognormal_lengths
from sim.rl.step import RlStep, colocated_step, split_step
from sim.rl.trainer import Recipe
from sim.specs import build_scenario
from sim.specs.yaml12 import load_yaml
from sim.table import rows_table
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
        machine = {name: engine[name] for name in ("model", "cluster")}
        scenario = build_scenario({**machine, "plan": {}, "training": training}, [])
        tp = engine["tp"]
        how = Inference(tp, "fp8", "fp8", memory_share=data["memory_share"], most_running=MANY, step_overhead_s=0.0)
        pool = RolloutPool(scenario, how, tp, tp)
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
    def generation_s(self) -> float:
        """The generation of a batch, from its first token to its last, as predicted. [s]"""
        return batch_time(self.predicted.pool, self.predicted.samples)

    @property
    def rollout_error(self) -> float | None:
        """Relative error of the generation, where it was timed by itself."""
        return None if self.rollout_s is None else self.generation_s / self.rollout_s - 1.0


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
    model, batch = data["models"].get(run["model"], run["model"]), run["plan"]["dp"]
    training = {"global_batch_size": batch, "sequence_length": run["longest"], "precision": "bf16"}
    plan |= {"sequence_parallel": run["plan"]["tp"] > 1, **run["plan"]}
    machine = {"cluster": cluster, "stack": data["stack"]}
    scenario = build_scenario({"name": name, "model": model, "plan": plan, "training": training, **machine})
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


def view(rates: list[Rate], steps: list[Published]) -> Iterator[Any]:
    """Both as tables."""
    by_engine = grouped((rate.engine, rate.share) for rate in rates)
    by_engine["all"] = [rate.share for rate in rates]
    yield Text("Tokens a second of TensorRT-LLM 1.0, of what is predicted", style="bold")
    cells = ((engine, str(len(shares)), *(f"{find(shares):.0%}" for find in (median, min, max)))
             for engine, shares in by_engine.items())  # fmt: skip
    yield rows_table(("engine", "rates", "median", "least", "most"), cells)
    yield ""
    yield Text("GRPO steps of NeMo RL", style="bold")
    cells = ((f"{run.name}{' *' * run.drafted}", show_time(run.measured_s), show_time(run.predicted.step_time_s),
              f"{run.error:+.0%}", show_time(run.generation_s),
              "" if run.rollout_s is None else f"{run.rollout_error:+.0%}", run.predicted.limit)
             for run in steps)  # fmt: skip
    yield rows_table(("run", "measured", "predicted", "error", "generation", "error", "limited by"), cells,
                     left=("run", "limited by"))  # fmt: skip
    low, high = factors(steps)
    rollouts = [abs(run.rollout_error) for run in steps if run.rollout_error is not None and not run.drafted]
    words = (
        f"steps are {mean_error(steps):.0%} off in the mean over sources, generation {mean(rollouts):.0%}. Nine tenths "
        f"took {low:.2f} to {high:.2f} of the predicted time.\n* with a draft of a token, which is not modelled"
    )
    yield Text(words, style="dim")
