"""The training job of Megatron-LM's arguments: batch, precision, optimizer, routing, budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import replicas, take_optimizer
from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.megatron.deepspeed_file import half_precision, take_capacity
from sim.foreign.importers.megatron.model import KIND
from sim.foreign.importers.megatron.plan import take_sharding_group


def read_training(
    arguments: Arguments, model: Section, config: Mapping[str, Any] | None = None, deepspeed_experts: bool = False
) -> Section:
    """Batch, precision and optimizer.

    config : of DeepSpeed, where its JSON could be read.
    deepspeed_experts : whether the experts are DeepSpeed's, which take no more than their buffers hold.
    """
    training = Section("training", arguments.ledger)
    length = arguments.needed("seq-length", "encoder-seq-length")
    if "max_sequence_length" not in model:
        model.assume("max_sequence_length", length, "as long as --seq-length")
    training.took("sequence_length", length, "--seq-length")
    training["global_batch_size"] = None
    batch = arguments.whole("global-batch-size")
    if batch is not None:
        training.took("global_batch_size", batch, "--global-batch-size")
    halves = [switch for switch in ("fp16", "bf16") if arguments.has(switch)]
    if len(halves) > 1:
        raise SpecError(f"{arguments.ledger.where}: --fp16 and --bf16 exclude each other; keep one")
    precision, source = (halves[0], f"--{halves[0]}") if halves else (None, "")
    precision, source = _fewer_bits(arguments) or (precision, source)
    if precision is None and config:
        precision, source = half_precision(arguments, config), "the DeepSpeed file"
    training.settle("precision", precision, source, "fp32", "Megatron-LM's without --bf16 or --fp16")
    _high_precision_layers(training, arguments)
    take_optimizer(training, arguments.text("optimizer"), "--optimizer")
    _precision_of_states(training, arguments)
    if deepspeed_experts and model.get("num_experts"):
        take_capacity(training, arguments)
    else:
        _capacity(training, arguments)
    return training


def _fewer_bits(arguments: Arguments) -> tuple[str, str] | None:
    """(precision, what says so) of multiplies in 8 or 4 bits; None where there are none.

    A recipe counts only beside its format. fp4 goes before fp8, as in Megatron-LM, which takes not both.
    """
    found = None
    for bits, others in (("fp8", ("fp8-hybrid", "fp8", "fp8-e4m3")), ("fp4", ())):
        known, given = table(KIND)[f"{bits}_recipes"], arguments.text(f"{bits}-format", *others)
        recipe = arguments.text(f"{bits}-recipe")
        if given is None and recipe is not None:
            arguments.ledger.ignore(f"--{bits}-recipe", recipe, f"without effect without --{bits}-format")
        if given in (None, "None", "false"):
            continue
        if recipe is not None and recipe not in known:
            why = f"a recipe of one's own; priced as {next(iter(known.values()))}"
            arguments.ledger.ignore(f"--{bits}-recipe", recipe, why, matters=True)
        source = f"--{bits}-format" + f", --{bits}-recipe {recipe}" * (recipe in known)
        found = known.get(recipe, next(iter(known.values()))), source
    return found


def _high_precision_layers(training: Section, arguments: Arguments) -> None:
    """The first and the last layers in 16 bits, one each unless told otherwise."""
    switch = "first-last-layers-bf16"
    asked = arguments.has(switch)
    ends = {end: arguments.whole(f"num-layers-at-{end}-in-bf16", least=0) for end in ("start", "end")}
    less = training["precision"] not in ("fp32", "fp16", "bf16")
    if asked and less:
        number = sum(1 if layers is None else layers for layers in ends.values())
        training.took("high_precision_layers", number, f"--{switch}")
        return
    if asked:
        training.ledger.ignore(f"--{switch}", "", "without effect without 8 or 4 bits")
    for end, layers in ends.items():
        if layers is not None:
            why = "without effect without 8 or 4 bits" if asked else f"without effect without --{switch}"
            training.ledger.ignore(f"--num-layers-at-{end}-in-bf16", layers, why)


def _capacity(training: Section, arguments: Arguments) -> None:
    """Tokens that an expert takes at most."""
    factor = arguments.number("moe-expert-capacity-factor")
    if factor is not None:
        training.took("expert_capacity_factor", factor, "--moe-expert-capacity-factor")
    if arguments.has("moe-pad-expert-input-to-capacity") and factor is not None:
        training.took("pad_to_capacity", True, "--moe-pad-expert-input-to-capacity")


def _precision_of_states(training: Section, arguments: Arguments) -> None:
    """Moments and masters in fewer bits, which only --use-precision-aware-optimizer keeps so."""
    aware, known = arguments.has("use-precision-aware-optimizer"), ("fp32", "bf16", "fp16", "fp8")
    first, second = arguments.text("exp-avg-dtype"), arguments.text("exp-avg-sq-dtype")
    masters = arguments.text("main-params-dtype")
    named = {"--exp-avg-dtype": first, "--exp-avg-sq-dtype": second, "--main-params-dtype": masters}
    for switch, said in named.items():
        if said is not None and not aware:
            training.ledger.ignore(switch, said, "without effect without --use-precision-aware-optimizer")
        elif said is not None and said not in known:
            rule = f"must be one of {', '.join(known)}"
            raise SpecError(f"{arguments.ledger.where}: {switch} {short(said)!r} {rule}")
    if aware:
        if (first or "fp32") != "fp32":
            training.took("moment_precision", first, "--exp-avg-dtype")
        if (second or "fp32") != (first or "fp32"):
            training.took("second_moment_precision", second or "fp32", "--exp-avg-sq-dtype")
        if masters == "fp16":
            training.took("master_precision", "fp16", "--main-params-dtype")


def take_replicas(plan: Section, training: Section, arguments: Arguments, gpus: int) -> None:
    """Take what follows from the number of GPUs: replicas, groups that shard, and where they are not said the batch
    (megatron/training/arguments.py, validate_args) and the tokens of the run."""
    unit = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    plan.took("dp", replicas(gpus, unit, arguments.ledger, "tp · pp · cp"), "GPUs over tp · pp · cp")
    take_sharding_group(plan, arguments)
    if training["global_batch_size"] is None:
        why = "Megatron-LM's default, one micro-batch a replica"
        training.assume("global_batch_size", plan["dp"] * plan["microbatch_size"], why)
    _take_budget(training, arguments)


def _take_budget(training: Section, arguments: Arguments) -> None:
    """Tokens of the whole run, from steps or samples."""
    steps, samples = arguments.whole("train-iters"), arguments.whole("train-samples")
    tokens, length = arguments.number("train-tokens"), training["sequence_length"]
    if steps is not None and samples is not None:
        raise SpecError(f"{arguments.ledger.where}: --train-iters and --train-samples exclude each other; keep one")
    if tokens:
        training.took("tokens", tokens, "--train-tokens")
    elif samples is not None:
        training.took("tokens", float(samples * length), "--train-samples × --seq-length")
    elif steps is not None:
        whole = float(steps * training["global_batch_size"] * length)
        training.took("tokens", whole, "--train-iters × batch × --seq-length")
