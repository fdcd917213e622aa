"""The plan of Megatron-LM's arguments: degrees, sharding, recomputation, chunks and where layers lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.keys import Arguments
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.megatron.deepspeed_file import take_zero
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.foreign.importers.recipes.rows import RecipeRows
from sim.specs.plan import RECOMPUTE_MODULES, layout_stages


def read_plan(arguments: Arguments, config: Mapping[str, Any] | None = None) -> Section:
    """Degrees, sharding and recomputation.

    config : of DeepSpeed, where its JSON could be read.
    """
    plan = Section("plan", arguments.ledger)
    optimizer = (arguments.raw("optimizer") or [""])[0]
    kind, dealt = optimizer.replace("-", "").lower(), optimizer.startswith("dist_")
    names = {"optimizer": optimizer, "plain": kind, "dealt_optimizer": dealt, "modules": RECOMPUTE_MODULES}
    rows = RecipeRows.on(arguments, {"plan": plan}, **names)
    rows.read("plan")
    if "deepspeed" in arguments or config:
        take_zero(plan, arguments, config)
    else:
        rows.read("sharding")
    rows.read("recompute")
    rows.read("offload")
    return plan


def take_fewer_layers(plan: Section, layers: int) -> None:
    """Recompute no more layers of a stage than it has: Megatron-LM stops at its end."""
    number, most = plan.get("recompute_num_layers", 1), -(-layers // (plan["pp"] * plan.get("num_chunks", 1)))
    if number > most:
        plan.assume("recompute_num_layers", most, f"a stage has no more layers than that, not {number}")


def take_chunks(plan: Section, arguments: Arguments, model: Section) -> None:
    """Virtual stages, given as layers of each or as stages of a rank, and what each holds."""
    where, pp, layers = arguments.ledger.where, plan["pp"], model["num_layers"]
    per_stage = arguments.whole("num-layers-per-virtual-pipeline-stage")
    chunks = arguments.whole("num-virtual-stages-per-pipeline-rank")
    source = "--num-virtual-stages-per-pipeline-rank"
    if per_stage is not None and chunks is not None:
        raise SpecError(
            f"{where}: --num-layers-per-virtual-pipeline-stage and {source} both say how many, which Megatron-LM "
            "refuses; keep one"
        )
    ends = {end: arguments.whole(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last")}
    layout = arguments.text("pipeline-model-parallel-layout")
    if layout is not None:
        stages = _stages_of(layout, where)
        if stages % pp:
            raise SpecError(
                f"{where}: --pipeline-model-parallel-layout {short(layout)!r} has {stages} stages, no multiple "
                f"of the {pp} pipeline ranks"
            )
        source, chunks = "--pipeline-model-parallel-layout", stages // pp
        plan.took("pipeline_layout", layout.strip("\"'"), source)
    elif per_stage is not None:
        dealt = layers + bool(plan.get("embedding_as_layer")) + bool(plan.get("head_as_layer"))
        if dealt % (pp * per_stage):
            raise SpecError(f"{where}: {dealt} layers over {pp} pipeline ranks do not make stages of {per_stage}")
        source, chunks = "--num-layers-per-virtual-pipeline-stage", dealt // (pp * per_stage)
    if layout is None and set(ends.values()) != {None} and pp > 1:
        _ends(plan, model, ends, chunks or 1, where)
    folded = arguments.text("schedules-method")
    if folded not in (None, "dualpipev"):
        raise SpecError(f"{where}: --schedules-method {short(folded)!r} is not modelled")
    chunks = 2 if folded else chunks
    stages = pp * (chunks or 1)
    idle = [int(number) for number in arguments.words("noop-layers") if number.isdigit()]
    if idle:
        _leave_out(plan, model, idle, stages, where)
    dealt = layers + bool(plan.get("embedding_as_layer")) + bool(plan.get("head_as_layer"))
    if "deepspeed" in arguments and "no-pipeline-parallel" not in arguments and dealt % stages:
        plan.took("uneven_layers", True, "DeepSpeed deals what the stages do not divide")
    RecipeRows.on(arguments, {"plan": plan}, folded=folded, chunks=chunks, source=source).read("schedule")


def _leave_out(plan: Section, model: Section, idle: list[int], stages: int, where: str) -> None:
    """Stages of equally many layers, of which some do nothing (MindSpeed's noop layers)."""
    layers = model["num_layers"] + len(set(idle))
    if layers % stages or max(idle) >= layers:
        raise SpecError(f"{where}: --noop-layers of {layers} layers, which {stages} stages cannot share evenly")
    each = layers // stages
    counts = [sum(layer not in idle for layer in range(each * at, each * (at + 1))) for at in range(stages)]
    if stages > 1:
        plan.took("pipeline_layout", layout_of(counts, model.get("num_mtp_layers", 0)), "--noop-layers")


def _ends(plan: Section, model: Section, ends: dict[str, int | None], chunks: int, where: str) -> None:
    """Layers of the first and of the last pipeline rank; the other ranks share the rest (megatron/core/transformer/
    transformer_block.py, get_num_layers_to_build).
    """
    pp, layers = plan["pp"], model["num_layers"]
    given = {end: number for end, number in ends.items() if number is not None}
    names = " and ".join(f"--decoder-{end}-pipeline-num-layers" for end in given)
    rest, between = layers - sum(given.values()), pp - len(given)
    if rest < 0 or (between and rest % between) or (not between and rest):
        raise SpecError(f"{where}: {names} leave {rest} of {layers} layers, which {between} ranks cannot share evenly")
    ranks = [rest // between if between else 0] * pp
    ranks[0], ranks[-1] = given.get("first", ranks[0]), given.get("last", ranks[-1])
    odd = next((number for number in ranks if number % chunks), None)
    if odd is not None:
        raise SpecError(f"{where}: {names}: a rank's {odd} layers do not make {chunks} virtual stages")
    stages = [number // chunks for _ in range(chunks) for number in ranks]
    plan.took("pipeline_layout", layout_of(stages, model.get("num_mtp_layers", 0)), names)


def _stages_of(layout: str, where: str) -> int:
    """Stages of a layout such as `Et*3|(tt|)*29m|L`."""
    try:
        return len(layout_stages(layout.strip("\"'")[:1000]))
    except ValueError as error:
        raise SpecError(
            f"{where}: --pipeline-model-parallel-layout {short(layout)!r} cannot be read: {error}"
        ) from None
