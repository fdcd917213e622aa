"""The short form of `python -m tests.ablate`: every switch can be turned off, and what it moves is said."""

from sim import estimate, load_scenario
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


def test_what_a_switch_moves_is_counted(scenarios, monkeypatch):
    scenario = load_scenario(scenarios / "megatron-2021" / "1.7b.yaml")
    answer = estimate(scenario)
    layout = ablate.Layout(3, scenario, answer.step_time_s, answer.largest.total)
    monkeypatch.setattr(ablate, "layouts", [layout])
    slower = estimate(ablate.changed(scenario, {"stack.attention": "flash"})).step_time_s / answer.step_time_s - 1
    line = ablate.ablate(("attention", "flash", {"stack.attention": "flash"}))
    assert line.split()[2:4] == ["3", "0"]
    assert f"{abs(slower):.1%}" in line
    assert ablate.ablate(("attention", "math", {"stack.attention": "math"})).split()[2] == "0"
