"""The software stack of a measured run, from its framework, year and the kernels its notes name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from calibration.readers.csv_values import is_moe, name_patterns

_UNKNOWN = "pytorch"
_UNKNOWN_BEFORE_FLASH = "megatron-2021"
_FIRST_FLASH_YEAR = 2023
"""FlashAttention is of May 2022 (Dao et al. 2022, arXiv:2205.14135); training frameworks took it up by 2023."""
EAGER_RATE = 0.54
"""Of the memory bandwidth, what eager kernels reach that are counted one by one: as fitted in stack aleph-alpha."""
PIECEWISE_LAUNCH = {"kernel_launch": "50 us", "backward_launch": "60 us", "collective_launch": "50 us"}
"""Where layers run in pieces, each with an autograd call of its own, so that tokens travel during another micro-batch's
compute (NVIDIA/Megatron-LM:megatron/core/models/common/model_chunk_schedule_plan.py). Set on Megatron-Bridge's runs
with 16 experts a GPU and no CUDA graphs: 16 ms a layer in pieces (H100, B300), 9 ms without."""
GRAPH_LAUNCH = "2 us"
"""Of a kernel inside a CUDA graph: assumed, the floor of kernel times."""
_RELATIVES = r"Alpa|xFormers|SageMaker|metaseq|GPT-NeoX|HAI-LLM|MegaScale"
"""Frameworks without a stack of their own, which take the nearest."""


def stack_of(row: Mapping[str, str], plan: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Stack description and what was inferred."""
    framework, source, notes = (row.get(key, "") for key in ("framework", "source", "notes"))
    fitting = (
        entry["stack"]
        for entry in name_patterns("stacks")
        if re.search(entry["framework"], framework) and re.search(entry.get("source", ""), source)
    )
    found = next(fitting, None)
    rule = "by the framework"
    if found is None:
        found, rule = _unknown(row)
    stack: dict[str, Any] = {"preset": found}
    if re.search(_RELATIVES, framework):
        stack["name"] = "another framework"
    inferred = [f"stack {found}: {rule}"]
    if "MegaScale" in framework:
        stack["flash_version"] = "2"  # its paper is older than FlashAttention-3
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
        # NVIDIA/Megatron-LM v1.1: PyTorch's DistributedDataParallel, which reduces while the backward runs.
        stack["overlap_grad_reduce"] = True
        inferred.append("overlap_grad_reduce: PyTorch's DistributedDataParallel in 2020")
    if is_moe(row):
        changes, rules = _for_experts(row, found)
        stack |= changes
        inferred += rules
    if "mode PURE" in notes:
        stack["gradient_precision"] = "bf16"
    return stack, inferred


def _for_experts(row: Mapping[str, str], found: str) -> tuple[dict[str, Any], list[str]]:
    """How tokens travel to experts, and what launches their kernels: as the row's notes say, or the recipes' age."""
    framework, source, notes = (row.get(key, "") for key in ("framework", "source", "notes"))
    changes: dict[str, Any] = {}
    inferred: list[str] = []
    if found == "megatron-core":
        # NVIDIA-NeMo/Megatron-Bridge:scripts/performance/configs, moe_flex_dispatcher_backend deepep or hybridep.
        changes["deduplicated_dispatch"] = "all-to-all dispatcher" not in notes
    overlap = bool(re.search(r"moe_a2a_overlap=True|all-to-all overlap|DualPipe", notes + framework))
    graphs = "cuda_graph=full_iteration" in notes
    version = re.search(r"Megatron-Bridge performance summary (\d+\.\d+)", source)
    if "cuda_graph" not in notes and version and float(version[1]) >= 26.06 and row.get("precision") == "mxfp8":
        overlap = graphs = True
        inferred.append("tokens travel beside computation, launches by CUDA graphs: recipes since 26.06 for Blackwell")
    if "AutoModel" in framework:
        # NVIDIA-NeMo/Automodel:examples/llm_finetune and benchmark recipes: backend te for attention, linears and
        # norms, enable_deepep.
        changes |= {"deduplicated_dispatch": True, "fused_norm": True, "fused_rotary": True, "elementwise_rate": 1.0}
        inferred.append("Transformer Engine's kernels and DeepEP: the framework's recipes for experts")
    changes["overlap_experts"] = overlap
    if graphs:
        changes |= dict.fromkeys(("kernel_launch", "backward_launch", "collective_launch"), GRAPH_LAUNCH) | {
            "forward_setup": "0 s"
        }
    elif overlap and found == "megatron-core":
        changes |= PIECEWISE_LAUNCH
    return changes, inferred


def _unknown(row: Mapping[str, str]) -> tuple[str, str]:
    """The stack of a framework that has none here, and the rule: eager PyTorch, with flash attention or before it."""
    years = [int(year) for year in re.findall(r"\b(20[12]\d)\b", row.get("source", ""))]
    years += [2000 + int(year) for year in re.findall(r"arXiv:([12]\d)[01]\d\.", row.get("source", ""))]
    signs = {
        "V100": "V100" in row.get("gpu", ""),
        "fp16": row.get("precision") == "fp16",
        f"a source of {min(years, default=0)}": bool(years) and min(years) < _FIRST_FLASH_YEAR,
    }
    old = [sign for sign, applies in signs.items() if applies]
    if old:
        return _UNKNOWN_BEFORE_FLASH, f"an unknown framework before flash attention, by {', '.join(old)}"
    return _UNKNOWN, "an unknown framework, taken for eager PyTorch with flash attention"


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
