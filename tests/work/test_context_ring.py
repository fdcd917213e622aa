"""Context parallelism that sends keys and values round a ring: what its steps move beside attending."""

import numpy as np
import pytest
from counts import attention_core

from sim.specs import ModelSpec, StackSpec
from sim.specs.base import FORMATS
from sim.work.pieces import Cut

MODEL = ModelSpec(num_layers=4, hidden_size=4096, num_heads=32, num_kv_heads=8, vocab_size=32000, position="rotary")
TOKENS, HEADS, SHARED = 8192, 16 * 128, 2 * 4 * 128  # of a tensor-parallel rank: queries' columns, keys' and values'


def steps(cp, precision="bf16", **changes):
    stack = StackSpec(kernel_launch_s=0.0, **changes)
    cut = Cut(tp=2, cp=cp, microbatch_size=1, sequence_length=TOKENS, sequence_parallel=False, recompute="none",
              format=FORMATS.get(precision))  # fmt: skip
    work = attention_core(MODEL, stack, cut)
    return [
        [item for item in phase.operations if item.name.startswith("steps of the ring")]
        for phase in (work.forward, work.input_grad)
    ]


def test_two_steps_move_what_is_counted_by_hand():
    (there,), (back,) = steps(2)
    held = 2 * TOKENS / 2  # bytes of a column of this rank's tokens
    # scale the first output, add the other one; join keys and values, lay out half of those that come
    assert there.nbytes == held * (2 * HEADS + 3 * HEADS + 2 * SHARED + SHARED)
    # copy and add the queries' gradients; the ring's keys, joins, a copy and a sum of the keys' gradients
    assert back.nbytes == held * (2 * HEADS + 3 * HEADS + (2 + 2 + 2) * SHARED + (1 + 2 + 3) * SHARED)
    assert (there.kernels, back.kernels) == (10, 12)


def test_steps_in_8_bits_are_summed_in_fp32():
    (there,), (back,) = steps(2, "fp8", fp8_attention=True)
    tokens = TOKENS / 2
    # of outputs: both cast to fp32, the first scaled, the other scaled and added, the sum cast to 16 bits and to 8
    assert there.nbytes == tokens * ((2 * (1 + 4) + (4 + 4) + 3 * 4 + (4 + 2) + (2 + 1)) * HEADS + (2 + 1) * SHARED)
    # of gradients: both copied, cast to fp32, read, summed and cast to 16 bits; keys and values are joined besides
    summed = 2 * (2 + (1 + 4) + 4) + 4 + (4 + 2)
    assert back.nbytes == tokens * (summed * HEADS + (summed + 2 * 2) * SHARED)


def test_every_rank_more_is_a_step_more():
    of_degree = [steps(cp)[0][0] for cp in (2, 4, 8)]
    assert [item.kernels for item in of_degree] == [10, 24, 52]
    # a rank's tokens are fewer, and its steps more: outputs alone are read twice and written once in each
    assert [item.nbytes * cp / TOKENS / 2 for item, cp in zip(of_degree, (2, 4, 8), strict=True)] == [
        HEADS * (2 + 3 * more) + SHARED * (2 + more) for more in (1, 3, 7)
    ]


@pytest.mark.parametrize(
    "changes", [{"context_by_heads": True}, {"overlap_context": False}, {"balanced_context": False}]
)
def test_other_ways_have_no_such_steps(changes):
    assert steps(2, **changes) == [[], []]


def test_one_rank_has_none_beside_others_that_do():
    assert steps(1) == [[], []]
    (there,), _ = steps(np.array([1, 2]))
    assert there.nbytes[0] == there.kernels[0] == 0
    assert there.nbytes[1] == steps(2)[0][0].nbytes
