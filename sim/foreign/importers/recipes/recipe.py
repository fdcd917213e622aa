"""Recipes: files of settings by name, as most frameworks take them.

A kind's table (presets/importers) says which key holds which field of a scenario or which fact of the run; what follows
from several of them, from the model and from the number of GPUs is worked out here, once for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import isfunction
from math import lcm
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import (
    NOT_SAID,
    Foreign,
    Machine,
    assume_batch,
    assume_sequence,
    replicas,
    take_optimizer,
    told_gpus,
)
from sim.foreign.importers.huggingface.hub_models import named_model, whole_shape
from sim.foreign.importers.keys import table
from sim.foreign.importers.recipes import finetuning, steps
from sim.foreign.importers.recipes.interpolations import resolved
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.recipes.settings import flat_keys


def scenario_of(recipe: Recipe) -> dict[str, Any]:
    """A scenario's sections from a recipe: the model, the GPUs, replicas, batch; the framework's defaults for the rest.
    Raises SpecError: no model, or numbers that do not go together."""
    file, training = recipe.file, recipe.training
    ledger, known = file.ledger, table(recipe.kind)
    model = _model(recipe)
    shape = whole_shape(model)
    if isinstance(model, str) and shape.get("num_mtp_layers"):
        none = ledger.assume("model.num_mtp_layers", 0, f"{known['called']} trains no multi-token prediction")
        model = {"preset": model, "num_mtp_layers": none}
    machine = Machine.of(file)
    defaults = known.get("defaults", {})
    for path, (value, source) in defaults.items():
        recipe.default(path, value, f"{known['called']}'s default: {source} ({known['version']})")
    gpus = gpus_of(recipe, shape, machine)
    _deal(recipe, gpus, shape, machine)
    if "sequence_length" not in training:
        assume_sequence(training, shape)
    recipe.known |= {each: known.get(each) for each in ("called", "at_once", "least_batch")}
    recipe.known["weights"] = recipe.sources.get("weights", defaults.get("run.weights", ("", ""))[1])
    for group in ("batch", "precision", "budget"):
        recipe.follow(table("run")[group])
    recipe.put("stack.framework", known["framework"], "the file's kind")
    recipe.default("stack.version", "latest", "another by --set stack.version=DATE")
    return {**recipe.sections, "model": model, "cluster": machine.section(gpus)}


def _model(recipe: Recipe) -> Any:
    """The caller's model; the file's, by its shape or by its name; a config.json that it names beside it."""
    section, name, file = recipe.model, recipe.run.get("model"), recipe.file
    if file.model is not None:
        return file.model
    if "num_layers" in section:
        missing = next((field for field in ("hidden_size", "num_heads", "vocab_size") if field not in section), None)
        if missing is not None:
            raise SpecError(f"{file.ledger.where} says no {missing} of its model; without it there is none")
        return section
    if name is None:
        raise SpecError(f"{file.ledger.where} names no model; give --model PRESET or --model config.json")
    known = table(recipe.kind)
    found = known.get("models", {}).get(name.lower(), name)
    return named_model(found, recipe.sources["model"], file, by_letters=known.get("by_letters", False))


def gpus_of(recipe: Recipe, shape: dict[str, Any], machine: Machine) -> int:
    """GPUs: the caller's; what the file says; the product of its degrees; what holds the model."""
    run, plan, sources, file = recipe.run, recipe.plan, recipe.sources, recipe.file
    unit = plan.get("tp", 1) * plan.get("pp", 1) * plan.get("cp", 1) * run.get("replicated", 1)
    nodes, each, sharded = run.get("nodes", 0), run.get("gpus_per_node", 0), run.get("sharded", -1)
    own = machine.cluster.node.gpus_per_node
    told = told_gpus(
        file,
        file.started or NOT_SAID,
        (run.get("gpus"), sources.get("gpus", "")),
        (
            nodes * each if nodes and each > 0 else None,
            " × ".join(sources.get(name, "default") for name in ("nodes", "gpus_per_node")),
        ),
        (nodes * own if "nodes" in sources else None, f"{sources.get('nodes')} of {own} GPUs"),
        (unit * sharded if sharded > 0 else None, "the product of all degrees"),
    )
    if told is not None:
        return told
    unit = plan.get("pp", 1) * lcm(unit // plan.get("pp", 1), plan.get("ep", 1))
    gpus = machine.fewest_gpus(shape, unit, frozen=bool(recipe.training.get("adapter_rank")))
    return _dividing(recipe, gpus, unit)


def _dividing(recipe: Recipe, gpus: int, unit: int) -> int:
    """No more of the GPUs that nobody asked for than share the file's batch evenly."""
    batch, plan = recipe.training.get("global_batch_size"), recipe.plan
    fewer = gpus
    while batch is not None and batch % max(1, fewer // unit) and fewer % (2 * unit) == 0:
        fewer //= 2
    if fewer < gpus:
        plan.ledger.assume("GPUs", fewer, f"so many share {batch} sequences evenly; --gpus N")
    return fewer


def _deal(recipe: Recipe, gpus: int, shape: dict[str, Any], machine: Machine) -> None:
    """Replicas, the groups that shard, and experts over GPUs."""
    run, plan = recipe.run, recipe.plan
    unit = plan.get("tp", 1) * plan.get("pp", 1) * plan.get("cp", 1)
    dp = replicas(gpus, unit, plan.ledger, "tp · pp · cp")
    plan.took("dp", dp, "GPUs over tp · pp · cp")
    copies = dp * plan.get("cp", 1)
    groups = run.get("replicated", 1)
    if 0 < run.get("sharded", -1) < dp and "replicated" not in run:
        groups = dp // run["sharded"]  # context parallelism's ranks shard with those of its replicas
    if groups > 1 and plan.get("zero_stage", 0) and groups < copies:
        if copies % groups:
            raise plan.ledger.error(f"{groups} replicated groups do not divide dp · cp = {copies}")
        source = recipe.sources.get("replicated", recipe.sources.get("sharded", ""))
        plan.took("sharding_group", copies // groups, source)
    elif groups == copies > 1:
        plan.took("zero_stage", 0, f"{recipe.sources.get('replicated', '')}: nothing is sharded")
    if "ep" not in plan and unit == 1:
        machine.deal_experts(plan, shape, gpus)


def fit(recipe: Recipe) -> None:
    """A micro-batch no larger than what a replica has of the batch, and that divides it."""
    plan, batch = recipe.plan, recipe.training["global_batch_size"]
    dp, micro = plan["dp"], plan["microbatch_size"]
    if batch % dp == 0 and batch // dp % micro:
        fits = next(size for size in range(min(micro, batch // dp), 0, -1) if batch // dp % size == 0)
        plan.assume(
            "microbatch_size", fits, f"of {batch} sequences a replica has {batch // dp}, no multiple of {micro}"
        )


def usual_batch(recipe: Recipe) -> None:
    """A batch of as many tokens as is usual."""
    assume_batch(recipe.training, recipe.known["whole"])


def optimizer(recipe: Recipe) -> None:
    """The optimizer by its name."""
    name = recipe.run.get("optimizer", "").rpartition(".")[2]  # of torch.optim.AdamW
    source = recipe.sources.get("optimizer", f"{name}, the default")
    take_optimizer(recipe.training, name or None, source)


STEPS: dict[str, Callable[..., None]] = {
    name: function
    for module in (steps, finetuning)
    for name, function in vars(module).items()
    if isfunction(function) and function.__module__ == module.__name__
} | {each.__name__: each for each in (fit, usual_batch, optimizer)}
"""What rows call by `step`."""


def read_recipe_of(kind: str, file: Foreign) -> dict[str, Any]:
    """A scenario's sections. Raises SpecError: what the kind's table refuses, or values that go not together."""
    known = table(kind)
    if "off" in known:  # names with dashes, and degrees of zero, which are none
        plain = {str(key).replace("-", "_"): value for key, value in file.data.items()}
        said = {key: value for key, value in plain.items() if key not in known["off"] or value not in (0, -1)}
        file = replace(file, data=said)
    keys = flat_keys(resolved(file.data), file, kind)
    recipe = Recipe(keys, file, STEPS)
    recipe.follow(known.get("checks", ()))
    recipe.take_settings(known["settings"])
    recipe.follow(known.get("rows", ()))
    recipe.scenario = scenario_of(recipe)
    keys.leave()
    recipe.follow(known.get("after", ()))
    return recipe.scenario
