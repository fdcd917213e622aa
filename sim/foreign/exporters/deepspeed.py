"""DeepSpeed: its JSON, for plans that are all data parallelism; the model stands in the training program."""

from __future__ import annotations

import json
from typing import Any

from sim.foreign.exporters.account import Account, exporter_table

KIND = "deepspeed"


def export_deepspeed(account: Account) -> tuple[str, dict[str, Any]]:
    """The JSON, and what stands in it. Raises SpecError: DeepSpeed's JSON cannot say the plan."""
    scenario = account.scenario
    data: dict[str, Any] = {
        "train_batch_size": scenario.training.global_batch_size,
        "train_micro_batch_size_per_gpu": scenario.plan.microbatch_size,
        "gradient_accumulation_steps": scenario.num_microbatches,
    }
    _elsewhere(account)
    _precision(account, data)
    _optimizer(account, data)
    _zero(account, data)
    account.settle()
    for section, value in data.items():
        for key, item in (value if isinstance(value, dict) else {"": value}).items():
            name = f"{section}.{key}" if key else section
            account.say(name, item, *_SAYS.get(name, ()))
    return json.dumps(data, indent=2) + "\n", data


_SAYS = {
    "train_batch_size": ("training.global_batch_size",),
    "train_micro_batch_size_per_gpu": ("plan.microbatch_size",),
    "gradient_accumulation_steps": ("training.global_batch_size", "plan.dp"),
    "bf16.enabled": ("training.precision",),
    "fp16.enabled": ("training.precision",),
    "optimizer.type": ("training.optimizer",),
    "data_types.grad_accum_dtype": ("stack.gradient_precision",),
    "communication_data_type": ("stack.gradient_precision",),
    "zero_optimization.stage": ("plan.zero_stage",),
    "zero_optimization.overlap_comm": ("stack.overlap_grad_reduce", "stack.overlap_param_gather"),
    "zero_optimization.offload_optimizer": ("plan.optimizer_offload",),
    "zero_optimization.stage3_max_reuse_distance": ("stack.max_reuse_params",),
}
"""Which fields a key says."""


def _elsewhere(account: Account) -> None:
    """What the training program says, not the JSON."""
    scenario = account.scenario
    account.leave("model.name", "the training program builds the model")
    more = {"selective": ("recompute_modules",), "full": ("recompute_method", "recompute_num_layers")}
    for field in ("recompute", *more.get(scenario.plan.recompute, ())):
        account.leave(f"plan.{field}", "the training program decides whether to checkpoint activations")
    if scenario.model.num_experts:
        account.leave("plan.ep", "the training program gives ep_size to deepspeed.moe.layer.MoE")
    account.leave("training.sequence_length", "the training program's data")


def _precision(account: Account, data: dict[str, Any]) -> None:
    training, stack, known = account.scenario.training, account.scenario.stack, exporter_table(KIND)["precisions"]
    if training.precision not in known:
        why = f"its JSON has {', '.join(known)}"
        account.refuse("training.precision", why, "--set training.precision=bf16")
        return
    for half in ("bf16", "fp16"):
        data[half] = {"enabled": half in known[training.precision]}
    kept = stack.gradient_precision
    if training.precision == "fp32" and kept != "fp32":
        account.leave("stack.gradient_precision", "fp32 beside weights in fp32")
    elif {kept, training.precision} == {"bf16", "fp16"}:
        account.leave(
            "stack.gradient_precision", f"{training.precision} or fp32 beside weights in {training.precision}"
        )
    else:
        data["communication_data_type"] = kept
        data["data_types"] = {"grad_accum_dtype": kept}


def _optimizer(account: Account, data: dict[str, Any]) -> None:
    name, known = account.scenario.training.optimizer, exporter_table(KIND)["optimizers"]
    if name in known:
        data["optimizer"] = {"type": known[name]}
    else:
        why = f"its JSON has {', '.join(known)}; the training program passes others"
        account.leave("training.optimizer", why)


def _zero(account: Account, data: dict[str, Any]) -> None:
    plan, stack = account.scenario.plan, account.scenario.stack
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    data["zero_optimization"] = zero
    if plan.zero_stage:
        zero["overlap_comm"] = stack.overlap_grad_reduce
    elif not stack.overlap_grad_reduce:
        account.leave("stack.overlap_grad_reduce", "without ZeRO no key says it")
    if stack.overlap_param_gather != stack.overlap_grad_reduce:
        account.leave("stack.overlap_param_gather", "overlap_comm says it together with the reduction of gradients")
    if plan.reshard_after_forward == "default":
        account.decide("plan.reshard_after_forward", "true, as without a pipeline")
    if plan.sharding_group is not None:
        account.decide("plan.sharding_group", "all GPUs, as without it")
    if stack.max_reuse_params is not None and plan.zero_stage == 3:
        zero["stage3_max_reuse_distance"] = int(stack.max_reuse_params)
        account.cover("stack.max_reuse_params")
    if plan.optimizer_offload:
        part = {"ratio": plan.optimizer_offload} if plan.optimizer_offload < 1 else {}
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True, **part}
