"""Steps of MaxText's and verl's files: the model by numbers or name, the mesh by its axes, batches by their parts."""

from __future__ import annotations

from math import prod
from typing import Any

from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.foreign.importers.recipes.recipe import whole_shape
from sim.foreign.importers.recipes.rows import RecipeRows

_MAXTEXT = "maxtext"
_DEFAULT = "MaxText's default: configs/base.yml"
_ACTOR = "actor_rollout_ref.actor."


def _scale(model: Section, scale: int, rows: RecipeRows) -> None:
    """Multiply the sizes as global_parameter_scale says: of its doublings in turn one is of heads and MLP, one of the
    hidden size, one of layers (src/maxtext/configs/types.py, get_individual_scales). Raises SpecError: no power of two.
    """
    if scale & (scale - 1):
        raise rows.refused(f"global_parameter_scale {scale} must be a power of two")
    whole, rest = divmod(scale.bit_length() - 1, 3)
    heads, hidden = whole + (rest > 0), whole + (rest > 1)
    doublings = {"num_heads": heads, "num_kv_heads": heads, "intermediate_size": heads, "hidden_size": hidden}
    for name, count in {**doublings, "num_layers": whole}.items():
        if name in model and scale > 1:
            model.took(name, model[name] << count, f"base_* × {1 << count}, of global_parameter_scale {scale}")


def _named(rows: RecipeRows) -> dict[str, Any] | None:
    """The model of model_name, whose own file is laid over this one's keys (src/MaxText/pyconfig.py,
    update_model_vars); None where there is none, or the name is not known."""
    name = rows.recipe.run.get("model", "default")
    known = table(_MAXTEXT)["models"].get(name.lower(), name)
    found = None if name == "default" else known_model(known, by_letters=True)
    if found is None:
        return None
    shape = whole_shape(found)
    for field, value in rows.recipe.sections["model"].items():
        if field in shape and shape[field] != value:
            why = f"model_name {short(name)} says {shape[field]}, and counts"
            rows.file.ledger.ignore(f"model.{field}", value, why)
    return shape


def maxtext_model(rows: RecipeRows) -> None:
    """The shape, from base_* times global_parameter_scale, or the name's; the block says what its layers are."""
    recipe, keys, file, known = rows.recipe, rows.keys, rows.file, table(_MAXTEXT)
    model, block = recipe.sections["model"], keys.text("decoder_block")
    gates, tied = keys.take("mlp_activations")[1], keys.flag("logits_via_embedding")
    scale, named = keys.whole("global_parameter_scale") or 1, _named(rows)
    if named is not None or "num_layers" not in model or file.model is not None:
        model.clear()
        if recipe.run.get("model") == "default":
            recipe.run.pop("model")
        if named is not None and scale > 1 and file.model is None:
            model.update(named)
            file.ledger.took("model", named["name"], f"model_name {recipe.run.pop('model')}")
            _scale(model, scale, rows)
        return
    recipe.run.pop("model", None)
    _scale(model, scale, rows)
    if block is not None and block not in known["blocks"]:
        why = "is not described by the numbers of this file; give --model PRESET or --model config.json"
        raise rows.refused(f"decoder_block {short(block)!r} {why}")
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
    if model.get("num_experts", 1) < 2:
        for field in ("num_experts", "experts_per_token", "expert_intermediate_size"):
            model.pop(field, None)


def mesh(rows: RecipeRows) -> None:
    """Degrees from the axes of the mesh, inside a slice or node and between them. -1 stands for all GPUs that are left.
    Experts' axis takes GPUs of its own, which are replicas to attention."""
    known, keys, recipe, found = table(_MAXTEXT), rows.keys, rows.recipe, dict[str, int]()
    for degree, names in known["axes"].items():
        axes = [f"{where}{name}" for name in names for where in ("ici_", "dcn_")]
        values = [(keys.whole(axis, least=-1), known["left_axes"].get(axis, 1)) for axis in axes]
        whole = [usual if value is None else value for value, usual in values]
        found[degree] = -1 if -1 in whole else prod(whole)
        if degree in ("tp", "cp", "pp", "experts", "single") and found[degree] < 1:
            raise rows.refused(f"one of {', '.join(axes)} is -1, all GPUs left; write its number")
        if degree in ("tp", "cp", "pp"):
            recipe.put(f"plan.{degree}", found[degree], f"the mesh's axes {', '.join(names)}")
    if found["single"] > 1:
        raise rows.refused(f"axes of {', '.join(known['axes']['single'])} are not modelled")
    data, fsdp, experts, source = found["replicated"], found["sharded"], found["experts"], "the mesh's axes"
    recipe.put("plan.zero_stage", 0 if fsdp == 1 else 3, f"{source} of fsdp")
    if fsdp > 1:
        recipe.put("run.sharded", fsdp * experts, f"{source} of fsdp and experts")
    if fsdp == 1 and data > 0:
        recipe.put("run.sharded", data * experts, f"{source} of data and experts")
    elif data > 1:
        recipe.put("run.replicated", data, f"{source} of data")
    rows.known["experts"] = experts


def ends_of_pipeline(rows: RecipeRows) -> None:
    """Layers of the first and the last pipeline stage, where they differ from those between."""
    name, plan = f"{_ACTOR}megatron.override_transformer_config.num_layers_in_", rows.plan
    first, last = (rows.keys.whole(f"{name}{end}_pipeline_stage") for end in ("first", "last"))
    model = rows.file.model
    found = model if model is not None else known_model(rows.recipe.run.get("model", ""))
    stages = plan.get("pp", 1) * plan.get("num_chunks", 1)
    if (first, last) == (None, None) or found is None or stages < 3:
        return
    inner = stages - (first is not None) - (last is not None)
    left = whole_shape(found)["num_layers"] - (first or 0) - (last or 0)
    if left % inner:
        raise rows.refused(f"{left} layers cannot be dealt to {inner} stages; see {name}first_pipeline_stage")
    layers = [left // inner if end is None else end for end in (first, *[None] * (stages - 2), last)]
    plan.took("pipeline_layout", layout_of(layers), f"{name}first_pipeline_stage and last")
