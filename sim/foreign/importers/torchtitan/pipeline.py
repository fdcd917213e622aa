"""torchtitan's pipelines: schedule, chunks, micro-batches, and what each stage holds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.keys import Keys, table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.foreign.importers.torchtitan.model import KIND

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

    Raises
    ------
    SpecError
        Stages that the ranks, or the schedule, cannot hold; torchtitan refuses them too.
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
