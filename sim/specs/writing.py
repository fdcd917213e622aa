"""From a Scenario to a file that stands alone: every preset written out, so that it says the same tomorrow."""

from __future__ import annotations

from sim.specs.scenario import Scenario


def scenario_yaml(scenario: Scenario) -> str:
    """The scenario as YAML; reading it gives an equal scenario, but for what was assumed and now is said."""
    from sim.specs.yaml12 import dump_yaml

    data = scenario.model_dump(mode="json", exclude={"assumed"}, exclude_none=True)
    return dump_yaml(data, width=100)
