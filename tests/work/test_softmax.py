"""Scale, mask and softmax step by step, as Megatron-LM's code has them, bytes counted by hand."""

import pytest
from counts import layer_work

from sim import build_scenario, estimate
from sim.pricing.layouts import cut_of

GPT_175B = {
    "model": "gpt3-175b",
    "cluster": "selene",
    "plan": {"tp": 8, "pp": 12, "dp": 4, "microbatch_size": 1, "recompute": "full"},
    "training": {"global_batch_size": 1536, "sequence_length": 2048, "precision": "fp16"},
    "stack": "megatron-2021",
    "profile": "a100",
}
ONE_BY_ONE = "stack.fused_softmax=false"
SCORES = 96 / 8 * 2048**2


def softmax_of(*changes):
    scenario = build_scenario(GPT_175B, changes)
    work = layer_work(scenario.model, scenario.stack, cut_of(scenario))
    return [
        next(item for item in phase.operations if item.name.startswith("softmax"))
        for phase in (work.forward, work.input_grad)
    ]


@pytest.mark.parametrize(
    ("changes", "forward", "backward", "kernels"),
    [
        ((), 2 + 2, 2 + 2 + 2, 1),
        # float, scale, masked_fill, softmax, half; backward the product's gradient reads two tensors.
        ((ONE_BY_ONE,), (2 + 4) + 3 * (4 + 4) + (4 + 2), (2 + 4) + 12 + 2 * 8 + (4 + 2), 5),
        ((ONE_BY_ONE, "stack.fp32_softmax=false"), 3 * (2 + 2), 6 + 2 * 4, 3),
    ],
)
def test_bytes_of_a_score(changes, forward, backward, kernels):
    for found, expected in zip(softmax_of(*changes), (forward, backward), strict=True):
        assert found.nbytes == pytest.approx(expected * SCORES)
        assert found.kernels == kernels


@pytest.mark.parametrize(
    ("changes", "published", "within"),
    [((), 135 / 113, 0.04), (("model.num_layers=105", "model.hidden_size=20480", "model.num_heads=128", "plan.pp=35"), 148 / 133, 0.03)],
)  # fmt: skip
def test_what_fused_operators_gain(changes, published, within):
    """Narayanan et al. 2021, section 5.8: 19 % of 175B and 11 % of 530B."""
    fused, apart = (
        estimate(build_scenario(GPT_175B, [*changes, *more]))
        for more in ((), (ONE_BY_ONE, "stack.fused_bias_activation=false"))
    )
    assert apart.step_time_s / fused.step_time_s == pytest.approx(published, rel=within)
