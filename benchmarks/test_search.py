"""Plans a second through pricing and memory check, on one core: GPT-3 175B on 4,096 GPUs."""

from pathlib import Path

import numpy as np
import pytest
from timing import seconds

from sim import estimate, load_scenario
from sim.search import build_space, price_all

MAIN = Path(__file__).parent.parent / "scenarios" / "gpt3-175b-4096-a100.yaml"


@pytest.mark.parametrize(
    ("axes", "least"),
    [({"context": (1, 2, 4, 8), "overlaps": True}, 2000), ({}, 500)],
    ids=["whole space", "stack as it is"],
)
def test_plans_a_second(benchmark, axes, least):
    """Enumeration included; beside how long one plan takes by the same formula alone. The small space pays the same
    blocks for fewer plans, so its rate is lower."""
    scenario = load_scenario(MAIN)

    def price():
        space = build_space(scenario, (4096, 4096), **axes)
        fits = sum(np.count_nonzero(needed <= scenario.cluster.gpu.memory_bytes) for *_, needed in price_all(space))
        return space.num_plans, fits

    plans, fits = price()
    taken, alone = seconds(price, repeats=5), seconds(lambda: estimate(scenario, "closed_form"))
    benchmark.pedantic(price, rounds=2)
    ratio = alone / (taken / plans)
    benchmark.extra_info.update(
        plans=plans, plans_that_fit=int(fits), plans_per_s=plans / taken, plans_in_the_time_of_one_estimate=ratio
    )
    print(f"{plans:,} plans, {fits:,} fit, {taken:.3f} s, {plans / taken:,.0f} plans/s, {ratio:,.0f} a closed form")
    assert ratio > least
