"""The short form of `python -m tests.ablate`: every switch can be turned off, and what it moves is said."""

from sim import load_scenario
from sim.errors import SpecError
from sim.specs import StackSpec
from tests import ablate


def test_every_switch_has_an_off_that_a_scenario_takes(scenarios):
    scenario = load_scenario(scenarios / "papers" / "deepseek-v3-2048-h800.yaml")
    refused = set()
    for name in StackSpec.model_fields.keys() - set(ablate.UNPHYSICAL):
        changes = {**ablate.ALONG.get(name, {}), f"stack.{name}": ablate.off(name)}
        assert getattr(ablate.changed(scenario, changes).stack, name) == ablate.off(name)
    for name, changes in ablate.MECHANISMS.items():
        try:
            ablate.changed(scenario, changes)
        except SpecError:
            refused.add(name)
    assert refused == {"resharding after the forward"}  # without ZeRO stage 3 there is none
