"""Tensor parallelism whose collectives run along the first dimension: copies that put pieces of sequences in order."""

import pytest
from counts import layer_operations

from sim.specs import ModelSpec, StackSpec
from sim.work.pieces import Cut

MODEL = ModelSpec(num_layers=4, hidden_size=4096, num_heads=32, num_kv_heads=8, vocab_size=32000, position="rotary")


def copies(sequences, tp=4, **stack):
    cut = Cut(tp=tp, microbatch_size=sequences, sequence_length=1024, sequence_parallel=True, recompute="none")
    work = layer_operations(
        MODEL, StackSpec(**{"copies_pieces": True, "compiled": False, "kernel_launch_s": 0.0, **stack}), cut
    )
    named = [kernel for each in work for kernel in (*each.forward, *each.input_grad) if kernel.sort == "joined"]
    return {name: sum(kernel.nbytes for kernel in named if kernel.name == f"pieces {name}")
            for name in ("gathered", "to be scattered")}  # fmt: skip


@pytest.mark.parametrize("sequences", [1, 2])
def test_what_is_scattered_is_copied_whatever_the_sequences(sequences):
    # Two linears gather before and two scatter behind, each the other way round in the backward: read and written.
    whole = 2 * 2 * sequences * 1024 * 4096
    assert copies(sequences) == {"gathered": 4 * whole * (sequences > 1), "to be scattered": 4 * whole}


def test_none_without_others_or_along_the_first_dimension():
    assert set(copies(1, tp=1).values()) == set(copies(2, copies_pieces=False).values()) == {0.0}
    # A compiler sees that a single sequence is in order.
    assert set(copies(1, compiled=True).values()) == {0.0}
    assert copies(2, compiled=True) == copies(2)
