"""Memory savings: what a row says of them in words, and what a run must have done to fit where its row says nothing.

A run that was measured fitted. Where a row's layout does not, the mildest change of what it leaves open counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from calibration.readers.csv_values import Row, is_moe

MemorySaving = tuple[dict[str, Any], str]
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


def memory_savings(row: Row, plan: Mapping[str, Any], layers: int) -> Iterator[MemorySaving]:
    """Changes of the plan that a row leaves open, the mildest first, each with the rule that lists it."""
    unsaid = "the row gives none, and does not fit without"
    if not row.get("zero_stage") and plan["zero_stage"] == 0 and plan["dp"] > 1:
        yield {"zero_stage": 1}, f"zero_stage 1: {unsaid}"
    for some, rule in _offloading(row, plan, layers):
        yield {"offloaded_layers": some}, f"offloaded_layers {some}: {rule}; {unsaid}"
    if "the table itself states only node counts" in row.get("notes", "") and row.get("recompute") == "none":
        for mode in ("selective", "full"):
            yield {"recompute": mode}, f"recompute {mode}: recompute none is a configuration's, and does not fit"
    if is_moe(row) and not row.get("recompute"):
        for mode in ("selective", "full"):
            yield {"recompute": mode}, f"recompute {mode}: {unsaid}"
    if "Mic-BS = GBS/DP" in row.get("notes", ""):
        size = plan_size = int(float(row["micro_batch_seqs"]))
        while size % 2 == 0:
            size //= 2
            yield (
                {"microbatch_size": size},
                f"microbatch_size {size}: the source's {plan_size} is what a replica sees in a step, and does not fit",
            )


def _offloading(row: Row, plan: Mapping[str, Any], layers: int) -> Iterator[tuple[int, str]]:
    """Layers that keep their activations in host memory, the fewest first, and what allows it."""
    if plan.get("offloaded_layers"):
        return
    if "DeepSpeed ZeRO-3" in row.get("framework", "") and row.get("recompute") == "full":
        rule = "the framework can keep checkpoints in host memory (deepspeed.ai/docs/config-json, cpu_checkpointing)"
        yield layers, rule  # all or none
        return
    # Hosts of Grace hand memory over at 450 GB/s: recipes of Megatron-FSDP offload 5 to 92 layers (cpu_offloading_
    # num_layers in NVIDIA-NeMo/Megatron-Bridge:scripts/performance/configs/llama).
    if re.match(r"GB\d", row.get("gpu", "")) and re.search(r"Megatron", row.get("framework", "")):
        for share in (0.25, 0.5, 0.75, 1.0):
            yield int(share * layers), "the framework's recipes"
