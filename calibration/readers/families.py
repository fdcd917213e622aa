"""Which runs belong together: those that share a recipe, and those of one sweep of layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LINEAGE: tuple[tuple[str, str], ...] = (
    ("nemo", "nvidia"), ("dgx cloud", "nvidia"), ("megatron-bridge", "nvidia"), ("mlperf", "nvidia"),
    ("moe-modelzoo", "nvidia"), ("megatron-lm", "megatron"), ("activation recomputation", "megatron"),
    ("bigscience", "bigscience"), ("vtrain", "vtrain"), ("aleph alpha", "aleph alpha"), ("llm-foundry", "llm-foundry"),
    ("zero bubble", "zero bubble"), ("torchtitan", "torchtitan"), ("torchao", "torchtitan"),
)  # fmt: skip


def family_of(row: Mapping[str, str]) -> str:
    """Lineage of the source and the model: runs that share a recipe, which cross-validation leaves out together."""
    source = row.get("source", "").lower()
    lineage = next((to for word, to in _LINEAGE if word in source), re.sub(r"\W*\(.*", "", source))
    name = re.sub(r"[^a-z0-9.]", "", row.get("model_name", "").lower()).replace("3.1", "3")
    return f"{lineage} / {name}"


def sweep_of(row: Mapping[str, str]) -> str:
    """What a sweep of layouts keeps fixed."""
    fixed = ("source", "gpu", "num_gpus", "model_name", "seq_len", "global_batch_seqs", "precision", "framework")
    return " | ".join(row.get(key, "") for key in fixed)
