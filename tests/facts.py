"""Facts of a scenario by dotted names, as tests of importers expect them."""

import pytest

from sim.work.layers import deal_stages
from sim.work.sums import total_params


def fact(scenario, name):
    """A field by its dotted name; `parameters` and `gpus` are counted, and `stages` are layers of each."""
    if name == "parameters":
        return total_params(scenario.model)
    if name == "gpus":
        return scenario.plan.num_gpus
    if name == "stages":
        return [stage.num_layers for stage in deal_stages(scenario.model, scenario.plan)]
    value = scenario
    for part in name.split("."):
        value = getattr(value, part)
    return list(value) if isinstance(value, tuple) else value


def wrong_facts(scenario, expected):
    """{name: (found, expected)} of facts that are not as expected. Numbers of parameters may be given to three digits."""
    wrong = {}
    for name, value in expected.items():
        found, number = fact(scenario, name), isinstance(value, (int, float)) and not isinstance(value, bool)
        close = 5e-3 if name == "parameters" and isinstance(value, float) else 1e-9
        if not (found == pytest.approx(value, rel=close) if number else found == value):
            wrong[name] = (found, value)
    return wrong
