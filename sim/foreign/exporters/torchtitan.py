"""torchtitan: a job config in TOML, of the version that the importer reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sim.foreign.exporters.account import Account, exporter_table, launcher_lines, toml_text
from sim.foreign.importers.keys import table
from sim.specs.model import ModelSpec
from sim.specs.plan import layers_of_stages
from sim.specs.presets import load_preset
from sim.specs.scenario import Scenario

KIND = "torchtitan"
_SECTIONS = ("model", "training", "optimizer", "parallelism", "activation_checkpoint", "compile")


def export_torchtitan(account: Account) -> tuple[str, dict[str, Any]]:
    """The TOML, and what stands in it. Raises SpecError: torchtitan cannot run the plan."""
    found = account.data(_facts(account.scenario))
    data = {name: found[name] for name in (*_SECTIONS, *found) if name in found}
    command = launcher_lines(account.scenario, "-m torchtitan.train", ['--job.config_file "$CONFIG_FILE"'])
    return "\n".join([*(f"# {line}" for line in command), "", toml_text(data)]), data


def flavor_of(model: ModelSpec) -> tuple[str, str] | None:
    """(model.name, model.flavor) of the model of this shape, or None where torchtitan knows none."""
    for (name, flavor), known in _flavors().items():
        same = known.replace(name=model.name, max_sequence_length=model.max_sequence_length, num_mtp_layers=0)
        if same == model.replace(num_mtp_layers=0):
            return name, flavor
    return None


@cache
def _flavors() -> dict[tuple[str, str], ModelSpec]:
    """Models by model.name and model.flavor, as the importer knows them; of several names of one the first counts."""
    found = {}
    for name, flavors in table(KIND)["flavors"].items():
        for flavor, what in flavors.items():
            if flavor != "all":
                shape = load_preset("models", what) if isinstance(what, str) else {**flavors.get("all", {}), **what}
                found[name, flavor] = ModelSpec.read({"name": flavor, **shape}, "model")
    return found


def _facts(scenario: Scenario) -> dict[str, Any]:
    """Facts of model and plan that the table's rows name."""
    model, plan = scenario.model, scenario.plan
    family, flavor = flavor_of(model) or ("", "")
    schedule = "1f1b" if plan.schedule == "interleaved" and plan.num_chunks == 1 else plan.schedule
    order, several = exporter_table(KIND)["schedules"].get(schedule, (schedule, False))
    modules = stage_modules(layers_of_stages(model.num_layers, plan))
    return {"family": family, "flavor": flavor, "order": order, "several": several, "modules": modules}


def stage_modules(layers: Sequence[int]) -> list[list[str]]:
    """The modules of each stage by torchtitan's names."""
    parts: list[list[str]] = []
    first = 0
    for held in layers:
        parts.append([f"layers.{layer}" for layer in range(first, first + held)])
        first += held
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts
