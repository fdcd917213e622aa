"""Low-rank adapters (LoRA): the model's weights are frozen, and only narrow matrices beside some linears are trained.

A linear y = x W becomes y = x W + x A B, with A of k × r and B of r × n [1]_. Frozen weights have no gradients, nothing
to sum over replicas and no optimizer state; gradients of the inputs go through them as before, and inputs are kept only
for linears with adapters. Experts on a GPU share one adapter (NVIDIA-NeMo/Megatron-Bridge:src/megatron/bridge/peft/
lora.py, which wraps the grouped linear as one).

.. [1] Hu et al. 2021, arXiv:2106.09685, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.specs import TrainingSpec
from sim.specs.base import STORED

TARGETS = {
    "linear_qkv": (
        "query, key, value", "queries", "queries' latent", "keys' and values' latent", "keys and values from latent",
    ),
    "linear_proj": ("attention output",),
    "linear_fc1": ("MLP up", "experts up", "shared expert up"),
    "linear_fc2": ("MLP down", "experts down", "shared expert down"),
    "in_proj": ("mamba2 in", "gated_delta_net in", "kimi_delta_attention in"),
    "out_proj": ("mamba2 out", "gated_delta_net out", "kimi_delta_attention out"),
}  # fmt: skip
"""Linears that can have adapters, by Megatron-Core's names, and the names of the operations."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters of one rank beside linears of some names; of each linear so many, of which a token meets one.

    frozen : format in which the matrices lie that they stand beside; None for that of the activations.
    """

    rank: int
    targets: tuple[str, ...]
    count: int = 1
    frozen: str | None = None

    @property
    def linears(self) -> frozenset[str]:
        """Names of the operations beside which they stand."""
        return frozenset(name for target in self.targets for name in TARGETS[target])

    def stored(self, width: float) -> float:
        """Size of a frozen number of a layer's matrices, over that of a number of so many bytes."""
        return STORED[self.frozen] / width if self.frozen else 1.0


def adapters_of(training: TrainingSpec) -> Adapters | None:
    """Return the adapters of a training job; None where all weights are trained."""
    if not training.adapter_rank:
        return None
    return Adapters(training.adapter_rank, training.adapter_targets, training.num_adapters, training.frozen_precision)
