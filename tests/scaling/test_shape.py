"""Sizes that cost alignment are named with what padding saves, and nearby sizes that train faster are found."""

import pytest

from sim import estimate, load_scenario
from sim.assumptions import padded_sizes
from sim.scaling.shape import shapes_near

SCENARIO = "scenarios/korthikanti-2022/22b-selective.yaml"
ODD = ["stack=pytorch", "model.vocab_size=50257", "plan.tp=1", "plan.sequence_parallel=false"]


def lines(answer):
    return [line for line in answer.assumptions if "badly aligned" in line]


def test_an_odd_vocabulary_costs_what_padding_it_saves():
    odd, padded = (estimate(load_scenario(SCENARIO, [*ODD, *more])) for more in ((), ("model.vocab_size=50272",)))
    (line,) = lines(odd)
    saved = odd.step_time_s - padded.step_time_s
    assert line.startswith("vocab_size 50,257 is badly aligned: padded to 50,272, a step takes")
    assert line.endswith(f"({saved / odd.step_time_s:.1%}) less")
    assert saved > 0.02 * odd.step_time_s
    assert not lines(padded)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([], []),
        (["model.vocab_size=50257"], []),  # Megatron-LM pads
        (["model.vocab_size=50257", "stack={framework: megatron-bridge}"], ["vocab_size"]),
        (["model.intermediate_size=24520"], ["intermediate_size"]),
        (["model.head_dim=100", "model.value_head_dim=100"], ["head_dim"]),
        (["model.vocab_size=50257", "stack=pytorch", "profile=datasheet"], ["vocab_size"]),
    ],
)
def test_sizes_that_are_unaligned_on_a_gpu(overrides, named):
    assert [field for field, *_ in padded_sizes(load_scenario(SCENARIO, overrides))] == named


def test_a_vocabulary_that_is_not_padded_comes_first(tmp_path):
    odd = tmp_path / "odd.yaml"
    odd.write_text("num_layers: 12\nhidden_size: 768\nnum_heads: 12\nvocab_size: 50257\n")
    found = shapes_near(str(odd), "a100-sxm-40gb", framework="pytorch")
    best = found.faster[0]
    assert best.sizes["vocab_size"] % 64 == 0
    assert best.gain > 0.1
    assert not any("vocab_size" in each.sizes for each in shapes_near(str(odd), "a100-sxm-40gb").faster)
