"""Plan, training and stack of Megatron-LM's arguments: degrees, sharding, recomputation, where layers lie, batch,
precision, and which generation of the framework the arguments belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.foreign.importers.defaults import replicas, take_optimizer
from sim.foreign.importers.keys import Arguments
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.megatron.deepspeed_file import half_precision, known_of_zero
from sim.foreign.importers.pipeline_layouts import layers_of_ranks, layout_of
from sim.foreign.importers.recipes.rows import RecipeRows
from sim.specs.plan import GRAPH_MODULES, RECOMPUTE_MODULES, layout_stages


def read_plan(arguments: Arguments, config: Mapping[str, Any] | None = None) -> Section:
    """Degrees, sharding and recomputation.

    config : of DeepSpeed, where its JSON could be read.
    """
    plan = Section("plan", arguments.ledger)
    optimizer = arguments.first("optimizer") or ""
    kind, dealt = optimizer.replace("-", "").lower(), optimizer.startswith("dist_")
    names: dict[str, Any] = {
        "optimizer": optimizer,
        "plain": kind,
        "dealt_optimizer": dealt,
        "modules": RECOMPUTE_MODULES,
    }
    rows = RecipeRows.on(arguments, {"plan": plan}, **names, **known_of_zero(arguments, config))
    for group in ("plan", "deepspeed" if "deepspeed" in arguments or config else "sharding", "recompute", "offload"):
        rows.read(group)
    return plan


def take_chunks(plan: Section, arguments: Arguments, model: Section) -> None:
    """Virtual stages, and what each holds."""
    RecipeRows.on(arguments, {"plan": plan, "model": model}, STEPS).read("schedule")


def _layout(rows: RecipeRows) -> None:
    """Stages of a layout such as `Et*3|(tt|)*29m|L`."""
    named, said, pp = "--pipeline-model-parallel-layout", rows.known["layout"], rows.plan["pp"]
    try:
        stages = len(layout_stages(said.strip("\"'")[:1000]))
    except ValueError as error:
        raise rows.refused(f"{named} {short(said)!r} cannot be read: {error}") from None
    if stages % pp:
        raise rows.refused(f"{named} {short(said)!r} has {stages} stages, no multiple of the {pp} pipeline ranks")
    rows.known["chunks"] = stages // pp
    rows.plan.took("pipeline_layout", said.strip("\"'"), named)


def _idle(rows: RecipeRows) -> None:
    """Stages of equally many layers, of which some do nothing (MindSpeed's noop layers)."""
    model, stages = rows.recipe.sections["model"], rows.known["stages"]
    idle = {int(number) for number in rows.keys.words("noop-layers") if number.isdigit()}
    layers = model["num_layers"] + len(idle)
    if idle and (layers % stages or max(idle) >= layers):
        raise rows.refused(f"--noop-layers of {layers} layers, which {stages} stages cannot share evenly")
    if idle and stages > 1:
        each = layers // stages
        counts = [sum(layer not in idle for layer in range(each * at, each * (at + 1))) for at in range(stages)]
        rows.plan.took("pipeline_layout", layout_of(counts, model.get("num_mtp_layers", 0)), "--noop-layers")


def _ends(rows: RecipeRows) -> None:
    """Layers of the first and of the last pipeline rank; the other ranks share the rest (megatron/core/transformer/
    transformer_block.py, get_num_layers_to_build).
    """
    model, pp, chunks = rows.recipe.sections["model"], rows.plan["pp"], rows.known["chunks"] or 1
    ends = {end: rows.known[f"{end}_rank"] for end in ("first", "last")}
    given = {end: number for end, number in ends.items() if number is not None}
    names = " and ".join(f"--decoder-{end}-pipeline-num-layers" for end in given)
    ranks, layers = layers_of_ranks(model["num_layers"], pp, *ends.values()), model["num_layers"]
    if ranks is None:
        rest, between = layers - sum(given.values()), pp - len(given)
        raise rows.refused(f"{names} leave {rest} of {layers} layers, which {between} ranks cannot share evenly")
    odd = next((number for number in ranks if number % chunks), None)
    if odd is not None:
        raise rows.refused(f"{names}: a rank's {odd} layers do not make {chunks} virtual stages")
    stages = [number // chunks for _ in range(chunks) for number in ranks]
    rows.plan.took("pipeline_layout", layout_of(stages, model.get("num_mtp_layers", 0)), names)


STEPS = {"layout": _layout, "idle": _idle, "ends": _ends}
"""What rows call by `step`."""


def read_training(
    arguments: Arguments, model: Section, config: Mapping[str, Any] | None = None, deepspeed_experts: bool = False
) -> Section:
    """Batch, precision and optimizer.

    config : of DeepSpeed, where its JSON could be read.
    deepspeed_experts : whether the experts are DeepSpeed's, which take no more than their buffers hold.
    """
    training = Section("training", arguments.ledger)
    of_file = half_precision(arguments, config) if config else None
    rows = RecipeRows.on(arguments, {"training": training, "model": model}, of_file=of_file)
    for group in ("training", "precision", "high_precision"):
        rows.read(group)
    take_optimizer(training, arguments.text("optimizer"), "--optimizer")
    rows.read("precision_of_states")
    rows.read("buffers" if deepspeed_experts and model.get("num_experts") else "capacity")
    return training


def take_replicas(plan: Section, training: Section, arguments: Arguments, gpus: int) -> None:
    """Take what follows from the number of GPUs: replicas, groups that shard, and where they are not said the batch
    (megatron/training/arguments.py, validate_args) and the tokens of the run."""
    unit = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    plan.took("dp", replicas(gpus, unit, arguments.ledger, "tp · pp · cp"), "GPUs over tp · pp · cp")
    rows = RecipeRows.on(arguments, {"plan": plan, "training": training})
    rows.read("replicas")
    rows.read("budget")


def read_stack(
    arguments: Arguments,
    old: bool,
    framework: tuple[str, str] | None = None,
    run: Mapping[str, Section] | None = None,
) -> Section:
    """Which generation of the framework the arguments belong to, and what they switch in it.

    framework : (name, version) of one whose files have been read as these arguments.
    run : the sections of a whole command, in which what is not switched on is off; None of a recipe, which may leave
        it to its framework.
    """
    stack = Section("stack", arguments.ledger)
    name, version = framework or (None, None)
    names: dict[str, Any] = {"old": old, "named": name, "version": version, "modules": GRAPH_MODULES}
    rows = RecipeRows.on(arguments, {**(run or {}), "stack": stack}, **names)
    rows.read("stack")
    if run is not None:
        rows.read("whole_run")
    for group in ("exchanges", "dispatch", "graphs"):
        rows.read(group)
    return stack
