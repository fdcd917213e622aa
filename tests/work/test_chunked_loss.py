"""The loss in pieces, as Liger makes them."""

import pytest
from counts import head_work

from sim.specs import ModelSpec, StackSpec
from sim.work.pieces import Cut


def test_pieces_of_ligers_loss():
    """As many as its kernel makes of them; each reads the head's weights twice, and reads and writes their gradient."""
    liger = StackSpec(chunked_loss=True, kernel_launch_s=0.0, fused_gradient_accumulation=False)
    model = ModelSpec(num_heads=16, hidden_size=2048, num_layers=32, vocab_size=151936)
    moved, launched = [], []
    for stack in (liger, liger.replace(fused_cross_entropy=False)):
        work = head_work(model, stack, Cut(1, 1, 4096, False, "none"))
        multiplies = [
            each
            for part in (work.forward, work.input_grad, work.weight_grad)
            for each in part.operations
            if each.kind == "matmul"
        ]
        moved.append(sum(each.nbytes for each in multiplies))
        launched.append([float(each.kernels) for each in multiplies])
    assert launched == [[64] * 3, [1] * 3]  # ceil(4096 / 75) = 55 tokens, and the next power of two
    assert moved[0] - moved[1] == pytest.approx(4 * 63 * 2 * model.vocab_size * model.hidden_size)
