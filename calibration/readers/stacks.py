"""The software stack of a measured run, from its framework, year and the kernels its notes name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: (pattern of framework, pattern of source, stack preset); the first that fits counts.
_STACKS: tuple[tuple[str, str, str], ...] = (
    (r"^Megatron-LM$", r"2019", "megatron-2019"),
    (r"^Megatron-LM$", r"Activation Recomputation", "megatron-2022"),
    (r"^Megatron-LM", r"Zero Bubble", "megatron-2023"),
    (r"^Megatron-LM", r"MegaScale", "megatron-2023"),
    (r"^Megatron-LM", r"", "megatron-2021"),
    (r"Alpa|xFormers|SageMaker|metaseq|GPT-NeoX", r"", "megatron-2021"),
    (r"Megatron-DeepSpeed", r"", "megatron-deepspeed"),
    (r"Megatron TP", r"", "deepspeed-zero3"),
    (r"DeepSpeed", r"", "deepspeed-zero3"),
    (r"Aleph Alpha", r"", "aleph-alpha"),
    (r"Composer", r"", "llm-foundry"),
    (r"Meta in-house", r"", "llama3"),
    (r"torchtitan|FSDP", r"", "torchtitan"),
    (r"NeMo", r"Launcher 2[23]", "nemo-2023"),
    (r"NeMo|Megatron|Pax", r"", "megatron-core"),
)
_DEFAULT = "megatron-core"
_RELATIVES = r"Alpa|xFormers|SageMaker|metaseq|GPT-NeoX|ColossalAI|HAI-LLM"
"""Frameworks without a stack of their own, which take the nearest."""


def stack_of(row: Mapping[str, str], plan: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Stack description and what was inferred."""
    framework, source, notes = (row.get(key, "") for key in ("framework", "source", "notes"))
    found = next(
        (stack for words, of, stack in _STACKS if re.search(words, framework) and re.search(of, source)), _DEFAULT
    )
    stack: dict[str, Any] = {"preset": found}
    if re.search(_RELATIVES, framework):
        stack["name"] = "another framework"
    inferred = [f"stack {found}: by the framework"]
    kernel = re.search(r"attention/norm kernel: ([^;]*)", notes)
    if kernel:
        stack |= _kernels(kernel.group(1))
    if re.search(r"\beager\b", notes):
        stack |= {"fused_bias_activation": False, "fused_rotary": False, "fused_norm": False}
    if found == "megatron-deepspeed" and row.get("precision") == "bf16":
        stack["gradient_precision"] = "fp32"  # DeepSpeed's BF16_Optimizer sums and reduces in fp32
    if "mode PURE" in notes:
        stack["gradient_precision"] = "bf16"
    return stack, inferred


def _kernels(words: str) -> dict[str, Any]:
    """Attention and norm as a layout sweep names them: torch, fused (Megatron's softmax), flash 1 or 2, RMS kernel."""
    said = words.lower()
    changes: dict[str, Any] = {}
    if "flash" in said:
        changes["attention"] = "flash"
        changes["flash_version"] = "1" if "1" in said else "2"
    else:
        changes |= {"attention": "math", "fused_softmax": "fused" in said}
    changes["fused_norm"] = "rms kernel" in said
    return changes
