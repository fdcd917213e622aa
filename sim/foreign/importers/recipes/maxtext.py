"""MaxText's YAML: the model by its numbers or its name, the mesh by its axes. TPUs are not among our hardware."""

from __future__ import annotations

from math import prod
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.recipes.pretraining_kinds import closed, opened
from sim.foreign.importers.recipes.recipe import whole_shape
from sim.foreign.importers.recipes.settings import Recipe, Settings

KIND = "maxtext"
_DEFAULT = "MaxText's default: configs/base.yml"


def read_maxtext(file: Foreign) -> dict[str, Any]:
    """A scenario's sections. Raises SpecError: a run on TPUs without --cluster, a block that the table does not have,
    or axes that do not go together."""
    keys, recipe = opened(file, KIND)
    _hardware(keys, file)
    _model(recipe, keys, file)
    experts = _mesh(recipe, keys)
    _batch(recipe, keys)
    if experts > 1:
        recipe.put("plan.ep", experts, "expert_parallelism")
    recipe.default("plan.ep", 1, f"{_DEFAULT}, ici_expert_parallelism")
    return closed(keys, recipe, file)


def _hardware(keys: Settings, file: Foreign) -> None:
    """Runs of GPUs are priced as they are; of TPUs only where the caller names GPUs to price them on."""
    said, given = keys.text("hardware"), file.given.cluster
    if said in ("gpu", "gpu_multiprocess"):
        return
    if said is not None and given is None:
        raise SpecError(
            f"{file.ledger.where}: hardware {short(said)!r}, which flopcast does not have; --cluster NAME prices the "
            "same training on GPUs (flopcast presets list clusters)"
        )
    what = said or "unsaid, which is a TPU"
    file.ledger.ignore("hardware", what, "priced on GPUs, which flopcast has", matters=True)


def _scale(model: Section, scale: int, file: Foreign) -> None:
    """Multiply the sizes as global_parameter_scale says: of its doublings in turn one is of heads and MLP, one of the
    hidden size, one of layers (src/maxtext/configs/types.py, get_individual_scales). Raises SpecError: no power of two.
    """
    if scale & (scale - 1):
        raise SpecError(f"{file.ledger.where}: global_parameter_scale {scale} must be a power of two")
    whole, rest = divmod(scale.bit_length() - 1, 3)
    heads, hidden = whole + (rest > 0), whole + (rest > 1)
    doublings = {"num_heads": heads, "num_kv_heads": heads, "intermediate_size": heads, "hidden_size": hidden}
    for name, count in {**doublings, "num_layers": whole}.items():
        if name in model and scale > 1:
            model.took(name, model[name] << count, f"base_* × {1 << count}, of global_parameter_scale {scale}")


def _named(recipe: Recipe, file: Foreign) -> dict[str, Any] | None:
    """The model of model_name, whose own file is laid over this one's keys (src/MaxText/pyconfig.py,
    update_model_vars); None where there is none, or the name is not known."""
    name = recipe.run.get("model")
    found = (
        None
        if name in (None, "default")
        else known_model(table(KIND)["models"].get(name.lower(), name), by_letters=True)
    )
    if found is None:
        return None
    shape = whole_shape(found)
    for field, value in recipe.sections["model"].items():
        if field in shape and shape[field] != value:
            file.ledger.ignore(f"model.{field}", value, f"model_name {short(name)} says {shape[field]}, and counts")
    return shape


def _model(recipe: Recipe, keys: Settings, file: Foreign) -> None:
    """The shape, from base_* times global_parameter_scale, or the name's; the block says what its layers are."""
    model, known = recipe.sections["model"], table(KIND)
    block, gates = keys.text("decoder_block"), keys.take("mlp_activations")[1]
    tied, experts = keys.flag("logits_via_embedding"), model.get("num_experts", 1)
    scale, named = keys.whole("global_parameter_scale") or 1, _named(recipe, file)
    if named is not None or "num_layers" not in model or file.model is not None:
        model.clear()
        if recipe.run.get("model") == "default":
            recipe.run.pop("model")
        if named is not None and scale > 1 and file.model is None:
            model.update(named)
            file.ledger.took("model", named["name"], f"model_name {recipe.run.pop('model')}")
            _scale(model, scale, file)
        return
    recipe.run.pop("model", None)
    _scale(model, scale, file)
    if block is not None and block not in known["blocks"] and file.model is None:
        raise SpecError(
            f"{file.ledger.where}: decoder_block {short(block)!r} is not described by the numbers of this file; give "
            "--model PRESET or --model config.json"
        )
    model["name"] = block or "maxtext"
    for field, value in known["blocks"][block or "default"].items():
        model.took(field, value, f"decoder_block {block or 'llama2'}")
    if model["position"] == "learned":
        model["max_sequence_length"] = recipe.sections["training"].get("sequence_length", 2048)
    for field, value in known["usual"].items():
        if field not in model:
            model.assume(field, value, _DEFAULT)
    model.settle("gated_mlp", len(gates) == 2 if isinstance(gates, list) else None, "mlp_activations", True, _DEFAULT)
    model.settle("tied_embeddings", tied, "logits_via_embedding", False, _DEFAULT)
    if experts < 2:
        for field in ("num_experts", "experts_per_token", "expert_intermediate_size"):
            model.pop(field, None)


def _mesh(recipe: Recipe, keys: Settings) -> int:
    """Degrees from the axes of the mesh, inside a slice or node and between them; the degree over experts.

    -1 stands for all GPUs that are left. Experts' axis takes GPUs of its own, which are replicas to attention.
    """
    known = table(KIND)
    found: dict[str, int] = {}
    for degree, names in known["axes"].items():
        axes = [f"{where}{name}" for name in names for where in ("ici_", "dcn_")]
        values = [keys.whole(axis, least=-1) for axis in axes]
        whole = [
            known["left_axes"].get(axis, 1) if value is None else value
            for axis, value in zip(axes, values, strict=True)
        ]
        found[degree] = -1 if -1 in whole else prod(whole)
        if degree in ("tp", "cp", "pp", "experts", "single") and found[degree] < 1:
            raise SpecError(f"{keys.ledger.where}: one of {', '.join(axes)} is -1, all GPUs left; write its number")
        if degree in ("tp", "cp", "pp"):
            recipe.put(f"plan.{degree}", found[degree], f"the mesh's axes {', '.join(names)}")
    if found["single"] > 1:
        raise SpecError(f"{keys.ledger.where}: axes of {', '.join(known['axes']['single'])} are not modelled")
    data, fsdp, experts, source = found["replicated"], found["sharded"], found["experts"], "the mesh's axes"
    recipe.put("plan.zero_stage", 0 if fsdp == 1 else 3, f"{source} of fsdp")
    if fsdp > 1:
        recipe.put("run.sharded", fsdp * experts, f"{source} of fsdp and experts")
    if fsdp == 1 and data > 0:
        recipe.put("run.sharded", data * experts, f"{source} of data and experts")
    elif data > 1:
        recipe.put("run.replicated", data, f"{source} of data")
    return experts


def _batch(recipe: Recipe, keys: Settings) -> None:
    """per_device_batch_size: sequences a device, of which tensor, context and pipeline ranks take their product."""
    each, plan = keys.number("per_device_batch_size"), recipe.sections["plan"]
    pieces = keys.whole("num_pipeline_microbatches", least=-1)
    if each is None and ("base_config" in keys or "run_name" in keys):
        each = float(keys.ledger.assume("per_device_batch_size", table(KIND)["usual_batch"], _DEFAULT))
    if each is None:
        return
    pp = plan.get("pp", 1)
    of_replica = each * plan.get("tp", 1) * plan.get("cp", 1) * pp
    parts = pieces if pieces is not None and pieces > 0 else pp
    if not (of_replica / parts).is_integer() or of_replica < parts:
        raise SpecError(
            f"{keys.ledger.where}: per_device_batch_size {each:g} over tp · cp · pp and {parts} micro-batches makes "
            f"{of_replica / parts:g} sequences, no whole number"
        )
    recipe.put("plan.microbatch_size", int(of_replica) // parts, "per_device_batch_size × tp · cp · pp")
    steps = recipe.run.get("accumulation", 1)
    recipe.run["accumulation"] = steps * parts
    if pp > 1 and steps > 1:  # each of them is a pipeline of its own
        recipe.put("plan.microbatches_per_flush", parts, "gradient_accumulation_steps of whole pipelines")
    recipe.sources.setdefault("accumulation", "gradient_accumulation_steps")
