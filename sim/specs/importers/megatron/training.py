"""The training job of Megatron-LM's arguments: batch, precision, optimizer, routing, budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.specs.importers.defaults import take_optimizer
from sim.specs.importers.keys import Arguments
from sim.specs.importers.ledger import Section, short
from sim.specs.importers.megatron.deepspeed_file import take_capacity, take_precision


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
    precision, source = None, ""
    for switch in ("fp16", "bf16"):
        if arguments.has(switch):
            precision, source = switch, f"--{switch}"
    fp8 = arguments.text("fp8-format", "fp8-hybrid", "fp8")
    if fp8 is not None or arguments.has("fp8-e4m3"):
        precision, source = "fp8", "--fp8-format"
    if precision is None and take_precision(arguments, config):
        precision, source = take_precision(arguments, config), "the DeepSpeed file"
    training.settle("precision", precision, source, "fp32", "Megatron-LM's without --bf16 or --fp16")
    take_optimizer(training, arguments.text("optimizer"), "--optimizer")
    _precision_of_states(training, arguments)
    if deepspeed_experts and model.get("num_experts"):
        take_capacity(training, arguments)
    else:
        _capacity(training, arguments)
    return training


def _capacity(training: Section, arguments: Arguments) -> None:
    """Tokens that an expert takes at most."""
    factor = arguments.number("moe-expert-capacity-factor")
    if factor is not None:
        training.took("expert_capacity_factor", factor, "--moe-expert-capacity-factor")
    if arguments.has("moe-pad-expert-input-to-capacity") and factor is not None:
        training.took("pad_to_capacity", True, "--moe-pad-expert-input-to-capacity")


def _precision_of_states(training: Section, arguments: Arguments) -> None:
    """Moments and masters in fewer bits, which only --use-precision-aware-optimizer keeps so."""
    aware, width = arguments.has("use-precision-aware-optimizer"), {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    first, second = arguments.text("exp-avg-dtype"), arguments.text("exp-avg-sq-dtype")
    masters, gradients = arguments.text("main-params-dtype"), arguments.text("main-grads-dtype")
    named = {"--exp-avg-dtype": first, "--exp-avg-sq-dtype": second, "--main-params-dtype": masters}
    for switch, said in named.items():
        if said is not None and not aware:
            training.ledger.ignore(switch, said, "without effect without --use-precision-aware-optimizer")
        elif said is not None and said not in width:
            rule = f"must be one of {', '.join(width)}"
            raise SpecError(f"{arguments.ledger.where}: {switch} {short(said)!r} {rule}")
    if aware:
        widest = max((first or "fp32", second or "fp32"), key=lambda each: width[each])
        if widest != "fp32":
            training.took("moment_precision", widest, "--exp-avg-dtype, --exp-avg-sq-dtype: the wider of the two")
        if masters == "fp16":
            training.took("master_precision", "fp16", "--main-params-dtype")
    if gradients is not None and aware:
        training.ledger.ignore(
            "--main-grads-dtype", gradients, "gradients are summed in stack.gradient_precision", matters=True
        )


def take_budget(training: Section, arguments: Arguments) -> None:
    """Tokens of the whole run, from steps or samples."""
    steps, samples = arguments.whole("train-iters"), arguments.whole("train-samples")
    tokens, length = arguments.number("train-tokens"), training["sequence_length"]
    if tokens:
        training.took("tokens", tokens, "--train-tokens")
    elif samples is not None:
        training.took("tokens", float(samples * length), "--train-samples × --seq-length")
    elif steps is not None:
        whole = float(steps * training["global_batch_size"] * length)
        training.took("tokens", whole, "--train-iters × batch × --seq-length")
