"""torchtitan's configuration: TOML, the JSON that it dumps, or Python.

Names are those of pytorch/torchtitan's job config, with the older places of the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import NOT_SAID, Foreign, Machine, replicas, take_optimizer, told_gpus
from sim.foreign.importers.huggingface.hub_models import whole_shape
from sim.foreign.importers.keys import Keys, NotKnown, flat, table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.foreign.importers.python.recipes import leave_makers, read_recipe
from sim.foreign.importers.python.values import CALLED
from sim.foreign.importers.recipes.finetuning import targets
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.sources import DEEPEST
from sim.foreign.importers.torchtitan.model import DEFAULT, KIND, converted, read_flavor, take_pipeline

_MARK = re.compile(r"^\s*(?:from|import)\s+(?:torchtitan|\.+)[\w.]*\s", re.MULTILINE)


def is_torchtitan_python(text: str) -> bool:
    """Whether a Python text is a registry of torchtitan's configurations."""
    return "torchtitan" in text and ("Trainer.Config" in text or "JobConfig" in text) and bool(_MARK.search(text))


def settings_in_python(file: Foreign) -> dict[str, Any]:
    """The settings of the file's recipe, as torchtitan's TOML would have them. Raises SpecError: no recipe, several, or
    one whose model only running code knows."""
    name, settings = read_recipe(file.text, file.given.recipe, file.ledger, KIND, _fits)
    data = {key: value for key, value in settings.items() if key not in ("model_spec", CALLED)}
    spec = settings.get("model_spec")
    if isinstance(spec, Mapping):
        data["model"] = _model(spec, name, file)
    elif file.model is None and "model" not in data:
        why = f"line {spec.line}: {spec.why}" if isinstance(spec, NotKnown) else f"{name} sets none"
        raise file.ledger.error(f"the model is not told ({why}); give --model PRESET")
    data["activation_checkpoint"] = _recomputation(settings, file)
    loss = data.pop("loss", None)
    if isinstance(loss, Mapping) and loss.get(CALLED) == "ChunkedLossWrapper":
        data["compile"] = {**data.get("compile", {}), "chunked_loss": True}
    data.setdefault("training", {})
    data.setdefault("parallelism", {})
    optimizer = data.get("optimizer")
    if isinstance(optimizer, Mapping):
        data["optimizer"] = _optimizer(optimizer)
    return leave_makers(data, file.ledger, KIND)


def _fits(settings: Mapping[str, Any]) -> bool:
    """Whether it is a Trainer.Config, or of the older JobConfig."""
    maker = settings.get(CALLED)
    return ("model_spec" in settings and "training" in settings) or (
        maker == "JobConfig" and len(settings) > 2 and "training" in settings
    )


def _model(spec: Mapping[str, Any], recipe: str, file: Foreign) -> dict[str, Any]:
    """name, flavor and converters of `model_registry("8B", converters=[...])`."""
    flavor = spec.get("0", spec.get("flavor"))
    made: dict[str, Any] = {"name": spec.get("name", _name(spec, recipe, file)), "flavor": flavor}
    if isinstance(flavor, NotKnown) and file.model is None:
        raise SpecError(
            f"{file.ledger.where}, line {flavor.line}: the model's flavor is known only to running code "
            f"({flavor.why}); give --model PRESET"
        )
    if isinstance(flavor, NotKnown):
        made["flavor"] = None
    converters = spec.get("converters") or []
    if isinstance(converters, NotKnown):
        why = "known only to running code; give --set training.precision=fp8 where they are float8's"
        file.ledger.ignore("converters", f"?, line {converters.line}", why, matters=True)
        converters = []
    made["converters"] = [each.get(CALLED, "?") if isinstance(each, Mapping) else str(each) for each in converters]
    for each in converters:
        for which in ("fqns", "filter_fqns"):
            names = each.get(which) if isinstance(each, Mapping) else None
            if names in (None, []):
                continue
            shown = f"?, line {names.line}" if isinstance(names, NotKnown) else names
            why = "which linears are converted is not priced: all of the layers are; see training.high_precision_layers"
            file.ledger.ignore(f"{each.get(CALLED)}.{which}", shown, why, matters=True)
    rest = {key: value for key, value in spec.items() if key not in ("0", "flavor", "name", "converters", CALLED)}
    adapters = [each for each in converters if isinstance(each, Mapping) and "lora" in str(each.get(CALLED)).lower()]
    return made | rest | ({"adapters": dict(adapters[0])} if adapters else {})


def _name(spec: Mapping[str, Any], recipe: str, file: Foreign) -> str:
    """Which model's registry is called: by its module, by the file's folder, or by the recipe's name."""
    known = [*table(KIND)["flavors"], *table(KIND)["no_decoders"]]
    module = getattr(spec.get(CALLED), "module", "").split(".")
    folder = "" if file.folder is None else file.folder.name
    maker = str(spec.get(CALLED, "")).removesuffix("_model_registry")
    for part in (*reversed(module), maker, folder):
        if part in known:
            return str(part)
    found = [name for name in known if recipe.startswith(name) or f"_{name}" in recipe]
    if not found:
        raise file.ledger.error(f"another file says whose flavor {short(spec.get('0'))!r} is; give --model PRESET")
    return str(max(found, key=len))


def _recomputation(settings: Mapping[str, Any], file: Foreign) -> Any:
    """`activation_checkpoint` by its mode: a class in Python, of which SelectiveAC is the default."""
    said = settings.get("activation_checkpoint", {})
    if said is None:
        return {"mode": "none"}
    if not isinstance(said, Mapping) or "mode" in said or not said:
        return {"mode": "selective"} if isinstance(said, Mapping) and not said else said
    maker = str(said.get(CALLED, ""))
    mode = table(KIND)["recomputes"].get(maker)
    if mode is None:
        raise file.ledger.error(
            f"activation_checkpoint {short(maker)!r} is none of "
            f"{', '.join(table(KIND)['recomputes'])}; give --set plan.recompute=MODE after making it one of them"
        )
    return {"mode": mode, **{key: value for key, value in said.items() if key != CALLED}}


def _optimizer(said: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer's name: of `default_adamw(...)`, of groups of parameters, or what it says itself."""
    groups = said.get("param_groups")
    if isinstance(groups, list):
        names = [each.get("optimizer_name") for each in groups if isinstance(each, Mapping)]
        return {"name": names[-1]} if names and isinstance(names[-1], str) else {}
    maker = str(said.get(CALLED, ""))
    name = maker.removeprefix("default_") if maker.startswith("default_") else said.get("name")
    return {**{key: value for key, value in said.items() if key not in (CALLED, "0", "name")}, "name": name or "AdamW"}


_SECTIONS = ("parallelism", "training", "activation_checkpoint", "job")


def is_torchtitan(data: Any) -> bool:
    """Whether data from TOML or JSON are such a configuration."""
    return isinstance(data, Mapping) and sum(isinstance(data.get(name), Mapping) for name in _SECTIONS) >= 2


def read_torchtitan(file: Foreign) -> dict[str, Any]:
    """A scenario's sections. Raises SpecError: a model or a schedule that flopcast does not know, or a value that
    breaks a rule."""
    ledger = file.ledger
    keys = _dotted(file.data if file.data is not None else settings_in_python(file), ledger)
    model: Any = file.model if file.model is not None else read_flavor(keys)
    model = _further_tokens(model, keys, ledger)
    shape = whole_shape(model)
    machine = Machine.of(file)
    recipe = Recipe(keys, file, STEPS)
    plan, training = recipe.plan, recipe.training
    recipe.known["mixture"] = bool(shape.get("num_experts"))
    recipe.read("degrees")
    recipe.read("experts")
    gpus = _gpus(recipe, shape, machine)
    unit = plan["tp"] * plan["cp"] * plan["pp"]
    plan.took("dp", replicas(gpus, unit, ledger, "tp · cp · pp"), "GPUs over tp · cp · pp")
    recipe.read("replicas")
    local = keys.whole("training.local_batch_size", "training.batch_size")
    local = local if local is not None else ledger.assume("training.local_batch_size", 8, DEFAULT)
    take_pipeline(plan, local, keys, shape)
    recipe.known |= {"local": local, "layers": int(shape["num_layers"])}
    recipe.read("training")
    take_optimizer(training, keys.text("optimizer.name"), "optimizer.name")
    recipe.read("stack")
    recipe.read("low_rank")
    for prefix in ("model.adapters", "model", "training", "parallelism", "activation_checkpoint", "experimental"):
        keys.below(prefix).leave()
    keys.leave()
    return {**recipe.sections, "model": model, "cluster": machine.section(gpus)}


def _dotted(data: Mapping[str, Any], ledger: Ledger) -> Keys:
    """Settings as keys with dots, such as `training.steps`. Raises SpecError: a section that is none."""
    keys = Keys({name: value for name, value in flat(data, DEEPEST) if value != {}}, ledger, KIND)
    for name in ("compile", "float8", "mx", "quantize", "optimizer", "experimental", *_SECTIONS[:3], "model"):
        if keys.raw(name) is not None:
            raise keys.wrong(name, keys.raw(name), "must hold keys of its own")
    return keys


def _further_tokens(model: Any, keys: Keys, ledger: Ledger) -> Any:
    """Modules of multi-token prediction, which torchtitan trains where its registry is asked for them."""
    asked = keys.whole("model.num_mtp_layers", least=0) or 0
    if not asked and not whole_shape(model).get("num_mtp_layers"):
        return model
    section = Section("model", ledger, **({"preset": model} if isinstance(model, str) else model))
    if asked:
        section.took("num_mtp_layers", asked, "num_mtp_layers")
    elif section.get("num_mtp_layers") != 0:
        section.assume("num_mtp_layers", 0, "torchtitan trains no multi-token prediction unless asked")
    return section


def _gpus(recipe: Recipe, shape: dict[str, Any], machine: Machine) -> int:
    plan, file, replicated, sharded = recipe.plan, recipe.file, recipe.known["replicated"], recipe.known["sharded"]
    unit = plan["tp"] * plan["cp"] * plan["pp"] * replicated
    if sharded > 0:
        if file.given.gpus not in (None, unit * sharded):
            why = f"its degrees make {unit * sharded:,} GPUs, not {file.given.gpus:,}; leave --gpus out"
            raise file.ledger.error(why)
        return int(file.ledger.took("GPUs", unit * sharded, "the product of all degrees"))
    return told_gpus(file, file.started or NOT_SAID) or machine.fewest_gpus(shape, unit)


def balancer(recipe: Recipe) -> None:
    """Which pieces of a sequence context-parallel ranks hold."""
    name = "context_parallel_load_balancer"
    if recipe.keys.says(f"parallelism.{name}"):
        said = str(recipe.keys.take(f"parallelism.{name}")[1])
        recipe.stack.took("balanced_context", said.lower() != "none", name)


STEPS = {each.__name__: each for each in (balancer, converted, targets)}
"""What the table's rows call by `step`."""
