"""torchtitan: a job config in TOML, of the version that the importer reads."""

from __future__ import annotations

from functools import cache
from typing import Any

from sim.foreign.exporters.account import Account, exporter_table
from sim.foreign.exporters.launch import launcher_lines
from sim.foreign.exporters.toml import toml_text
from sim.foreign.exporters.torchtitan_plan import say_plan
from sim.foreign.importers.keys import table
from sim.specs.model import ModelSpec
from sim.specs.presets import load_preset

KIND = "torchtitan"


def export_torchtitan(account: Account) -> tuple[str, dict[str, Any]]:
    """The TOML, and what stands in it.

    Raises
    ------
    SpecError
        torchtitan cannot run the plan.
    """
    scenario = account.scenario
    data: dict[str, dict[str, Any]] = {
        name: {} for name in ("model", "training", "optimizer", "parallelism", "activation_checkpoint", "compile")
    }
    _model(account, data)
    say_plan(account, data)
    _training(account, data)
    _precision(account, data)
    _stack(account, data)
    account.settle()
    file = "$CONFIG_FILE"
    command = launcher_lines(scenario, "-m torchtitan.train", [f'--job.config_file "{file}"'])
    comment = [f"# {line}" for line in command]
    return "\n".join([*comment, "", toml_text(data)]), {name: part for name, part in data.items() if part}


def flavor_of(model: ModelSpec) -> tuple[str, str] | None:
    """(model.name, model.flavor) of the model of this shape, or None where torchtitan knows none."""
    for (name, flavor), known in _flavors().items():
        same = known.replace(name=model.name, max_sequence_length=model.max_sequence_length, num_mtp_layers=0)
        if same == model.replace(num_mtp_layers=0):
            return name, flavor
    return None


@cache
def _flavors() -> dict[tuple[str, str], ModelSpec]:
    """Models by model.name and model.flavor, as the importer knows them; of several names of one the first counts."""
    found = {}
    for name, flavors in table(KIND)["flavors"].items():
        for flavor, what in flavors.items():
            if flavor != "all":
                shape = load_preset("models", what) if isinstance(what, str) else {**flavors.get("all", {}), **what}
                found[name, flavor] = ModelSpec.read({"name": flavor, **shape}, "model")
    return found


def _model(account: Account, data: dict[str, dict[str, Any]]) -> None:
    model = account.scenario.model
    account.cover(*(f"model.{field}" for field in ModelSpec.model_fields))
    found = flavor_of(model)
    if found is not None:
        _put(account, data, "model", "name", found[0], "model.name")
        _put(account, data, "model", "flavor", found[1], "model.name")
    else:
        account.leave("model.name", "none of the flavours that are known here has this shape; register one")
        account.ask("model.name, model.flavor", "the flavour that you register; without them a tiny llama3 is trained")
    if model.num_mtp_layers:
        account.refuse("model.num_mtp_layers", "it has no multi-token prediction", "--set model.num_mtp_layers=0")


def _training(account: Account, data: dict[str, dict[str, Any]]) -> None:
    scenario = account.scenario
    training, plan = scenario.training, scenario.plan
    # In a pipeline the local batch is cut into micro-batches; without one it is what goes through at once.
    local = training.global_batch_size // plan.dp if plan.pp > 1 else plan.microbatch_size
    _put(account, data, "training", "local_batch_size", local, "plan.microbatch_size")
    if plan.pp > 1:
        _put(
            account,
            data,
            "parallelism",
            "pipeline_parallel_microbatch_size",
            plan.microbatch_size,
            "plan.microbatch_size",
        )
    batch = training.global_batch_size
    _put(account, data, "training", "global_batch_size", batch, "training.global_batch_size")
    _put(account, data, "training", "seq_len", training.sequence_length, "training.sequence_length")
    if training.sequence_length % (plan.tp * plan.cp * (2 if plan.cp > 1 else 1)):
        why = f"training.seq_len is no multiple of tp · cp{' · 2' if plan.cp > 1 else ''}"
        account.refuse("training.sequence_length", why, "a sequence length that is")
    account.cover("training.tokens")
    if training.tokens is None:
        account.ask("training.steps", "the scenario has no training.tokens")
    else:
        steps = max(1, round(training.tokens / training.tokens_per_step))
        _put(account, data, "training", "steps", steps, "training.tokens")
        if steps * training.tokens_per_step != training.tokens:
            account.decide("training.tokens", f"{steps * training.tokens_per_step:,}: whole steps")
    if training.optimizer != "adam":
        account.refuse("training.optimizer", "it has Adam and AdamW", "--set training.optimizer=adam")
    _put(account, data, "optimizer", "name", "AdamW", "training.optimizer")
    for field in ("moment_precision", "second_moment_precision", "master_precision"):
        account.cover(f"training.{field}")
        if getattr(training, field) not in ("fp32", None):
            why = "its optimizer keeps weights and moments in fp32"
            account.refuse(f"training.{field}", why, f"--set training.{field}=fp32")
    if training.adapter_rank:
        account.refuse("training.adapter_rank", "it trains all weights", "--set training.adapter_rank=0")


def _precision(account: Account, data: dict[str, dict[str, Any]]) -> None:
    scenario = account.scenario
    training, plan, known = scenario.training, scenario.plan, exporter_table(KIND)["precisions"]
    account.cover("training.precision")
    if training.precision not in known:
        nearest = "bf16" if training.precision == "fp16" else "mxfp8"
        account.refuse("training.precision", f"it has {', '.join(known)}", f"--set training.precision={nearest}")
        return
    param, converters = known[training.precision]
    _put(account, data, "training", "mixed_precision_param", param, "training.precision")
    if converters:
        _put(account, data, "model", "converters", converters, "training.precision")
    if training.high_precision_layers:
        account.leave("training.high_precision_layers", "quantize.*.filter_fqns can name the layers' modules")
    if training.precision == "fp8" and scenario.stack.fp8_gathers and plan.zero_stage == 3:
        data["quantize.linear.float8"] = {}
        for key in ("enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp"):
            _put(account, data, "quantize.linear.float8", key, True, "stack.fp8_gathers")


def _stack(account: Account, data: dict[str, dict[str, Any]]) -> None:
    scenario = account.scenario
    stack, plan = scenario.stack, scenario.plan
    _put(account, data, "compile", "enable", stack.compiled, "stack.compiled")
    account.cover("stack.overlap_context", "stack.vocab_parallel_loss", "stack.fp8_gathers")
    account.cover("stack.async_tensor_parallel")
    if stack.async_tensor_parallel and plan.tp > 1:
        if not stack.compiled:
            why = "its compiler makes the pieces of asynchronous tensor parallelism"
            account.refuse("stack.async_tensor_parallel", why, "--set stack.compiled=true")
        _put(account, data, "parallelism", "enable_async_tensor_parallel", True, "stack.async_tensor_parallel")
    if plan.cp > 1:
        method = "alltoall" if stack.overlap_context else "allgather"
        _put(account, data, "parallelism", "context_parallel_rotate_method", method, "stack.overlap_context")
    if plan.tp > 1 and not stack.vocab_parallel_loss:
        _put(account, data, "parallelism", "disable_loss_parallel", True, "stack.vocab_parallel_loss")


def _put(account: Account, data: dict[str, dict[str, Any]], section: str, key: str, value: Any, *fields: str) -> None:
    data[section][key] = value
    account.say(f"{section}.{key}", value, *fields)
