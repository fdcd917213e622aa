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
    (r"DeepSpeed.*Liger", r"", "deepspeed-liger"),
    (r"DeepSpeed", r"", "deepspeed-zero3"),
    (r"Aleph Alpha", r"", "aleph-alpha"),
    (r"Composer", r"", "llm-foundry"),
    (r"Meta in-house", r"", "llama3"),
    (r"torchtitan|FSDP", r"", "torchtitan"),
    (r"NeMo", r"Launcher 2[23]", "nemo-2023"),
    (r"NeMo|Megatron|Pax", r"", "megatron-core"),
)
_DEFAULT = "megatron-core"
EAGER_RATE = 0.54
"""Of the memory bandwidth, what eager kernels reach that are counted one by one: as fitted in stack aleph-alpha."""
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
        stack["elementwise_rate"] = EAGER_RATE
    if found == "megatron-deepspeed" and row.get("precision") == "bf16":
        # DeepSpeed's BF16_Optimizer sums and reduces in fp32; it casts each gradient before it adds it
        # (microsoft/DeepSpeed:deepspeed/runtime/bf16_optimizer.py, update_hp_grads).
        stack |= {"gradient_precision": "fp32", "fused_gradient_cast": False}
    if found == "megatron-core" and re.search(r"NeMo(?!.*MLPerf)|Megatron-Bridge", framework):
        # Their recipes for performance: grad_sync_dtype bf16 (NeMo 1), grad_reduce_in_fp32 = False
        # (NVIDIA-NeMo/Megatron-Bridge:scripts/performance/configs).
        stack["gradient_precision"] = "bf16"
        inferred.append("gradient_precision bf16: the framework's recipes")
    if "NeMo" in framework and re.search(r"Launcher|NeMo 24|v25\.0[1-3]", source):
        # NVIDIA/NeMo:nemo/collections/nlp/models/language_modeling/megatron_base_model.py, store_param_remainders;
        # Transformer Engine 1 casts and transposes in kernels of its own (pytorch/module, fp8_cast_transpose_fused).
        stack |= {"packed_masters": True, "fused_casts": False}
        inferred.append("packed_masters, casts in kernels of their own: NeMo 1")
    if found == "megatron-2021" and "2020" in source:
        # NVIDIA/Megatron-LM v1.1: PyTorch's DistributedDataParallel, which reduces beside the backward.
        stack["overlap_grad_reduce"] = True
        inferred.append("overlap_grad_reduce: PyTorch's DistributedDataParallel in 2020")
    if re.search(r"moe_a2a_overlap=True|DualPipe", notes + framework):
        stack["overlap_experts"] = True
    if found == "megatron-core":
        # NVIDIA-NeMo/Megatron-Bridge:scripts/performance/configs, moe_flex_dispatcher_backend deepep or hybridep.
        stack["deduplicated_dispatch"] = True
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
