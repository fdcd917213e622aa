"""The rollout pool: how long replicas of an inference engine take to write a batch of responses.

What memory it has room for, how many sequences decode at once, and what it gives where it never runs empty. How long
a batch takes that is waited for to its longest response is played by `sim.rl.fluid`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.costs.inference import Engine
from sim.errors import InfeasiblePlan, require_positive
from sim.rl.samples import Samples
from sim.units import show

RUNNING = 1024
"""Sequences that a replica decodes at once at most: a common default of engines on GPUs with 80 GB. Assumed."""
MEMORY_SHARE = 0.9
"""Share of a GPU's memory that an engine takes: vLLM's default (gpu_memory_utilization)."""
SHARED_MEMORY_SHARE = 0.6
"""Share that an engine takes where training uses the same GPUs (NVIDIA-NeMo/RL:examples/configs/grpo_math_1B.yaml)."""


@dataclass(frozen=True, slots=True)
class RolloutPool:
    """Replicas of an inference engine.

    gpu : name of the accelerator.
    cache_bytes : of one GPU, for keys and values. [bytes]
    most_running : sequences of a replica that decode at once, whatever memory allows.
    """

    engine: Engine
    gpu: str
    replicas: int
    cache_bytes: float
    most_running: int = RUNNING

    def __post_init__(self) -> None:
        require_positive(replicas=self.replicas, most_running=self.most_running)

    @property
    def num_gpus(self) -> int:
        """GPUs of the pool."""
        return self.replicas * self.engine.tp

    def require_cache(self, samples: Samples) -> None:
        """Refuse a replica that cannot hold its weights and the longest sequence.

        Raises
        ------
        InfeasiblePlan
        """
        engine = self.engine
        least = float(engine.cache_bytes(samples.longest_tokens))
        if self.cache_bytes < least:
            left = show(self.cache_bytes, "B") if self.cache_bytes > 0 else "nothing"
            raise InfeasiblePlan(
                f"a rollout replica of tp {engine.tp} does not fit: weights take {show(engine.weight_bytes, 'B')} of a "
                f"GPU and leave {left} for its cache. One sequence of {samples.longest_tokens:,.0f} tokens needs "
                f"{show(least, 'B')}; take a larger rollout tp, weights in fp8, or shorter responses"
            )

    def running(self, samples: Samples, together: bool) -> float:
        """Sequences of a replica that may decode at once.

        A cache in pages holds what sequences have come to, not their longest [1]_: where they begin together, the most
        a batch of them still runs at any age; where each follows another, the mean age. Prompts that a group shares
        are counted for each.

        .. [1] Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention",
           arXiv:2309.06180, section 4.
        """
        engine, prompt, lengths = self.engine, samples.prompt_tokens, samples.lengths
        if together:
            held = float((lengths.survival * engine.cache_bytes(prompt + lengths.middles)).max())
        else:
            weights = lengths.survival / lengths.survival.sum()
            held = float((weights * engine.cache_bytes(prompt + lengths.middles)).sum())
        return min(float(self.most_running), max(self.cache_bytes / held, 1.0)) if held else float(self.most_running)

    def prefill_s(self, samples: Samples) -> float:
        """Reading the prompts of a step, each once for its group, on every replica its share.  [s]"""
        return float(self.engine.prefill_s(samples.prompt_tokens, samples.written_groups / self.replicas))


def steady_time(pool: RolloutPool, samples: Samples) -> float:
    """What a batch takes of a pool that never runs empty: tokens over throughput, and the reading of prompts.  [s]"""
    pool.require_cache(samples)
    slots = pool.running(samples, together=False)
    share = samples.written / pool.replicas
    context = samples.prompt_tokens + samples.lengths.mean_age
    step = float(pool.engine.decode_s(max(slots, 1.0), context))
    return share * samples.lengths.mean * step / slots + pool.prefill_s(samples)
