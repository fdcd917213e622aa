"""Plan, training and stack of Megatron-LM's arguments: degrees, sharding, recomputation, where layers lie, batch,
precision, and which generation of the framework the arguments belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import replicas, take_optimizer
from sim.foreign.importers.keys import Arguments, Keys, flat, table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.megatron.model import layers_with_experts
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.shell.script import Files
from sim.foreign.importers.shell.tree import MARK
from sim.foreign.importers.sources import parse_json
from sim.specs.plan import GRAPH_MODULES, RECOMPUTE_MODULES, layout_of, layout_stages


def take_config(arguments: Arguments, files: Files) -> Mapping[str, Any] | None:
    """The JSON that --deepspeed_config names, if the script writes it or it lies beside; None otherwise, with a note
    where it is named."""
    ledger, options = arguments.ledger, table("megatron")["deepspeed_file"]["options"]
    name = next((values[0] for values in map(arguments.raw, options) if values), None)
    if not arguments.has(*options) or name is None:
        return None
    text, shown = files.text(name), MARK.sub("?", name)
    try:
        data = None if text is None else parse_json(MARK.sub("null", text), shown)
    except SpecError:
        data = None
    if not isinstance(data, Mapping):
        why = "not written by the script, nor beside it" if text is None else "is no JSON that can be read"
        ledger.ignore("--deepspeed_config", shown, f"{why}; what it sets is not read", matters=True)
        return None
    keys = Keys(dict(flat(data)), ledger, "deepspeed", f"{short(shown)}: ")
    told = {name: keys.take(name)[1] for name in table("megatron")["deepspeed_file"]["read"]}
    keys.leave()
    return told


def known_of_zero(arguments: Arguments, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the JSON and the arguments say of ZeRO and of precision, by the names that the table's rows have for it."""
    told = config or {}
    stage, device = (told.get(f"zero_optimization.{name}") for name in ("stage", "offload_optimizer.device"))
    beside = told.get("zero_optimization.overlap_comm")
    half = next((name for name in ("bf16", "fp16") if name in arguments or told.get(f"{name}.enabled") is True), None)
    return {
        "read": config is not None,
        "half": half,
        "of_file": half if config else None,
        "stage_of_file": stage if type(stage) is int and 0 <= stage <= 3 else None,
        "on_host": device == "cpu" or told.get("zero_optimization.cpu_offload") is True,
        "beside": beside if isinstance(beside, bool) else None,
    }


def read_plan(recipe: Recipe, config: Mapping[str, Any] | None = None) -> None:
    """Degrees, sharding and recomputation.

    config : of DeepSpeed, where its JSON could be read.
    """
    arguments = recipe.keys
    optimizer = arguments.first("optimizer") or ""
    kind, dealt = optimizer.replace("-", "").lower(), optimizer.startswith("dist_")
    recipe.known |= {"optimizer": optimizer, "plain": kind, "dealt_optimizer": dealt, "modules": RECOMPUTE_MODULES}
    recipe.known |= known_of_zero(arguments, config)
    for group in ("plan", "deepspeed" if "deepspeed" in arguments or config else "sharding", "recompute", "offload"):
        recipe.read(group)


def _layout(recipe: Recipe) -> None:
    """Stages of a layout such as `Et*3|(tt|)*29m|L`."""
    named, said, pp = "--pipeline-model-parallel-layout", recipe.known["layout"], recipe.plan["pp"]
    try:
        stages = len(layout_stages(said.strip("\"'")[:1000]))
    except ValueError as error:
        raise recipe.refused(f"{named} {short(said)!r} cannot be read: {error}") from None
    if stages % pp:
        raise recipe.refused(f"{named} {short(said)!r} has {stages} stages, no multiple of the {pp} pipeline ranks")
    recipe.known["chunks"] = stages // pp
    recipe.plan.took("pipeline_layout", said.strip("\"'"), named)


def _idle(recipe: Recipe) -> None:
    """Stages of equally many layers, of which some do nothing (MindSpeed's noop layers)."""
    model, stages = recipe.model, recipe.known["stages"]
    idle = {int(number) for number in recipe.keys.words("noop-layers") if number.isdigit()}
    layers = model["num_layers"] + len(idle)
    if idle and (layers % stages or max(idle) >= layers):
        raise recipe.refused(f"--noop-layers of {layers} layers, which {stages} stages cannot share evenly")
    if idle and stages > 1:
        each = layers // stages
        counts = [sum(layer not in idle for layer in range(each * at, each * (at + 1))) for at in range(stages)]
        recipe.plan.took("pipeline_layout", layout_of(counts, model.get("num_mtp_layers", 0)), "--noop-layers")


def _ends(recipe: Recipe) -> None:
    """Layers of the first and of the last pipeline rank; the other ranks share the rest (megatron/core/transformer/
    transformer_block.py, get_num_layers_to_build).
    """
    model, pp, chunks = recipe.model, recipe.plan["pp"], recipe.known["chunks"] or 1
    given = {end: recipe.known[f"{end}_rank"] for end in ("first", "last") if recipe.known[f"{end}_rank"] is not None}
    names = " and ".join(f"--decoder-{end}-pipeline-num-layers" for end in given)
    layers, between = model["num_layers"], pp - len(given)
    rest = layers - sum(given.values())
    if rest < 0 or (rest % between if between else rest):
        raise recipe.refused(f"{names} leave {rest} of {layers} layers, which {between} ranks cannot share evenly")
    each = rest // between if between else 0
    ranks = [given.get("first", each), *[each] * (pp - 2), given.get("last", each)]
    odd = next((number for number in ranks if number % chunks), None)
    if odd is not None:
        raise recipe.refused(f"{names}: a rank's {odd} layers do not make {chunks} virtual stages")
    stages = [number // chunks for _ in range(chunks) for number in ranks]
    recipe.plan.took("pipeline_layout", layout_of(stages, model.get("num_mtp_layers", 0)), names)


STEPS = {
    "layout": _layout,
    "idle": _idle,
    "ends": _ends,
    "layers": layers_with_experts,
}
"""What rows call by `step`."""


def read_training(recipe: Recipe) -> None:
    """Batch, precision and optimizer."""
    for group in ("training", "precision", "high_precision"):
        recipe.read(group)
    take_optimizer(recipe.training, recipe.keys.text("optimizer"), "--optimizer")
    recipe.read("precision_of_states")
    recipe.read("capacity")


def take_replicas(recipe: Recipe, gpus: int) -> None:
    """Take what follows from the number of GPUs: replicas, groups that shard, and where they are not said the batch
    (megatron/training/arguments.py, validate_args) and the tokens of the run."""
    plan = recipe.plan
    unit = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    plan.took("dp", replicas(gpus, unit, plan.ledger, "tp · pp · cp"), "GPUs over tp · pp · cp")
    recipe.read("replicas")
    recipe.read("budget")


def read_stack(recipe: Recipe, *, old: bool = False, whole: bool = False, **named: str) -> None:
    """Which generation of the framework the arguments belong to, and what they switch in it.

    whole : whether they are those of a whole command, in which what is not switched on is off; a recipe may leave it to
        its framework.
    named : the framework's name and version, of one whose files have been read as these arguments.
    """
    recipe.known |= {"old": old, "named": None, "version": None, "modules": GRAPH_MODULES, **named}
    for group in ("stack", *(["whole_run"] if whole else []), "exchanges", "dispatch", "graphs"):
        recipe.read(group)
