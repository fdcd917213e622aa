"""Saving memory: what a row says of it in words, and what a run must have done to fit where its row says nothing.

A run that was measured fitted. Where a row's layout does not, the mildest change of what it leaves open counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from calibration.readers.cells import Row

Sparing = tuple[dict[str, Any], str]
"""Changes of a plan that save memory, and the rule that allows them."""


def offloaded_layers(row: Row, layers: int, inferred: list[str]) -> int:
    """Layers whose activations the row, or its framework's script, keeps in host memory."""
    notes, framework = row.get("notes", ""), row.get("framework", "")
    said = re.search(r"cpu_offloading_num_layers=(\d+)", notes)
    if said:
        return min(int(said[1]), layers)
    if "Megatron TP" in framework and row.get("recompute") == "full":
        # bigscience-workshop/bigscience:experiments/gpt2-meg-ds-zero (PA, PA_CPU), a script of DeepSpeedExamples.
        inferred.append(f"offloaded_layers {layers}: the framework's script keeps checkpoints in host memory")
        return layers
    return 0


def sparing_changes(row: Row, plan: Mapping[str, Any], layers: int) -> Iterator[Sparing]:
    """Changes of the plan that a row leaves open, the mildest first, each with the rule that lists it."""
    unsaid = "the row gives none, and does not fit without"
    if not row.get("zero_stage") and plan["zero_stage"] == 0 and plan["dp"] > 1:
        yield {"zero_stage": 1}, f"zero_stage 1: {unsaid}"
    # Recipes of Megatron-FSDP on Grace hosts (NVIDIA-NeMo/Megatron-Bridge:scripts/performance/configs/llama,
    # cpu_offloading_num_layers: 5 to 92).
    if re.match(r"GB\d", row.get("gpu", "")) and plan["zero_stage"] == 3 and not plan.get("offloaded_layers"):
        for share in (0.25, 0.5, 0.75, 1.0):
            some = int(share * layers)
            yield {"offloaded_layers": some}, f"offloaded_layers {some}: the framework's recipes; {unsaid}"
    if "the table itself states only node counts" in row.get("notes", "") and row.get("recompute") == "none":
        yield {"recompute": "selective"}, "recompute selective: recompute none is a configuration's, and does not fit"
