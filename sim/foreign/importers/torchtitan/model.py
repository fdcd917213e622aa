"""torchtitan's models, pipelines and stack: a name and a flavor stand for a preset, or for a shape of the table."""

from __future__ import annotations

from typing import Any

from sim.errors import SpecError, nearest
from sim.foreign.importers.keys import Keys, table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.foreign.importers.recipes.rows import Recipe

KIND = "torchtitan"


def read_flavor(keys: Keys) -> Any:
    """The section `model`: what model.name and model.flavor stand for. Raises SpecError: they are not there, or not
    known."""
    name, flavor, ledger = keys.text("model.name"), keys.text("model.flavor"), keys.ledger
    if name is None or flavor is None:
        raise ledger.error("model.name and model.flavor say which model it is; give --model instead")
    model = flavor_of(name, flavor, ledger)
    towers = table(KIND)["towers"]
    if not {_plain(name), f"{_plain(name)} {flavor}"}.isdisjoint(towers):
        ledger.ignore("the vision encoder", "", "the language model alone is priced", matters=True)
    return model


def flavor_of(name: str, flavor: str, ledger: Ledger) -> Any:
    """A preset, or a shape."""
    known = table(KIND)["flavors"]
    if _plain(name) in table(KIND)["no_decoders"]:
        raise ledger.error(f"model {short(name)!r} is no decoder of text; flopcast models none other")
    flavors = {each.lower(): what for each, what in known.get(_plain(name), {}).items() if each != "all"}
    found = flavors.get(flavor.lower())
    if found is None:
        hint = nearest(flavor, flavors) if flavors else nearest(name, known)
        raise ledger.error(
            f"the file does not describe model {short(f'{name} {flavor}')!r}, and no preset has that "
            f"name; give --model PRESET or --model config.json{hint}"
        )
    source = f"model.name {short(name)} and model.flavor {short(flavor)}"
    if isinstance(found, dict):
        whole = {**known[_plain(name)]["all"], **found}
        model = Section("model", ledger, name=f"{name}-{flavor}".lower().replace("_", "-"))
        for field, value in whole.items():
            model[field] = value
        ledger.took("model", model["name"], f"{source}, of torchtitan's registry")
        return model
    ledger.took("model", found, source)
    return found


def _plain(name: str) -> str:
    """A model's name as the table has it: the same for `llama3`, `graph_trainer.llama3` and `llama3_ft`."""
    return name.rpartition(".")[2].lower().replace("-", "_").removesuffix("_ft")


DEFAULT = "torchtitan's default"


def take_pipeline(plan: Section, local: int, keys: Keys, shape: dict[str, Any]) -> None:
    """Schedule, chunks and micro-batch. Without a pipeline its keys are left, as they have no effect."""
    if plan["pp"] == 1:
        plan.took("microbatch_size", local, "local_batch_size")
        return
    name = keys.text("parallelism.pipeline_parallel_schedule") or keys.text("experimental.pipeline_parallel_schedule")
    of_micro = keys.whole("parallelism.pipeline_parallel_microbatch_size")
    number = keys.whole("experimental.pipeline_parallel_microbatches") or keys.whole(
        "parallelism.pipeline_parallel_microbatches"
    )
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
