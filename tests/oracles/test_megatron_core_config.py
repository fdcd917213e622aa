"""Exports to Megatron-Bridge, and so to Megatron-LM, whose options these are: Megatron-Core's own records accept them.

Where it is installed: pip install --no-deps megatron-core==0.16.1. Transformer Engine need not be.
"""

import dataclasses
import logging
from contextlib import suppress

import pytest
from random_scenarios import exported_of

from sim.specs.yaml12 import parse_yaml

torch = pytest.importorskip("torch")
configs = pytest.importorskip("megatron.core.transformer.transformer_config")
optimizers = pytest.importorskip("megatron.core.optimizer.optimizer_config")
data_parallel = pytest.importorskip("megatron.core.distributed.distributed_data_parallel_config")
utils = pytest.importorskip("megatron.core.utils")

SEEDS = range(200)
NEEDS_ENGINE = ("moe_permute_fusion", "gradient_accumulation_fusion")
"""Fused kernels that are looked for when a record is made."""
PRECISIONS = {  # megatron/bridge/training/mixed_precision.py
    "null": {},
    "bf16_mixed": {"bf16": True},
    "fp16_mixed": {"fp16": True},
    "bf16_with_fp8_delayed_scaling_mixed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "delayed"},
    "bf16_with_fp8_current_scaling_mixed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "bf16_with_fp8_subchannel_scaling_mixed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "blockwise"},
    "bf16_with_mxfp8_mixed": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "bf16_with_nvfp4_mixed": {"bf16": True, "fp4": "e2m1", "fp4_recipe": "nvfp4"},
}


@pytest.fixture
def engine(monkeypatch):
    """Transformer Engine is as new as can be."""
    for module in (utils, configs, optimizers):
        monkeypatch.setattr(module, "is_te_min_version", lambda *_: True, raising=False)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def sections(exported):
    """Overrides by section, their values as Python has them."""
    found = {"model": {}, "optimizer": {}, "ddp": {}}
    for override in exported.data["overrides"]:
        path, _, text = override.partition("=")
        section, _, name = path.partition(".")
        if section in found:
            value = getattr(torch, text[6:]) if text.startswith("torch.") else parse_yaml(text, path)
            found[section][name] = tuple(value) if name == "window_size" else value
        elif section == "mixed_precision":
            precision = PRECISIONS[text]
    return found, precision


@pytest.mark.usefixtures("engine")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_megatron_core_accepts_what_is_exported(seed):
    exported = exported_of("megatron-bridge", seed)
    if exported is None:
        return
    found, precision = sections(exported)
    model = found["model"] | precision
    latent = model.get("multi_latent_attention", False)
    record = configs.MLATransformerConfig if latent else configs.TransformerConfig
    fields = {field.name for field in dataclasses.fields(record)} - {*NEEDS_ENGINE}
    gated, half = model.get("gated_linear_unit", False), torch.float16 if "fp16" in precision else torch.bfloat16
    record(
        **{name: value for name, value in model.items() if name in fields},
        activation_func=torch.nn.functional.silu if gated else torch.nn.functional.gelu,
        pipeline_dtype=half if precision else torch.float32,
        gradient_accumulation_fusion=False,
    )
    with suppress(RuntimeError):  # of what it looks at last: whether Transformer Engine's FusedAdam is there
        optimizers.OptimizerConfig(**found["optimizer"])
    data_parallel.DistributedDataParallelConfig(**found["ddp"])
