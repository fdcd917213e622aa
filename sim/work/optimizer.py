"""The optimizer step as bytes moved per parameter."""

from __future__ import annotations

from sim.arrays import Number
from sim.specs import StackSpec, TrainingSpec
from sim.work.operations import Cause, Operation, memory

GRADIENT_WIDTH = {"fp16": 2, "bf16": 2, "fp32": 4}

#: fp32 master weight and Adam's two moments, or SGD's momentum. [bytes per parameter]
STATE_BYTES = {"adam": 12, "sgd": 8}


def state_bytes_per_param(training: TrainingSpec, stack: StackSpec | None = None) -> int:
    """Optimizer state: moments, and the fp32 master weights where weights are 16-bit. [bytes per parameter]

    A stack with packed masters keeps only the half of them that bf16 weights lack.
    """
    state = STATE_BYTES[training.optimizer]
    if stack is not None and stack.packed_masters and training.precision == "bf16":
        return state - 2
    return state if training.activation_bytes == 2 else state - 4


def optimizer_work(params: Number, stack: StackSpec, training: TrainingSpec) -> tuple[Operation, ...]:
    """Gradient norm, clipping and the update over `params` parameters on one GPU.

    Unfused, as in Megatron-LM of 2021 (`optimizer.py`, Float16OptimizerWithFloat16Params): gradients are copied to
    fp32, unscaled, their norm is taken, they are clipped, Adam runs, weights are copied back, gradients are cleared.
    """
    grad = GRADIENT_WIDTH[stack.gradient_precision]
    width = training.activation_bytes
    moments = 16 if training.optimizer == "adam" else 8
    update = 4 + 8 + moments  # the gradient, the master weight read and written, the moments read and written
    if stack.fused_optimizer:
        return (
            memory("gradient norm", grad * params, cause=Cause.OPTIMIZER),
            memory("update", (update - 4 + grad + width) * params, cause=Cause.OPTIMIZER, sort="adam"),
            memory("clear gradients", grad * params, cause=Cause.OPTIMIZER),
        )
    return (
        memory("copy gradients to fp32", (grad + 4) * params, cause=Cause.OPTIMIZER),
        memory("unscale and check", 8 * params, cause=Cause.OPTIMIZER),
        memory("gradient norm", 4 * params, cause=Cause.OPTIMIZER),
        memory("clip", 8 * params, cause=Cause.OPTIMIZER),
        memory("update", update * params, cause=Cause.OPTIMIZER, sort="adam"),
        memory("copy weights back", (4 + width) * params, cause=Cause.OPTIMIZER),
        memory("clear gradients", grad * params, cause=Cause.OPTIMIZER),
    )
