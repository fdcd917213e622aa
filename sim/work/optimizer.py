"""The optimizer step as bytes moved per parameter."""

from __future__ import annotations

from dataclasses import dataclass

from sim.arrays import Number
from sim.specs import StackSpec, TrainingSpec
from sim.work.operations import Cause, Operation, memory

GRADIENT_WIDTH = {"fp16": 2, "bf16": 2, "fp32": 4}

#: fp32 master weight and Adam's two moments, or SGD's momentum. [bytes per parameter]
STATE_BYTES = {"adam": 12, "sgd": 8}


def state_bytes_per_param(training: TrainingSpec, stack: StackSpec | None = None, offloaded: float = 0.0) -> float:
    """Optimizer state on a GPU: moments, and the fp32 master weights where weights are 16-bit. [bytes per parameter]

    A stack with packed masters keeps only the half of them that bf16 weights lack.

    Parameters
    ----------
    offloaded : float
        Share of the parameters whose state is in host memory.
    """
    moments, masters = STATE_BYTES[training.optimizer] - 4, 4
    if stack is not None and stack.packed_masters and training.precision == "bf16":
        masters = 2
    elif training.activation_bytes == 4:
        masters = 0
    elsewhere = offloaded if stack is None or stack.offload_masters else 0.0
    return moments * (1.0 - offloaded) + masters * (1.0 - elsewhere)


@dataclass(frozen=True, slots=True)
class HostUpdate:
    """What an update on the host moves. [bytes]

    out : gradients to the host, which are cast to 32 bits first. back : weights to the GPU, in 32 bits where their
    masters are there.
    memory : what the update reads and writes of the host's memory.
    """

    out: Number
    back: Number
    memory: Number


def host_update(params: Number, stack: StackSpec, training: TrainingSpec) -> HostUpdate:
    """An update on the host over `params` parameters: gradient read, master and moments read and written."""
    width = training.activation_bytes if stack.offload_masters else 4
    return HostUpdate(4 * params, width * params, (4 + 2 * STATE_BYTES[training.optimizer]) * params)


def optimizer_work(
    params: Number, stack: StackSpec, training: TrainingSpec, offloaded: float = 0.0
) -> tuple[Operation, ...]:
    """Gradient norm, clipping and the update over `params` parameters on one GPU, but for what the host updates.

    Unfused, as in Megatron-LM of 2021 (`optimizer.py`, Float16OptimizerWithFloat16Params): gradients are copied to
    fp32, unscaled, their norm is taken, they are clipped, Adam runs, weights are copied back, gradients are cleared.
    """
    grad = GRADIENT_WIDTH[stack.gradient_precision]
    width = training.activation_bytes
    moments = 16 if training.optimizer == "adam" else 8
    update = 4 + 8 + moments  # the gradient, the master weight read and written, the moments read and written
    here = params * (1.0 - offloaded)
    if stack.fused_optimizer:
        return (
            memory("gradient norm", grad * params, cause=Cause.OPTIMIZER),
            memory("update", (update - 4 + grad + width) * here, cause=Cause.OPTIMIZER, sort="adam"),
            memory("clear gradients", grad * params, cause=Cause.OPTIMIZER),
        )
    return (
        memory("copy gradients to fp32", (grad + 4) * params, cause=Cause.OPTIMIZER),
        memory("unscale and check", 8 * params, cause=Cause.OPTIMIZER),
        memory("gradient norm", 4 * params, cause=Cause.OPTIMIZER),
        memory("clip", 8 * params, cause=Cause.OPTIMIZER),
        memory("update", update * here, cause=Cause.OPTIMIZER, sort="adam"),
        memory("copy weights back", (4 + width) * here, cause=Cause.OPTIMIZER),
        memory("clear gradients", grad * params, cause=Cause.OPTIMIZER),
    )
