"""torchtitan's configuration: TOML, the JSON that it dumps, or Python.

Names are those of pytorch/torchtitan's job config, with the older places of the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError, nearest
from sim.foreign.importers.defaults import NOT_SAID, Foreign, Machine, replicas, take_optimizer, told_gpus
from sim.foreign.importers.huggingface.hub_models import whole_shape
from sim.foreign.importers.keys import Keys, NotKnown, flat, table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.foreign.importers.python.recipes import leave_makers, read_recipe
from sim.foreign.importers.python.values import CALLED
from sim.foreign.importers.recipes.finetuning import targets
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.sources import DEEPEST
from sim.specs.plan import layout_of

KIND = "torchtitan"


def read_flavor(keys: Keys) -> Any:
    """The section `model`: what model.name and model.flavor stand for. Raises SpecError: they are not there, or not
    known."""
    name, flavor, ledger = keys.text("model.name"), keys.text("model.flavor"), keys.ledger
    if name is None or flavor is None:
        raise ledger.error("model.name and model.flavor say which model it is; give --model instead")
    # llama3, graph_trainer.llama3 and llama3_ft have one shape.
    known, plain = table(KIND), name.rpartition(".")[2].lower().replace("-", "_").removesuffix("_ft")
    if plain in known["no_decoders"]:
        raise ledger.error(f"model {short(name)!r} is no decoder of text; flopcast models none other")
    family = known["flavors"].get(plain, {})
    flavors = {each.lower(): what for each, what in family.items() if each != "all"}
    found = flavors.get(flavor.lower())
    if found is None:
        hint = nearest(flavor, flavors) if flavors else nearest(name, known["flavors"])
        raise ledger.error(
            f"the file does not describe model {short(f'{name} {flavor}')!r}, and no preset has that "
            f"name; give --model PRESET or --model config.json{hint}"
        )
    source = f"model.name {short(name)} and model.flavor {short(flavor)}"
    if isinstance(found, str):
        ledger.took("model", found, source)
    else:
        called = f"{name}-{flavor}".lower().replace("_", "-")
        ledger.took("model", called, f"{source}, of torchtitan's registry")
        found = Section("model", ledger, **{"name": called, **family["all"], **found})
    if not {plain, f"{plain} {flavor}"}.isdisjoint(known["towers"]):
        ledger.ignore("the vision encoder", "", "the language model alone is priced", matters=True)
    return found


DEFAULT = "torchtitan's default"


def take_pipeline(plan: Section, local: int, keys: Keys, shape: dict[str, Any]) -> None:
    """Schedule, chunks and micro-batch. Without a pipeline its keys are left, as they have no effect."""
    if plan["pp"] == 1:
        plan.took("microbatch_size", local, "local_batch_size")
        return
    name = keys.text("parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule")
    of_micro = keys.whole("parallelism.pipeline_parallel_microbatch_size")
    number = keys.whole("experimental.pipeline_parallel_microbatches", "parallelism.pipeline_parallel_microbatches")
    known = table(KIND)["schedules"].get((name or "1F1B").lower())
    if known is None:
        raise plan.ledger.error(f"pipeline_parallel_schedule {short(name)!r} is not modelled")
    schedule, chunks = known
    plan.settle("schedule", name and schedule, f"pipeline_parallel_schedule {name}", schedule, DEFAULT)
    chunks = _layout(plan, keys, shape, chunks)
    if chunks > 1:
        plan.took("num_chunks", chunks, "stages a rank of this schedule")
    if number is not None:
        of_micro = max(1, local // number)
    size = plan.settle("microbatch_size", of_micro, "micro-batches of the pipeline", 1, DEFAULT)
    if local % size:
        raise plan.ledger.error(f"local_batch_size {local} is no multiple of the micro-batch {size}")


def _layout(plan: Section, keys: Keys, shape: dict[str, Any], chunks: int) -> int:
    """What each stage holds; chunks a rank, which a list of stages says.

    Where the file names no modules, embedding and head take the place of one layer each, or of as many as it says, and
    what does not divide goes to the first stages (torchtitan/distributed/pipeline_parallel.py,
    generate_llm_fqn_per_model_part).
    """
    pp, layers = int(plan["pp"]), int(shape["num_layers"])
    first = keys.whole("parallelism.pipeline_parallel_first_stage_less_layers", least=0)
    last = keys.whole("parallelism.pipeline_parallel_last_stage_less_layers", least=0)
    key, parts = keys.take("parallelism.module_fqns_per_model_part")
    counts = _parts(parts, layers, keys.wrong(key, parts, "must list each stage's modules, layers.0 first"))
    if counts is not None:
        if len(counts) % pp:
            raise plan.ledger.error(f"{key} has {len(counts)} stages, no multiple of the {pp} pipeline ranks")
        plan.took("pipeline_layout", layout_of(counts), key.rpartition(".")[2])
        return len(counts) // pp
    before, behind = (1 if less is None else less for less in (first, last))
    each = keys.whole("parallelism.pipeline_parallel_layers_per_stage")
    if each is not None:
        chunks = _chunks(keys, each, (layers, layers + before + behind), pp, chunks)
    share, rest = divmod(layers + before + behind, pp * chunks)
    stages = [share + (stage < rest) for stage in range(pp * chunks)]
    stages[0], stages[-1] = stages[0] - before, stages[-1] - behind
    if min(stages) < 0:
        raise plan.ledger.error(
            f"{layers} layers on {pp * chunks} stages leave the first or the last less than its "
            "pipeline_parallel_first_stage_less_layers or pipeline_parallel_last_stage_less_layers"
        )
    if len(set(stages)) > 1:
        said, source = layout_of(stages), "first_stage_less_layers and last_stage_less_layers"
        why = f"{DEFAULT}: embedding and head count as a layer each"
        plan.settle("pipeline_layout", None if first is last is None else said, source, said, why)
    return chunks


def _chunks(keys: Keys, each: int, layers: tuple[int, int], pp: int, usual: int) -> int:
    """Chunks a rank of so many layers a stage.

    layers : of the model; and with what embedding and head count as, as torchtitan counts since it has such keys.

    Raises SpecError: stages that the ranks, or the schedule, cannot hold; torchtitan refuses them too.
    """
    stages = [-(-number // each) for number in reversed(layers)]
    number = next((found for found in stages if found % pp == 0), 0)
    if not number or (usual == 1) != (number == pp):
        holds = "one stage" if usual == 1 else "several stages"
        rule = f"makes {stages[0]} stages on {pp} ranks, each of which must hold {holds} with this schedule"
        raise keys.wrong("parallelism.pipeline_parallel_layers_per_stage", each, rule)
    return number // pp


def _parts(parts: Any, layers: int, wrong: SpecError) -> list[int] | None:
    """Layers of each stage of `[["tok_embeddings", "layers.0"], ..., ["norm", "output"]]`."""
    if parts is None:
        return None
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts) or not parts:
        raise wrong
    names = [[name for name in part if isinstance(name, str) and name.startswith("layers.")] for part in parts]
    if [name for part in names for name in part] != [f"layers.{layer}" for layer in range(layers)]:
        raise wrong
    return [len(part) for part in names]


_GATHERS = "enable_fsdp_float8_all_gather"


def converted(recipe: Recipe) -> None:
    """Learn `less`, the precision of converted linears, `said_by`, and whether float8's sections ask to gather in it.

    The converters' names say so, or the sections that older files have for each.
    """
    keys, known = recipe.keys, table(KIND)["converters"]
    _, converters = keys.take("model.converters")
    names = converters if isinstance(converters, list) else str(converters or "").replace(",", " ").split()
    found = [(known[part], f"{name}: linears") for name in names[:20] for part in known if part in str(name).lower()]
    if keys.flag("float8.enable_float8_linear"):
        found.append(("fp8", "float8.enable_float8_linear"))
    kinds = [f"quantize.{name}." for name in ("linear", "grouped_mm", "dense", "moe")]
    sections = [f"{before}float8" for before in ("", *kinds)]
    asked = [keys.flag(f"{section}.{_GATHERS}") for section in sections]
    by_rows = [str(keys.text(f"{section}.recipe_name")).startswith("rowwise") for section in sections]
    of_mx = [f"{before}mx" for before in ("", *kinds)]
    recipes = [keys.text(f"{section}.recipe_name") for section in of_mx]
    if found and found[0][0] == "mxfp8" and any("mxfp4" in str(recipe) for recipe in recipes):
        found[0] = "mxfp4", "recipe_name: linears"
    for section in (*sections, *of_mx, "quantize"):
        keys.below(section).leave()
    if any(by_rows) and any(asked):
        keys.ledger.ignore(_GATHERS, True, "without effect with recipe_name rowwise")
    recipe.known["less"], recipe.known["said_by"] = found[0] if found else (None, "")
    recipe.known["gathers"] = any(asked) and not any(by_rows)


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
    data = file.data if file.data is not None else settings_in_python(file)
    keys = Keys({name: value for name, value in flat(data, DEEPEST) if value != {}}, ledger, KIND)
    for name in ("compile", "float8", "mx", "quantize", "optimizer", "experimental", *_SECTIONS[:3], "model"):
        if keys.raw(name) is not None:
            raise keys.wrong(name, keys.raw(name), "must hold keys of its own")
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


def _further_tokens(model: Any, keys: Keys, ledger: Ledger) -> Any:
    """Modules of multi-token prediction, which torchtitan trains where its registry is asked for them."""
    asked = keys.whole("model.num_mtp_layers", least=0) or 0
    if not asked and not whole_shape(model).get("num_mtp_layers"):
        return model
    section = Section("model", ledger, **({"preset": model} if isinstance(model, str) else model))
    if asked:
        section.took("num_mtp_layers", asked, "num_mtp_layers")
    else:
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
