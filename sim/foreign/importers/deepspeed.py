"""DeepSpeed's JSON: batch, ZeRO, precision. The model stands elsewhere, as in a `config.json` in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.foreign.importers.defaults import Foreign, Machine, assume_sequence, replicas, take_optimizer, told_gpus
from sim.foreign.importers.huggingface.config import given_model
from sim.foreign.importers.huggingface.hub_models import whole_shape
from sim.foreign.importers.keys import Keys, flat, reason_to_ignore
from sim.foreign.importers.recipes.recipe import usual_batch
from sim.foreign.importers.recipes.rows import Recipe

_TELLTALES = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")


def is_deepspeed(data: Any) -> bool:
    """Whether data in JSON are such a configuration."""
    return isinstance(data, Mapping) and any(name in data for name in _TELLTALES)


def read_deepspeed(file: Foreign) -> dict[str, Any]:
    """A scenario's sections. Raises SpecError: no model, batch sizes that contradict each other, or a value that breaks
    a rule."""
    ledger, model = file.ledger, file.model
    neighbour = None if file.folder is None else file.folder / "config.json"
    if model is None and neighbour is not None and neighbour.is_file():
        model = given_model(str(neighbour), ledger)
    if model is None:
        raise ledger.error(
            "a DeepSpeed file does not describe the model; give --model PRESET or --model "
            "config.json, or put the model's config.json beside it"
        )
    keys = _keys(file)
    shape = whole_shape(model)
    machine = Machine.of(file)
    zero = keys.below("zero_optimization")
    whole = Recipe(keys, file, {"usual_batch": usual_batch})
    plan, training = whole.plan, whole.training
    rows = whole.beside(zero, "deepspeed", source="zero_optimization")
    rows.read("zero")
    assume_sequence(training, shape)
    whole.read("cut")
    whole.read("batch")
    cut, made = plan.get("tp", 1) * plan.get("cp", 1), whole.known["made"]
    of_batch = None if made is None else made * cut, "train_batch_size over micro-batch and accumulation"
    gpus = told_gpus(file, of_batch) or machine.fewest_gpus(shape, cut)
    whole.known["copies"] = max(1, gpus // cut)
    whole.read("share")
    why = "GPUs over those that share a sequence" if cut > 1 else "every GPU is a replica"
    plan.took("dp", replicas(gpus, cut, ledger, "autotp_size"), f"{why}; --set plan.tp=N and the like change that")
    rows.read("groups")
    if cut == 1:
        machine.deal_experts(plan, shape, gpus)
    plan.assume("recompute", "full", "the file does not say whether activations are kept")
    whole.read("stack")
    rows.read("overlaps")
    whole.read("precision")
    take_optimizer(training, keys.text("optimizer.type"), "optimizer.type")
    zero.leave()
    keys.leave()
    return {**whole.sections, "model": model, "cluster": machine.section(gpus)}


_SECTIONS = ("zero_optimization", "optimizer", "tensor_parallel", "fp16", "bf16", "torch_autocast", "data_types")


def _keys(file: Foreign) -> Keys:
    """The file's keys, with dots; "auto" leaves a value to the trainer, as if it were not there."""
    said: dict[str, Any] = {}
    for name, value in flat(file.data):
        if value == "auto":
            matters = "." not in name or reason_to_ignore("deepspeed", name)[1]
            file.ledger.ignore(name, value, "left to the trainer, which is not in the file", matters)
        elif value != {}:
            said[name] = value
    keys = Keys(said, file.ledger, "deepspeed")
    wrong = next((name for name in _SECTIONS if name in keys), None)
    if wrong is not None:
        raise keys.wrong(wrong, keys.raw(wrong), "must hold keys of its own")
    return keys
