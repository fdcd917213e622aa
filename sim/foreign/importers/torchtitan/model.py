"""torchtitan's models, pipelines and stack: a name and a flavor stand for a preset, or for a shape of the table."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from sim.errors import SpecError, nearest
from sim.foreign.importers.defaults import take_16_bits
from sim.foreign.importers.keys import Keys, table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.foreign.importers.pipeline_layouts import layout_of

KIND = "torchtitan"


def read_flavor(keys: Keys) -> Any:
    """The section `model`: what model.name and model.flavor stand for. Raises SpecError: they are not there, or not
    known."""
    name, flavor, ledger = keys.text("name"), keys.text("flavor"), keys.ledger
    if name is None or flavor is None:
        raise SpecError(f"{ledger.where}: model.name and model.flavor say which model it is; give --model instead")
    model = flavor_of(name, flavor, ledger)
    towers = table(KIND)["towers"]
    if not {_plain(name), f"{_plain(name)} {flavor}"}.isdisjoint(towers):
        ledger.ignore("the vision encoder", "", "the language model alone is priced", matters=True)
    return model


def flavor_of(name: str, flavor: str, ledger: Ledger) -> Any:
    """A preset, or a shape."""
    where, known = ledger.where, table(KIND)["flavors"]
    if _plain(name) in table(KIND)["no_decoders"]:
        raise SpecError(f"{where}: model {short(name)!r} is no decoder of text; flopcast models none other")
    flavors = {each.lower(): what for each, what in known.get(_plain(name), {}).items() if each != "all"}
    found = flavors.get(flavor.lower())
    if found is None:
        hint = nearest(flavor, flavors) if flavors else nearest(name, known)
        raise SpecError(
            f"{where}: the file does not describe model {short(f'{name} {flavor}')!r}, and no preset has that "
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


def take_pipeline(plan: Section, local: int, cut: Keys, experimental: Keys, shape: dict[str, Any]) -> None:
    """Schedule, chunks and micro-batch. Without a pipeline its keys are left, as they have no effect."""
    if plan["pp"] == 1:
        plan.took("microbatch_size", local, "local_batch_size")
        return
    name = cut.text("pipeline_parallel_schedule") or experimental.text("pipeline_parallel_schedule")
    of_micro = cut.whole("pipeline_parallel_microbatch_size")
    number = experimental.whole("pipeline_parallel_microbatches") or cut.whole("pipeline_parallel_microbatches")
    known = table(KIND)["schedules"].get((name or "1F1B").lower())
    if known is None:
        raise SpecError(f"{plan.ledger.where}: pipeline_parallel_schedule {short(name)!r} is not modelled")
    schedule, chunks = known
    if name is None:
        plan.assume("schedule", schedule, DEFAULT)
    else:
        plan.took("schedule", schedule, f"pipeline_parallel_schedule {name}")
    chunks = _layout(plan, cut, experimental, shape, chunks)
    if chunks > 1:
        plan.took("num_chunks", chunks, "stages a rank of this schedule")
    if number is not None:
        of_micro = max(1, local // number)
    size = plan.settle("microbatch_size", of_micro, "micro-batches of the pipeline", 1, DEFAULT)
    if local % size:
        raise SpecError(f"{plan.ledger.where}: local_batch_size {local} is no multiple of the micro-batch {size}")


def _layout(plan: Section, cut: Keys, experimental: Keys, shape: dict[str, Any], chunks: int) -> int:
    """What each stage holds; chunks a rank, which a list of stages says.

    Where the file names no modules, embedding and head take the place of one layer each, or of as many as it says, and
    what does not divide goes to the first stages (torchtitan/distributed/pipeline_parallel.py,
    generate_llm_fqn_per_model_part).
    """
    pp, layers, where = int(plan["pp"]), int(shape["num_layers"]), plan.ledger.where
    first = cut.whole("pipeline_parallel_first_stage_less_layers", least=0)
    last = cut.whole("pipeline_parallel_last_stage_less_layers", least=0)
    key, parts = cut.take("module_fqns_per_model_part")
    counts = _parts(parts, layers, cut.wrong(key, parts, "must list each stage's modules, layers.0 first"))
    for section in (cut, experimental) if counts is None else ():
        key, points = section.take("pipeline_parallel_split_points")
        if points is None:
            continue
        counts = _points(points, layers, cut.wrong(key, points, "must name layers of growing numbers, as layers.8"))
    if counts is not None:
        if len(counts) % pp:
            raise SpecError(
                f"{where}: {cut.label}{key} has {len(counts)} stages, no multiple of the {pp} pipeline ranks"
            )
        plan.took("pipeline_layout", layout_of(counts), key)
        return len(counts) // pp
    before, behind = (1 if less is None else less for less in (first, last))
    each = cut.whole("pipeline_parallel_layers_per_stage")
    if each is not None:
        chunks = _chunks(cut, each, (layers, layers + before + behind), pp, chunks)
    share, rest = divmod(layers + before + behind, pp * chunks)
    stages = [share + (stage < rest) for stage in range(pp * chunks)]
    stages[0], stages[-1] = stages[0] - before, stages[-1] - behind
    if min(stages) < 0:
        raise SpecError(
            f"{where}: {layers} layers on {pp * chunks} stages leave the first or the last less than its "
            "pipeline_parallel_first_stage_less_layers or pipeline_parallel_last_stage_less_layers"
        )
    if len(set(stages)) > 1:
        source = "first_stage_less_layers and last_stage_less_layers"
        said = layout_of(stages)
        if first is None and last is None:
            plan.assume("pipeline_layout", said, f"{DEFAULT}: embedding and head count as a layer each")
        else:
            plan.took("pipeline_layout", said, source)
    return chunks


def _chunks(cut: Keys, each: int, layers: tuple[int, int], pp: int, usual: int) -> int:
    """Chunks a rank of so many layers a stage.

    layers : of the model; and with what embedding and head count as, as torchtitan counts since it has such keys.

    Raises SpecError: stages that the ranks, or the schedule, cannot hold; torchtitan refuses them too.
    """
    stages = [-(-number // each) for number in reversed(layers)]
    number = next((found for found in stages if found % pp == 0), 0)
    if not number or (usual == 1) != (number == pp):
        holds = "one stage" if usual == 1 else "several stages"
        rule = f"makes {stages[0]} stages on {pp} ranks, each of which must hold {holds} with this schedule"
        raise cut.wrong("pipeline_parallel_layers_per_stage", each, rule)
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


def _points(points: Any, layers: int, wrong: SpecError) -> list[int] | None:
    """Layers of each stage, of the names of what begins one: `["layers.8", "layers.16"]`, or `norm` and `output`."""
    points = points.split(",") if isinstance(points, str) else points
    if not points:
        return None
    if not isinstance(points, list) or not all(isinstance(point, str) for point in points):
        raise wrong
    starts = [
        layers if point.strip() in ("norm", "output") else point.strip().removeprefix("layers.") for point in points
    ]
    numbers = [0, *(int(start) if str(start).isdecimal() else -1 for start in starts), layers]
    if sorted(numbers) != numbers or len(set(numbers[:-1])) < len(numbers) - 1:
        raise wrong
    return [after - before for before, after in pairwise(numbers)]


_WIDTHS = {"bfloat16": "bf16", "float32": "fp32"}
_GATHERS = "enable_fsdp_float8_all_gather"


def read_stack(keys: Keys, training: Keys, model: Keys, cut: Keys, plan: Section) -> Section:
    """The framework; whether layers are compiled ([compile] enable, or training.compile of older files); how tokens go
    to experts, keys and values round, and pieces of the sequence to multiplies; and how the loss is worked out
    (ChunkedLossWrapper of newer files, in Python)."""
    stack, compiler = Section("stack", keys.ledger), keys.section("compile")
    stack.took("framework", "torchtitan", "the file's kind")
    enabled, older = compiler.flag("enable"), training.flag("compile")
    enabled = older if enabled is None else enabled
    _, parts = compiler.take("components")
    if enabled and isinstance(parts, list) and "model" not in parts:
        stack.took("compiled", False, f"compile.components {', '.join(map(str, parts))}: not the model")
    else:
        why = "torchtitan's default: torchtitan/config/configs.py, CompileConfig.enable"
        stack.settle("compiled", enabled, "compile.enable", False, why)
    backend = model.text("moe_comm_backend")
    if backend in ("deepep", "hybridep"):
        stack.took("expert_dispatcher", backend, "moe_comm_backend")
    elif backend not in (None, "standard"):
        stack.ledger.ignore("moe_comm_backend", backend, "priced as all-to-alls", matters=True)
    if compiler.flag("chunked_loss"):
        stack.took("chunked_loss", True, "loss ChunkedLossWrapper")
    pieces = compiler.flag("enable_async_tensor_parallel") or cut.flag("enable_async_tensor_parallel")
    compiler.leave()
    if plan["tp"] > 1 and cut.flag("disable_loss_parallel"):
        stack.took("vocab_parallel_loss", False, "disable_loss_parallel")
    if plan["tp"] > 1 and pieces:
        stack.took("async_tensor_parallel", True, "enable_async_tensor_parallel")
    if plan["cp"] > 1:
        _context(stack, cut)
    return stack


def _context(stack: Section, cut: Keys) -> None:
    """How context-parallel ranks get the others' keys and values, and which pieces of a sequence they hold."""
    method = cut.text("context_parallel_rotate_method")
    if method not in (None, "allgather", "alltoall"):
        raise cut.wrong("context_parallel_rotate_method", method, "must be allgather or alltoall")
    rotates, why = None if method is None else method == "alltoall", "torchtitan's default, allgather"
    stack.settle("overlap_context", rotates, "context_parallel_rotate_method", False, why)
    if cut.says("context_parallel_load_balancer"):
        named = str(cut.take("context_parallel_load_balancer")[1])
        stack.took("balanced_context", named.lower() != "none", "context_parallel_load_balancer")


def take_update(stack: Section, optimizer: Keys) -> None:
    """Whether the update is one kernel for many tensors."""
    made, older = optimizer.text("implementation"), optimizer.flag("fused")
    if made not in (None, "fused", "foreach", "for-loop"):
        raise optimizer.wrong("implementation", made, "must be fused, foreach or for-loop")
    if made is not None or older is not None:
        fused = made != "for-loop" if made is not None else older
        stack.took("fused_optimizer", fused, "optimizer.implementation" if made else "optimizer.fused")
    optimizer.leave()


def take_precision(training: Section, stack: Section, model: Keys, keys: Keys, whole: Keys) -> None:
    """Read the precisions of linears, and of weights, states and gradients."""
    less, source, gathers = _converted(model, whole)
    said = {name: keys.text(name) for name in ("mixed_precision_param", "dtype", "mixed_precision_reduce")}
    for name, value in said.items():
        if value not in (None, *_WIDTHS):
            raise keys.wrong(name, value, f"must be {' or '.join(_WIDTHS)}")
    param, dtype, reduced = said.values()
    if dtype == "bfloat16":
        take_16_bits(training, stack, "bf16", "dtype bfloat16")
    if less is not None:
        training.took("precision", less, source)
        if param == "float32":
            why = f"beside linears in {less} activations are priced in 16 bits"
            keys.ledger.ignore("training.mixed_precision_param", param, why, matters=True)
    elif dtype == "bfloat16":
        training.took("precision", "bf16", "dtype bfloat16")
        if param == "float32":
            why = "weights of dtype bfloat16 are priced to multiply in 16 bits"
            keys.ledger.ignore("training.mixed_precision_param", param, why, matters=True)
    else:
        width = _WIDTHS[param or "bfloat16"]
        training.settle("precision", width if param else None, f"mixed_precision_param {param}", width, f"{KIND}'s own")
    if reduced is not None:
        stack.took("gradient_precision", _WIDTHS[reduced], "mixed_precision_reduce")
    if gathers and less != "fp8":
        stack.ledger.ignore(_GATHERS, True, f"without effect with linears in {training['precision']}")
    if less is not None:
        stack.settle("fp8_gathers", (gathers and less == "fp8") or None, _GATHERS, False, f"no {_GATHERS}")


def _converted(model: Keys, whole: Keys) -> tuple[str | None, str, bool]:
    """(precision of converted linears, what says so, whether float8's sections ask to gather in it), by the converters'
    names and by the sections that older files have for each."""
    _, converters = model.take("converters")
    names = converters if isinstance(converters, list) else str(converters or "").replace(",", " ").split()
    known = table(KIND)["converters"]
    found = [(known[part], f"{name}: linears") for name in names[:20] for part in known if part in str(name).lower()]
    float8, mx = whole.section("float8"), whole.section("mx")
    quantize = whole.section("quantize")
    kinds = {name: quantize.section(name) for name in ("linear", "grouped_mm", "dense", "moe")}
    if float8.flag("enable_float8_linear"):
        found.append(("fp8", "float8.enable_float8_linear"))
    sections = [float8, *(each.section("float8") for each in kinds.values())]
    asked = [each.flag(_GATHERS) for each in sections]
    by_rows = [str(each.text("recipe_name")).startswith("rowwise") for each in sections]
    of_mx = [mx, *(each.section("mx") for each in kinds.values())]
    recipes = [each.text("recipe_name") for each in of_mx]
    if found and found[0][0] == "mxfp8" and any("mxfp4" in str(recipe) for recipe in recipes):
        found[0] = "mxfp4", "recipe_name: linears"
    for section in (*sections, *of_mx, *kinds.values(), quantize):
        section.leave()
    if any(by_rows) and any(asked):
        whole.ledger.ignore(_GATHERS, True, "without effect with recipe_name rowwise")
    precision, source = found[0] if found else (None, "")
    return precision, source, any(asked) and not any(by_rows)
