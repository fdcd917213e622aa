"""Laws of memory over random scenarios: no part is below zero, and recomputation never keeps more than none."""

import random

import pytest
from random_scenarios import random_scenario
from rows import mostly_thorough

from sim import estimate
from sim.errors import FlopcastError
from sim.work.recompute import module_sets

TOLERANCE = 1e-9
ALONE = {"recompute_modules": (), "recompute_method": "uniform", "recompute_num_layers": 1}
"""Of plans whose recomputed layers run again one by one: groups of them keep fewer inputs."""


def memory_of(scenario, **plan):
    """What every rank holds under another way to recompute; None where the plan cannot have it."""
    try:
        return estimate(scenario.replace(plan=scenario.plan.replace(**plan))).memory
    except FlopcastError:
        return None


@pytest.mark.parametrize("first", mostly_thorough([0, 8, 16], (0,)))
def test_no_part_is_negative_and_recomputation_lies_between_full_and_none(first):
    compared = 0
    for seed in range(first, first + 8):
        rng = random.Random(seed)
        scenario = random_scenario(rng)
        modules = rng.choice(module_sets(scenario.model, scenario.stack))
        ways = [
            memory_of(scenario, **ALONE | changes)
            for changes in (
                {"recompute": "full"},
                {"recompute": "selective", "recompute_modules": modules},
                {"recompute": "none"},
            )
        ]
        for uses in filter(None, (*ways, memory_of(scenario))):
            assert min(part for use in uses for part in use.to_dict().values()) >= 0, seed
        if None not in ways:
            compared += 1
            for full, selective, none in zip(*ways, strict=True):
                assert full.activations <= selective.activations * (1 + TOLERANCE), (seed, modules)
                assert selective.activations <= none.activations * (1 + TOLERANCE), (seed, modules)
    assert compared >= 4
