"""torchtitan: a job config in TOML, of the version that the importer reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sim.foreign.exporters.account import Account, exporter_table, launcher_lines, toml_text
from sim.foreign.exporters.rows import data_of
from sim.foreign.importers.keys import table
from sim.specs.model import ModelSpec
from sim.specs.plan import layers_of_stages
from sim.specs.presets import load_preset
from sim.specs.scenario import Scenario

KIND = "torchtitan"
_SECTIONS = ("model", "training", "optimizer", "parallelism", "activation_checkpoint", "compile")


def export_torchtitan(account: Account) -> tuple[str, dict[str, Any]]:
    """The TOML, and what stands in it. Raises SpecError: torchtitan cannot run the plan."""
    found = data_of(account, {**_of_plan(account.scenario), **_of_training(account.scenario)})
    data = {name: found[name] for name in sorted(found, key=lambda name: _place(name))}
    command = launcher_lines(account.scenario, "-m torchtitan.train", ['--job.config_file "$CONFIG_FILE"'])
    return "\n".join([*(f"# {line}" for line in command), "", toml_text(data)]), data


def _place(section: str) -> int:
    return _SECTIONS.index(section) if section in _SECTIONS else len(_SECTIONS)


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


def _of_plan(scenario: Scenario) -> dict[str, Any]:
    """Facts of model and plan that the table's rows name; context-parallel ranks shard together with replicas."""
    model, plan = scenario.model, scenario.plan
    family, flavor = flavor_of(model) or ("", "")
    layers, copies = layers_of_stages(model.num_layers, plan), plan.num_replicas
    group = plan.sharding_group or copies
    replicated, sharded = (plan.dp, 1) if plan.zero_stage == 0 else (copies // group, group // plan.cp)
    schedule = "1f1b" if plan.schedule == "interleaved" and plan.num_chunks == 1 else plan.schedule
    order, several = exporter_table(KIND)["schedules"].get(schedule, (schedule, False))
    stated = plan.reshard_after_forward
    return {
        "family": family,
        "flavor": flavor,
        "copies": copies,
        "replicated": 1 if copies == 1 else replicated,
        "sharded": 1 if copies == 1 else sharded,
        "policy": stated if isinstance(stated, str) else "always" if stated else "never",
        "order": order,
        "several": several,
        "dealt": model.num_layers + plan.embedding_as_layer + plan.head_as_layer,
        "modules": stage_modules(layers),
        "every": str(model.num_layers // plan.num_stages // plan.recompute_num_layers),
    }


def _of_training(scenario: Scenario) -> dict[str, Any]:
    """Facts of the batch: in a pipeline the local one is cut into micro-batches; else it goes through at once."""
    training, plan = scenario.training, scenario.plan
    steps = max(1, round((training.tokens or 0) / training.tokens_per_step))
    twice = 2 if plan.cp > 1 else 1
    whole = training.global_batch_size // plan.dp // scenario.flushes
    return {
        "flushes": scenario.flushes,
        "local": whole if plan.pp > 1 else plan.microbatch_size,
        "steps": steps,
        "trained": steps * training.tokens_per_step,
        "pieces": plan.tp * plan.cp * twice,
        "ranks": f"tp · cp{' · 2' * (twice > 1)}",
    }


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
