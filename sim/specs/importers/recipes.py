"""Recipes: files of settings by name, as most frameworks take them.

A kind's table (presets/importers) says which key holds which field of a scenario or which fact of the run; what follows
from several of them, from the model and from the number of GPUs is worked out here, once for all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.errors import SpecError
from sim.specs.base import Spec
from sim.specs.hardware import ClusterSpec
from sim.specs.importers.defaults import (
    Foreign,
    assume_batch,
    assume_sequence,
    cluster_of,
    cluster_section,
    deal_experts,
    fewest_gpus,
    replicas,
    take_optimizer,
)
from sim.specs.importers.huggingface import given_model
from sim.specs.importers.keys import Keys, table
from sim.specs.importers.ledger import Section, short
from sim.specs.importers.sources import DEEPEST
from sim.specs.model import ModelSpec
from sim.specs.plan import ParallelPlan
from sim.specs.presets import load_preset, model_preset
from sim.specs.stack import StackSpec
from sim.specs.training import TrainingSpec

_RECORDS: dict[str, type[Spec]] = {
    "model": ModelSpec,
    "plan": ParallelPlan,
    "training": TrainingSpec,
    "stack": StackSpec,
}
_TEXTS = ("run.model", "run.optimizer")
_NUMBERS = ("run.tokens", "run.batch_tokens")
"""Facts of the run that are no whole numbers. The others: gpus, nodes, gpus_per_node; replicated and sharded, the
degrees of data parallelism; accumulation, the micro-batches a step; batch_per_gpu, the sequences that a GPU takes a
step; steps, those of the whole run."""


@dataclass
class Recipe:
    """What a recipe says.

    sections : model, plan, training and stack, as far as they are told.
    run : facts that a scenario's fields follow from, such as nodes.
    sources : where each fact of the run stands.
    """

    kind: str
    sections: dict[str, Section]
    run: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def says(self, *facts: str) -> bool:
        """Whether all of these facts of the run are told."""
        return all(fact in self.run for fact in facts)


def flat_keys(data: Mapping[str, Any], file: Foreign, kind: str) -> Keys:
    """Nested settings as keys with dots, such as `model.hidden_size`."""
    return Keys(dict(_flat(data)), file.ledger, kind)


def read_settings(keys: Keys, file: Foreign) -> Recipe:
    """What a table's `settings` find in a file's keys.

    A setting is a field, or a fact of the run, and the keys that hold it; or a mapping: `keys`, and `words` from the
    file's values to ours.

    Raises
    ------
    SpecError
        A value that is not what its field takes.
    """
    sections = {name: Section(name, file.ledger) for name in _RECORDS}
    recipe = Recipe(keys.kind, sections)
    for path, rule in table(keys.kind)["settings"].items():
        names, words = (rule["keys"], rule.get("words")) if isinstance(rule, Mapping) else (rule, None)
        key = next((name for name in names if name in keys), names[0])
        value = _worded(keys, words, *names) if words is not None else _typed(keys, path, *names)
        if value is None:
            continue
        section, _, name = path.partition(".")
        if section == "run":
            recipe.run[name], recipe.sources[name] = value, key
        else:
            recipe.sections[section].took(name, value, key)
    return recipe


def scenario_of(recipe: Recipe, file: Foreign) -> dict[str, Any]:
    """A scenario's sections from a recipe: the model, the GPUs, replicas, batch; the framework's defaults for the rest.

    Raises
    ------
    SpecError
        No model, or numbers that do not go together.
    """
    given, ledger, known = file.given, file.ledger, table(recipe.kind)
    plan, training, stack = (recipe.sections[name] for name in ("plan", "training", "stack"))
    model = _model(recipe, file)
    shape = whole_shape(model)
    name, cluster = cluster_of(given, ledger)
    for path, value in known.get("defaults", {}).items():
        section, _, of = path.partition(".")
        if section == "run":
            recipe.run.setdefault(of, value)
        elif of not in recipe.sections[section]:
            recipe.sections[section].assume(of, value, f"{known['called']}'s default")
    gpus = gpus_of(recipe, file, shape, cluster)
    _deal(recipe, gpus, shape, cluster)
    if "sequence_length" not in training:
        assume_sequence(training, shape)
    _batch(recipe)
    if "precision" not in training:
        training.assume("precision", "bf16", "usual")
    take_optimizer(training, recipe.run.get("optimizer"), recipe.sources.get("optimizer", ""))
    _budget(recipe)
    if "framework" not in stack:
        stack.took("framework", known["framework"], "the file's kind")
    if "version" not in stack:
        stack.assume("version", "latest", "another by --set stack.version=DATE")
    where = cluster_section(name, cluster, gpus, given, ledger)
    return {"model": model, "cluster": where, "plan": plan, "training": training, "stack": stack}


def _model(recipe: Recipe, file: Foreign) -> Any:
    """The caller's model; the file's, by its shape or by its name; a config.json that it names beside it."""
    section, name = recipe.sections["model"], recipe.run.get("model")
    if file.model is not None:
        return file.model
    if "num_layers" in section:
        return section
    if name is None:
        raise SpecError(f"{file.ledger.where} names no model; give --model PRESET or --model config.json")
    found = table(recipe.kind).get("models", {}).get(name.lower(), name)
    beside = None if file.folder is None else file.folder / name / "config.json"
    if beside is not None and not name.startswith(("/", "~")) and ".." not in name and beside.is_file():
        return given_model(str(beside), file.ledger)
    try:
        preset = model_preset(found)
    except SpecError:
        raise SpecError(
            f"{file.ledger.where}: {recipe.sources['model']} {short(name)!r} is none of the models that flopcast has; "
            "give --model config.json, that model's own, or --model PRESET"
        ) from None
    return file.ledger.took("model", preset, f"{recipe.sources['model']} {short(name)}")


def whole_shape(model: str | Mapping[str, Any]) -> dict[str, Any]:
    """A section `model` with the fields of its preset, if it has one."""
    if isinstance(model, str):
        return load_preset("models", model)
    preset = model.get("preset")
    own = {name: value for name, value in model.items() if name != "preset"}
    return {**(load_preset("models", preset) if preset else {}), **own}


def gpus_of(recipe: Recipe, file: Foreign, shape: dict[str, Any], cluster: ClusterSpec) -> int:
    """GPUs: the caller's; what the file says; the product of its degrees; what holds the model."""
    run, plan, ledger = recipe.run, recipe.sections["plan"], file.ledger
    unit = plan.get("tp", 1) * plan.get("pp", 1) * plan.get("cp", 1) * run.get("replicated", 1)
    if file.given.gpus is not None:
        return int(ledger.took("GPUs", file.given.gpus, "--gpus"))
    if recipe.says("gpus"):
        return int(ledger.took("GPUs", run["gpus"], recipe.sources["gpus"]))
    if recipe.says("nodes", "gpus_per_node"):
        source = " × ".join(recipe.sources.get(each, "default") for each in ("nodes", "gpus_per_node"))
        return int(ledger.took("GPUs", run["nodes"] * run["gpus_per_node"], source))
    if recipe.says("nodes"):
        each = cluster.node.gpus_per_node
        return int(ledger.took("GPUs", run["nodes"] * each, f"{recipe.sources['nodes']} of {each} GPUs"))
    if run.get("sharded", -1) > 0:
        return int(ledger.took("GPUs", unit * run["sharded"], "the product of all degrees"))
    # Experts lie over tp, cp and dp of a stage: their GPUs must come out even too.
    least = math.lcm(unit, plan.get("ep", 1) * plan.get("etp", 1) * plan.get("pp", 1))
    training = recipe.sections["training"]
    at_once = plan.get("tp", 1) * plan.get("pp", 1) * plan.get("cp", 1), plan.get("microbatch_size", 1)
    return fewest_gpus(shape, cluster, ledger, least, batch=(training.get("global_batch_size"), *at_once))


def _deal(recipe: Recipe, gpus: int, shape: dict[str, Any], cluster: ClusterSpec) -> None:
    """Replicas, the groups that shard, and experts over GPUs."""
    run, plan = recipe.run, recipe.sections["plan"]
    unit = plan.get("tp", 1) * plan.get("pp", 1) * plan.get("cp", 1)
    dp = replicas(gpus, unit, plan.ledger, "tp · pp · cp")
    plan.took("dp", dp, "GPUs over tp · pp · cp")
    copies = dp * plan.get("cp", 1)
    groups = run.get("replicated", 1)
    if 0 < run.get("sharded", -1) < copies and not recipe.says("replicated"):
        groups = copies // run["sharded"]
    if groups > 1 and plan.get("zero_stage", 0) and groups < copies:
        if copies % groups:
            raise SpecError(f"{plan.ledger.where}: {groups} replicated groups do not divide dp · cp = {copies}")
        source = recipe.sources.get("replicated", recipe.sources.get("sharded", ""))
        plan.took("sharding_group", copies // groups, source)
    elif groups == copies > 1:
        plan.took("zero_stage", 0, f"{recipe.sources.get('replicated', '')}: nothing is sharded")
    if "ep" not in plan and unit == 1:
        deal_experts(plan, shape, cluster, gpus)


def _batch(recipe: Recipe) -> None:
    """Micro-batch and batch, from whichever of batch, micro-batches and tokens the file says. [sequences]"""
    run, plan, training, sources = recipe.run, recipe.sections["plan"], recipe.sections["training"], recipe.sources
    dp, length = plan["dp"], training["sequence_length"]
    steps, of_gpu = run.get("accumulation"), run.get("batch_per_gpu")
    if "microbatch_size" not in plan:
        whole = of_gpu if of_gpu is not None and steps is None else None
        plan.settle("microbatch_size", whole, sources.get("batch_per_gpu", ""), 1, "the file does not say")
    micro = plan["microbatch_size"]
    if "global_batch_size" in training:
        return
    if recipe.says("batch_tokens"):
        batch = max(1, round(run["batch_tokens"] / length))
        training.took("global_batch_size", batch, f"{sources['batch_tokens']} over the sequence's length")
    elif of_gpu is not None:
        training.took("global_batch_size", of_gpu * dp, f"{sources.get('batch_per_gpu', 'batch')} × replicas")
    elif steps is not None:
        training.took("global_batch_size", micro * steps * dp, "micro-batch × accumulation × replicas")
    else:
        assume_batch(training, micro * dp)


def _budget(recipe: Recipe) -> None:
    """Tokens of the whole run."""
    run, training = recipe.run, recipe.sections["training"]
    if recipe.says("tokens"):
        training.took("tokens", run["tokens"], recipe.sources["tokens"])
    elif run.get("steps"):
        whole = float(run["steps"] * training["global_batch_size"] * training["sequence_length"])
        training.took("tokens", whole, f"{recipe.sources['steps']} × batch × sequence length")


def _typed(keys: Keys, path: str, *names: str) -> Any:
    """A value as its field takes it."""
    section, _, name = path.partition(".")
    if path in _TEXTS:
        return keys.text(*names)
    if path in _NUMBERS:
        return keys.number(*names)
    if section == "run":
        return keys.whole(*names, least=-1)
    annotation = _RECORDS[section].model_fields[name].annotation
    if annotation is bool:
        return keys.flag(*names)
    if annotation is float or name == "tokens":
        return keys.number(*names)
    if annotation is str:
        return keys.text(*names)
    return keys.whole(*names, least=0)


def _worded(keys: Keys, words: Mapping[Any, Any], *names: str) -> Any:
    """What a file's word stands for. A word for null stands for a field that is left to its default."""
    key, value = keys.take(*names)
    if value is None:
        return None
    known = {str(word).lower(): ours for word, ours in words.items()}
    said = str(value).lower()
    if said not in known:
        raise keys.wrong(key, value, f"must be one of {', '.join(known)}, or flopcast does not know it")
    return known[said]


def _flat(data: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping) and value and depth < DEEPEST:
            yield from _flat(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", value
