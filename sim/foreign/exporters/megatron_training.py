"""Training in Megatron-LM's options: batch, precision, optimizer, tokens, and how experts drop them."""

from __future__ import annotations

from sim.foreign.exporters.account import exporter_table
from sim.foreign.exporters.megatron_model import KIND
from sim.foreign.exporters.writing import Options
from sim.specs.training import TrainingSpec


def say_training(options: Options) -> None:
    """Options of training; what Megatron-LM cannot do is refused."""
    scenario = options.account.scenario
    training = scenario.training
    options.group("Training")
    options.say("micro-batch-size", scenario.plan.microbatch_size, field="plan.microbatch_size")
    options.say("global-batch-size", training.global_batch_size, field="training.global_batch_size")
    options.say("seq-length", training.sequence_length, field="training.sequence_length")
    _budget(options, training)
    _precision(options, training)
    _optimizer(options, training)
    if training.adapter_rank and options.account.kind != KIND:
        options.account.leave("training.adapter_rank", "an object, which an override does not make; peft of the recipe")
    elif training.adapter_rank:
        why = "pretrain_gpt.py trains all weights"
        options.account.refuse("training.adapter_rank", why, "--set training.adapter_rank=0, or Megatron-Bridge's peft")
    if training.expert_capacity_factor is not None and scenario.model.num_experts:
        factor = training.expert_capacity_factor
        options.say("moe-expert-capacity-factor", factor, field="training.expert_capacity_factor")
        options.tell("training.pad_to_capacity", "moe-pad-expert-input-to-capacity")


def _budget(options: Options, training: TrainingSpec) -> None:
    """Steps where the tokens make whole ones, else samples."""
    account, tokens = options.account, training.tokens
    if tokens is None:
        account.ask("train-iters or train-samples", "the scenario has no training.tokens")
    elif tokens % training.tokens_per_step == 0:
        options.say("train-iters", int(tokens // training.tokens_per_step), field="training.tokens")
    else:
        samples = max(1, round(tokens / training.sequence_length))
        options.say("train-samples", samples, field="training.tokens")
        if samples * training.sequence_length != tokens:
            account.decide("training.tokens", f"{samples * training.sequence_length:,}: whole sequences")


def _precision(options: Options, training: TrainingSpec) -> None:
    account, known = options.account, exporter_table(KIND)["precisions"]
    if training.precision not in known:
        account.refuse("training.precision", f"it has {', '.join(known)}", "--set training.precision=nvfp4, or mxfp8")
        return
    for name, value in known[training.precision].items():
        options.say(name, *([] if value is True else [value]), field="training.precision")
    if training.precision == "fp8":
        _recipe(options, training)
    if training.high_precision_layers:
        end = training.high_precision_layers // 2
        options.say("first-last-layers-bf16", field="training.high_precision_layers")
        for where, number in (("start", training.high_precision_layers - end), ("end", end)):
            options.say(f"num-layers-at-{where}-in-bf16", number, field="training.high_precision_layers")
    _gradients(options, training)


def _recipe(options: Options, training: TrainingSpec) -> None:
    """Scales of fp8: its default, delayed ones, go neither with layers in 16 bits nor with outputs thrown away."""
    discarded = {"moe_act", "layernorm"} & {*options.account.scenario.plan.recompute_modules}
    if training.high_precision_layers or discarded:
        options.say("fp8-recipe", "tensorwise", field="training.precision")
    else:
        options.account.decide("training.precision", "delayed scales, its default fp8 recipe")


def _gradients(options: Options, training: TrainingSpec) -> None:
    """Say the precision of summed gradients. Its default is fp32 beside bf16, and fp16 beside fp16."""
    account, kept = options.account, options.account.scenario.stack.gradient_precision
    usual = {"fp32": "fp32", "fp16": "fp16"}.get(training.precision, "fp32")
    if kept == "fp32" and usual == "fp16":
        options.say("accumulate-allreduce-grads-in-fp32", field="stack.gradient_precision")
    elif kept == "bf16" and training.precision not in ("fp32", "fp16"):
        options.say("grad-reduce-in-bf16", field="stack.gradient_precision")
    elif kept != usual:
        account.leave("stack.gradient_precision", f"{usual} with training.precision {training.precision}")


_STATES = ("moment_precision", "second_moment_precision", "master_precision")


def _optimizer(options: Options, training: TrainingSpec) -> None:
    account, plan = options.account, options.account.scenario.plan
    account.cover(*(f"training.{each}" for each in ("optimizer", *_STATES)))
    name = training.optimizer
    if name == "adafactor":
        account.refuse("training.optimizer", "it has adam, sgd and muon", "--set training.optimizer=adam")
        return
    if name == "muon":
        options.say("optimizer", "dist_muon" if plan.zero_stage else "muon", field="training.optimizer")
        options.say("ckpt-format", "torch")  # the only one that its Muon can save
    else:
        options.say("optimizer", name, field="training.optimizer")
    less = [each for each in _STATES if getattr(training, each) not in ("fp32", None)]
    if less and (name != "adam" or not plan.zero_stage or not plan.reshard_after_forward):
        why = "only Adam under the distributed optimizer (ZeRO) keeps states in fewer bits"
        for each in less:
            account.refuse(f"training.{each}", why, f"--set training.{each}=fp32")
        return
    if training.master_precision == "none":
        why = "its optimizer keeps masters beside 16-bit weights"
        account.refuse("training.master_precision", why, "--set training.master_precision=fp16")
    if training.moment_precision == "int8":
        why = "its moments are in fp32, bf16, fp16 or fp8"
        account.refuse("training.moment_precision", why, "--set training.moment_precision=fp8")
    if less or plan.optimizer_offload:
        options.say("use-precision-aware-optimizer")
    first = training.moment_precision
    if {"moment_precision", "second_moment_precision"} & {*less}:
        options.say("exp-avg-dtype", first, field="training.moment_precision")
        second = training.second_moment_precision or first
        options.say("exp-avg-sq-dtype", second, field="training.second_moment_precision")
    if "master_precision" in less:
        options.say("main-params-dtype", training.master_precision, field="training.master_precision")
