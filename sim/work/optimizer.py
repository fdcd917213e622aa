"""The optimizer: what it keeps of every parameter, what an update moves, and Muon's multiplies.

Moments are counted as numbers, which `training.moment_precision` gives a width: Adam has two of every parameter, SGD
one, Adafactor a row and a column of every matrix and one of every other parameter [1]_, Muon one of every matrix within
layers and Adam's two of the rest [2]_.

.. [1] Shazeer, Stern 2018, arXiv:1804.04235, section 3, without a first moment, as in T5.
.. [2] Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025 (Moonlight), arXiv:2502.16982.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import Number
from sim.specs import StackSpec, TrainingSpec
from sim.work.operations import Cause, Kernel, Weight, matmul, memory

#: Blocks of so many moments in 8 bits share an fp32 scale (bitsandbytes' and torchao's optimizers).
BLOCK = 256
#: Of one moment. fp8 has one scale a tensor (Transformer Engine's FusedAdam). [bytes]
MOMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0 + 4.0 / BLOCK}
#: Moments of every parameter that belongs to no matrix.
MOMENTS = {"adam": 2, "sgd": 1, "adafactor": 1, "muon": 2}

NEWTON_SCHULZ_STEPS = 5
"""Iterations by which Muon orthogonalises an update (Jordan et al. 2024)."""


def moment_bytes(training: TrainingSpec) -> float:
    """What a moment takes, as a mean where adam's two are kept in different precisions. [bytes]"""
    first = MOMENT_BYTES[training.moment_precision]
    return (first + MOMENT_BYTES[training.second_moment_precision or training.moment_precision]) / 2


def master_bytes(training: TrainingSpec, stack: StackSpec) -> int:
    """What the optimizer keeps of a weight besides the 16-bit one. [bytes per parameter]

    A stack with packed masters keeps only the half of them that bf16 weights lack.
    """
    if training.activation_bytes == 4 or training.master_precision == "none":
        return 0
    packed = stack.packed_masters and training.precision == "bf16"
    return 2 if packed or training.master_precision == "fp16" else 4


def state_bytes(
    params: Number, moments: Number, training: TrainingSpec, stack: StackSpec, offloaded: float = 0.0
) -> Number:
    """Optimizer state on a GPU: moments, and master weights where weights are 16-bit. [bytes]

    offloaded : share of the parameters whose state is in host memory.
    """
    elsewhere = offloaded if stack.offload_masters else 0.0
    masters = master_bytes(training, stack) * params * (1.0 - elsewhere)
    return moment_bytes(training) * moments * (1.0 - offloaded) + masters


def update_bytes(
    params: Number, moments: Number, training: TrainingSpec, stack: StackSpec, offloaded: float = 0.0
) -> Number:
    """What an update holds on a GPU beside what `state_bytes` counts, when activations are gone. [bytes]

    Copies of the gradients in fp32 where no kernel does all; its temporaries; and the state that waits in host memory
    otherwise and comes for the update. What the CPU updates has no temporaries here.
    """
    copies = 0 if stack.fused_optimizer else 4
    here = params * (1.0 - offloaded) if stack.updates_on_host else params
    return (copies + 4 * stack.update_temporaries) * here + coming_bytes(params, moments, training, stack, offloaded)


def coming_bytes(
    params: Number, moments: Number, training: TrainingSpec, stack: StackSpec, offloaded: float = 0.0
) -> Number:
    """Optimizer state that comes to the GPU for an update and goes back to host memory. [bytes]"""
    if stack.updates_on_host:
        return 0.0 * params
    there = state_bytes(params, moments, training, stack, offloaded)
    return state_bytes(params, moments, training, stack) - there


def host_update(
    params: Number, moments: Number, stack: StackSpec, training: TrainingSpec
) -> tuple[Number, Number, Number]:
    """What an update of state in host memory sends out and back, and reads and writes of the host's memory. [bytes]

    Out go gradients, cast to 32 bits first; back come weights, in 32 bits where their masters are on the GPU. The
    update reads the gradient, and reads and writes the 32-bit master and moments. Where the state comes to the GPU
    instead, it goes back and out.

    params, moments : of the share of the state that is there.
    """
    if not stack.updates_on_host:
        state = coming_bytes(params, moments, training, stack, 1.0)
        return state, state, 0.0 * params
    width = training.activation_bytes if stack.offload_masters else 4
    return 4 * params, width * params, 12 * params + 2 * moment_bytes(training) * moments


def optimizer_work(
    params: Number, moments: Number, stack: StackSpec, training: TrainingSpec, offloaded: float = 0.0
) -> tuple[Kernel, ...]:
    """Gradient norm, clipping and the update over `params` parameters on one GPU, but for what the host updates.

    Muon's multiplies are `orthogonalisation`. Adafactor reads gradients once more, for the means of their squares.

    Unfused, as in Megatron-LM of 2021 (`optimizer.py`, Float16OptimizerWithFloat16Params): gradients are copied to
    fp32, unscaled, their norm is taken, they are clipped, Adam runs, weights are copied back, gradients are cleared.
    """
    grad, width = stack.gradient_bytes, training.activation_bytes
    # The master weight read and written (a half of it where the other is the weight); without, the weight read.
    master = {"fp32": 8, "fp16": 4, "none": width if width == 2 else 8}[training.master_precision]
    state = master * params + 2 * moment_bytes(training) * moments
    more = grad * params if training.optimizer == "adafactor" else 0.0
    here = 1.0 - offloaded
    if stack.fused_optimizer:
        sort = "narrow adam" if moment_bytes(training) <= 2 and training.master_precision == "none" else "adam"
        # PyTorch multiplies gradients by what clips them, whether it is one or not, and may drop them then.
        last, moved = ("clip gradients", 2) if stack.drops_gradients else ("clear gradients", 1)
        return (
            memory("gradient norm", grad * params, cause=Cause.OPTIMIZER),
            memory("update", (state + more + (grad + width) * params) * here, cause=Cause.OPTIMIZER, sort=sort),
            memory(last, moved * grad * params, cause=Cause.OPTIMIZER),
        )
    return (
        memory("copy gradients to fp32", (grad + 4) * params, cause=Cause.OPTIMIZER),
        memory("unscale and check", 8 * params, cause=Cause.OPTIMIZER),
        memory("gradient norm", 4 * params, cause=Cause.OPTIMIZER),
        memory("clip", 8 * params, cause=Cause.OPTIMIZER),
        memory("update", (state + more + 4 * params) * here, cause=Cause.OPTIMIZER, sort="adam"),
        memory("copy weights back", (4 + width) * params * here, cause=Cause.OPTIMIZER),
        memory("clear gradients", grad * params, cause=Cause.OPTIMIZER),
    )


def orthogonalisation(matrix: Weight) -> tuple[Kernel, ...]:
    """Muon's Newton-Schulz iterations over matrices of n × m numbers, m ≤ n, in 16 bits.

    Each of the five makes X Xᵀ (2 m² n FLOPs), its polynomial (2 m³) and the product with X (2 m² n).
    """
    rows, columns = matrix.rows, 1 if matrix.columns is None else matrix.columns
    m, n = np.minimum(rows, columns), np.maximum(rows, columns)
    shapes = {"gram": (m, m, n), "polynomial": (m, m, m), "product": (m, n, m)}
    steps = NEWTON_SCHULZ_STEPS * matrix.count
    return tuple(
        matmul(f"Newton-Schulz {name}", *shape, 2, batch=steps, cause=Cause.OPTIMIZER) for name, shape in shapes.items()
    )
