"""Megatron-Bridge's recipes in Python: of one function, of a common one with arguments, and
workloads of its performance scripts."""

HUB = {
    "meta-llama/Meta-Llama-3-8B": 8.03e9, "Qwen/Qwen3-8B": 8.19e9, "Qwen/Qwen2.5-7B": 7.616e9,
    "meta-llama/Llama-3.2-1B": 1.236e9,
}  # fmt: skip


def write(rng):
    hub = rng.choice([*HUB])
    tp, pp, cp = rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.choice([1, 2])
    batch, micro, length = rng.choice([128, 512]), rng.choice([1, 2]), rng.choice([4096, 8192])
    facts = {
        "plan.tp": tp, "plan.pp": pp, "plan.cp": cp, "plan.sequence_parallel": tp > 1, "plan.microbatch_size": micro,
        "training.global_batch_size": batch, "training.sequence_length": length, "training.precision": "bf16",
        "plan.zero_stage": 1,
    }  # fmt: skip
    values = {
        "model.tensor_model_parallel_size": tp, "model.pipeline_model_parallel_size": pp, "model.context_parallel_size": cp,
        "model.sequence_parallel": tp > 1, "train.global_batch_size": batch, "train.micro_batch_size": micro,
        "dataset.seq_length": length, "model.seq_length": length, "train.train_iters": 100,
    }  # fmt: skip
    form = rng.choice(["assigned", "common", "workload"])
    if form == "workload":
        return _workload(rng, tp, pp, cp, batch, micro)
    facts["parameters"] = HUB[hub]
    if rng.random() < 0.4:
        facts |= {"plan.recompute": "full", "plan.recompute_method": "uniform"}
        values |= {
            "model.recompute_granularity": "full", "model.recompute_method": "uniform", "model.recompute_num_layers": 1,
        }  # fmt: skip
    text = {"assigned": _assigned, "common": _common}[form](rng, hub, values)
    return "recipe.py", text, facts, {"gpus": 64}


def _lines(rng, values, indent="    "):
    lines = [f"{indent}cfg.{name} = {value!r}" for name, value in values.items()]
    rng.shuffle(lines)
    return lines


def _assigned(rng, hub, values):
    bridge = [f'    cfg.model = AutoBridge.from_hf_pretrained("{hub}").to_megatron_provider(load_weights=False)']
    lines = [
        "import torch", "from megatron.bridge import AutoBridge",
        "from megatron.bridge.recipes.common import _pretrain_common", "", "",
        "def my_pretrain_config() -> ConfigContainer:", "    cfg = _pretrain_common()", *bridge, *_lines(rng, values),
        "    cfg.optimizer.exp_avg_dtype = torch.float32", '    cfg.mixed_precision = "bf16_mixed"', "    return cfg",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _common(rng, hub, values):
    """Keyword arguments through a function of the file."""
    short = {name.partition(".")[2] + ("_of_data" if name == "dataset.seq_length" else ""): name for name in values}
    given = ", ".join(f'"{name}": {values[whole]!r}' for name, whole in short.items())
    places = {
        place: [name for name in short if short[name].startswith(place)] for place in ("model", "train", "dataset")
    }
    sets = "\n".join(f"    model_cfg.{short[name].partition('.')[2]} = {name}" for name in places["model"])
    train = ", ".join(f"{short[name].partition('.')[2]}={name}" for name in places["train"])
    return f'''from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer, DistributedDataParallelConfig, GPTDatasetConfig, TrainingConfig


def pretrain_config(**user_kwargs):
    recommended = {{"hf_path": "{hub}", {given}}}
    return _common(**{{**recommended, **user_kwargs}})


def _common(hf_path, {", ".join(f"{name}=None" for name in short)}, dir=None):
    base = dir if dir is not None else os.path.join(os.getcwd(), "x")
    bridge = AutoBridge.from_hf_pretrained(hf_path)
    model_cfg = bridge.to_megatron_provider(load_weights=False)
{sets}
    return ConfigContainer(
        model=model_cfg,
        train=TrainingConfig({train}),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
        dataset=GPTDatasetConfig(seq_length=seq_length_of_data),
        mixed_precision="bf16_mixed",
    )
'''


def _workload(rng, tp, pp, cp, batch, micro):
    gpu, precision = rng.choice(["H100", "GB200"]), rng.choice(["BF16", "FP8_CS"])
    name = f"LLAMA3_70B_PRETRAIN_CONFIG_{gpu}_{precision}_V1"
    fields = [f"tensor_model_parallel_size={tp}", f"pipeline_model_parallel_size={pp}", f"context_parallel_size={cp}",
              f"micro_batch_size={micro}"]  # fmt: skip
    rng.shuffle(fields)
    text = f"""from dataclasses import replace
from utils.utils import WorkloadBaseConfig
BASE_LLAMA3_70B_CONFIG = WorkloadBaseConfig(num_gpus=64, global_batch_size={batch})
{name} = replace(
    BASE_LLAMA3_70B_CONFIG,
    {", ".join(fields)},
)
LATER = replace({name}, global_batch_size=256)
"""
    facts = {
        "gpus": 64, "plan.tp": tp, "plan.pp": pp, "plan.cp": cp, "plan.microbatch_size": micro, "training.global_batch_size": batch,
        "training.precision": {"BF16": "bf16", "FP8_CS": "fp8"}[precision], "training.sequence_length": 8192, "parameters": 70.55e9,
        "cluster.node.gpu.name": {"H100": "H100-SXM5-80GB", "GB200": "GB200-186GB"}[gpu],
    }  # fmt: skip
    return "llama3_workload_base_configs.py", text, facts, {"recipe": name}
