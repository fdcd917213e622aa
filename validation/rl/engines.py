"""Published rates of inference engines, predicted: how many tokens a second rollouts are written at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from sim.rl.fluid import batch_time
from sim.rl.pools import Inference, pool_of
from sim.rl.samples import Samples, lognormal_lengths
from sim.specs import build_scenario

TENSORRT_LLM = Path(__file__).parent / "tensorrt-llm-1.0.yaml"
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


def published_rates(path: Path = TENSORRT_LLM) -> list[Rate]:
    """All rates of a file."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
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
