"""Megatron-LM's launch scripts: model, plan and training from the arguments of `pretrain_gpt.py`.

Argument names and defaults are those of NVIDIA/Megatron-LM (megatron/training/arguments.py), with the older names of
2021 and of Megatron-DeepSpeed.
"""

from __future__ import annotations

import re
from typing import Any

from sim.errors import SpecError
from sim.specs.importers.arguments import Arguments
from sim.specs.importers.fill import Given, cluster_of, cluster_section, replicas
from sim.specs.importers.irrelevant import MEGATRON
from sim.specs.importers.ledger import Ledger, short
from sim.specs.importers.megatron_experts import exchange, read_experts, read_latent
from sim.specs.importers.megatron_launch import gpus_of, training_command
from sim.specs.importers.megatron_model import read_shape
from sim.specs.importers.shell import read_script

_OLD = (
    "checkpoint-activations",
    "activations-checkpoint-method",
    "DDP-impl",
    "scattered-embeddings",
    "checkpoint-num-layers",
)


def is_megatron(text: str) -> bool:
    """Whether a text looks like such a script."""
    return "--num-layers" in text or "--num_layers" in text or "pretrain_gpt" in text


def read_megatron(text: str, ledger: Ledger, given: Given) -> dict[str, Any]:
    """A scenario's sections from a script's text.

    Raises
    ------
    SpecError
        No training command, experts in layers that flopcast cannot deal, or a value that breaks a rule.
    """
    script = read_script(text, ledger)
    launcher, words = training_command(script, ledger)
    arguments = Arguments(words, ledger)
    old = any(name in arguments for name in _OLD)
    plan = _plan(arguments, ledger)
    model = read_shape(arguments, plan["tp"], ledger)
    read_latent(arguments, model, ledger)
    read_experts(arguments, model, plan, ledger)
    training = _training(arguments, model, ledger)
    _chunks(plan, arguments, model["num_layers"], ledger)
    name, cluster = cluster_of(given, ledger)
    gpus = gpus_of(script, launcher, plan, given, ledger)
    unit = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    plan["dp"] = ledger.took("plan.dp", replicas(gpus, unit, ledger, "tp · pp · cp"), "GPUs over tp · pp · cp")
    if training["global_batch_size"] is None:
        each = plan["dp"] * plan["microbatch_size"]
        # Megatron-LM's own default: one micro-batch a replica (megatron/training/arguments.py, validate_args).
        why = "Megatron-LM's default, one micro-batch a replica"
        training["global_batch_size"] = ledger.assume("training.global_batch_size", each, why)
    _budget(training, arguments, ledger)
    stack = _stack(arguments, old, plan["zero_stage"], ledger)
    arguments.leave(MEGATRON)
    return {
        "model": model,
        "cluster": cluster_section(name, cluster, gpus, given, ledger),
        "plan": plan,
        "training": {key: value for key, value in training.items() if value is not None},
        "stack": stack,
    }


def _plan(arguments: Arguments, ledger: Ledger) -> dict[str, Any]:
    plan: dict[str, Any] = {}

    def degree(field: str, *names: str) -> None:
        value = arguments.whole(*names)
        if value is not None:
            plan[field] = ledger.took(f"plan.{field}", value, f"--{names[0]}")
        elif field != "cp":
            plan[field] = ledger.assume(f"plan.{field}", 1, f"Megatron-LM's default of --{names[0]}")

    degree("tp", "tensor-model-parallel-size", "model-parallel-size")
    degree("cp", "context-parallel-size")
    degree("pp", "pipeline-model-parallel-size")
    degree("microbatch_size", "micro-batch-size", "batch-size")
    if arguments.has("sequence-parallel"):
        if plan["tp"] > 1:
            plan["sequence_parallel"] = ledger.took("plan.sequence_parallel", True, "--sequence-parallel")
        else:
            ledger.ignore("--sequence-parallel", "", "without effect at a tensor-parallel degree of 1")
    zero = 1 if arguments.has("use-distributed-optimizer") else 0
    for switch in ("use-torch-fsdp2", "use-megatron-fsdp", "use-custom-fsdp"):
        zero = 3 if arguments.has(switch) else zero
    stage = arguments.whole("zero-stage", least=0)
    zero = zero if stage is None else min(stage, 3)
    if zero:
        plan["zero_stage"] = ledger.took("plan.zero_stage", zero, "the distributed optimizer")
    else:
        plan["zero_stage"] = ledger.assume("plan.zero_stage", 0, "no --use-distributed-optimizer")
    _recompute(plan, arguments, ledger)
    for switch, field in (
        ("account-for-embedding-in-pipeline-split", "embedding_as_layer"),
        ("account-for-loss-in-pipeline-split", "head_as_layer"),
    ):
        if arguments.has(switch):
            plan[field] = ledger.took(f"plan.{field}", True, f"--{switch}")
    return plan


def _recompute(plan: dict[str, Any], arguments: Arguments, ledger: Ledger) -> None:
    granularity = arguments.text("recompute-granularity")
    method = arguments.text("recompute-method")
    layers = arguments.whole("recompute-num-layers", least=0)
    modules = arguments.text("recompute-modules")
    old = arguments.text("activations-checkpoint-method")
    switch = arguments.has("checkpoint-activations")
    arguments.text("checkpoint-num-layers", "activations-checkpoint-num-layers")
    if arguments.has("recompute-activations"):
        granularity = granularity or "selective"
    if granularity is None and (switch or old):
        granularity = "full"
    if granularity is None:
        plan["recompute"] = ledger.assume("plan.recompute", "none", "no --recompute-granularity")
        return
    if granularity not in ("full", "selective"):
        raise SpecError(f"{ledger.where}: --recompute-granularity {short(granularity)!r} must be full or selective")
    plan["recompute"] = ledger.took("plan.recompute", granularity, "recomputation of activations")
    if method == "block":
        ledger.ignore(
            "--recompute-method", "block", f"all layers are recomputed in the model, not {layers or 'some'} a stage"
        )
    elif layers is not None and layers > 1 and granularity == "full":
        ledger.ignore(
            "--recompute-num-layers", layers, "one layer at a time is recomputed: more memory kept, less at once"
        )
    if modules is not None and granularity == "selective":
        ledger.ignore("--recompute-modules", modules, "selective recomputes the attention core only")


def _chunks(plan: dict[str, Any], arguments: Arguments, layers: int, ledger: Ledger) -> None:
    """Virtual stages, given as layers of each or as stages of a rank."""
    per_stage = arguments.whole("num-layers-per-virtual-pipeline-stage")
    chunks = arguments.whole("num-virtual-stages-per-pipeline-rank")
    source = "--num-virtual-stages-per-pipeline-rank"
    first, last = (arguments.whole(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    layout = arguments.text("pipeline-model-parallel-layout")
    if layout is not None:
        stages = _stages_of(layout, ledger)
        if stages % plan["pp"]:
            raise SpecError(
                f"{ledger.where}: --pipeline-model-parallel-layout {short(layout)!r} has {stages} stages, no multiple "
                f"of the {plan['pp']} pipeline ranks"
            )
        source, chunks = "--pipeline-model-parallel-layout", stages // plan["pp"]
    if layout is not None or first is not None or last is not None:
        why = "layers are dealt as evenly as they go, not as the script says"
        plan["uneven_layers"] = ledger.assume("plan.uneven_layers", True, why)
    if per_stage is not None and layout is None:
        source = "--num-layers-per-virtual-pipeline-stage"
        dealt = layers + bool(plan.get("embedding_as_layer")) + bool(plan.get("head_as_layer"))
        if dealt % (plan["pp"] * per_stage):
            raise SpecError(
                f"{ledger.where}: {dealt} layers over {plan['pp']} pipeline ranks do not make stages of {per_stage}"
            )
        chunks = dealt // (plan["pp"] * per_stage)
    if chunks is not None and chunks > 1:
        plan["num_chunks"] = ledger.took("plan.num_chunks", chunks, source)
        plan["schedule"] = ledger.took("plan.schedule", "interleaved", source)
    else:
        plan["schedule"] = ledger.assume("plan.schedule", "1f1b", "Megatron-LM's without virtual stages")


def _stages_of(layout: str, ledger: Ledger) -> int:
    """Stages of a layout such as `Et*3|(tt|)*29,m|L`: stages end at bars, `*` repeats a letter or what is bracketed."""
    repeated = re.sub(
        r"\(([^()]{1,99})\)\*(\d{1,3})", lambda found: found[1] * int(found[2]), layout.strip("\"'")[:1000]
    )
    if not re.fullmatch(r"[A-Za-z*0-9,|]+", repeated):
        raise SpecError(f"{ledger.where}: --pipeline-model-parallel-layout {short(layout)!r} cannot be read")
    return repeated.count("|") + 1


def _training(arguments: Arguments, model: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    length = arguments.whole("seq-length", "encoder-seq-length")
    if length is None:
        raise SpecError(f"{ledger.where}: --seq-length is missing or only known when the script runs; write it out")
    if "max_sequence_length" not in model:
        model["max_sequence_length"] = ledger.assume("model.max_sequence_length", length, "as long as --seq-length")
    training: dict[str, Any] = {"sequence_length": ledger.took("training.sequence_length", length, "--seq-length")}
    batch = arguments.whole("global-batch-size")
    training["global_batch_size"] = None
    if batch is not None:
        training["global_batch_size"] = ledger.took("training.global_batch_size", batch, "--global-batch-size")
    precision, source = "fp32", ""
    for switch in ("fp16", "bf16"):
        if arguments.has(switch):
            precision, source = switch, f"--{switch}"
    fp8 = arguments.text("fp8-format", "fp8-hybrid", "fp8")
    if fp8 is not None or arguments.has("fp8-e4m3"):
        precision, source = "fp8", "--fp8-format"
    if source:
        training["precision"] = ledger.took("training.precision", precision, source)
    else:
        training["precision"] = ledger.assume("training.precision", "fp32", "Megatron-LM's without --bf16 or --fp16")
    optimizer = arguments.text("optimizer")
    if optimizer == "sgd":
        training["optimizer"] = ledger.took("training.optimizer", "sgd", "--optimizer")
    elif optimizer not in (None, "adam"):
        ledger.ignore("--optimizer", optimizer, "priced as Adam")
    return training


def _budget(training: dict[str, Any], arguments: Arguments, ledger: Ledger) -> None:
    """Tokens of the whole run, from steps or samples."""
    steps, samples, tokens = (
        arguments.whole("train-iters"),
        arguments.whole("train-samples"),
        arguments.number("train-tokens"),
    )
    length = training["sequence_length"]
    if tokens:
        training["tokens"] = ledger.took("training.tokens", tokens, "--train-tokens")
    elif samples is not None:
        training["tokens"] = ledger.took("training.tokens", float(samples * length), "--train-samples × --seq-length")
    elif steps is not None:
        whole = float(steps * training["global_batch_size"] * length)
        training["tokens"] = ledger.took("training.tokens", whole, "--train-iters × batch × --seq-length")


def _stack(arguments: Arguments, old: bool, zero: int, ledger: Ledger) -> Any:
    """Which generation of the framework the arguments belong to, and what they switch in it."""
    flash = arguments.has("use-flash-attn")
    name = "megatron-2021" if old and not flash else "megatron-core"
    why = "arguments of 2021" if old else "arguments of Megatron-Core"
    if "deepspeed" in arguments:
        name, why = "megatron-deepspeed", "--deepspeed"
    ledger.assume("stack", name, f"{why}; another is chosen by --set stack=NAME")
    changes: dict[str, Any] = {}
    # Megatron-Core overlaps only where it is asked to; the preset describes a run that asks.
    for switch, field in (
        ("overlap-grad-reduce", "overlap_grad_reduce"),
        ("overlap-param-gather", "overlap_param_gather"),
    ):
        asked = arguments.has(switch)
        if name == "megatron-core":
            changes[field] = asked
            (ledger.took if asked else ledger.assume)(
                f"stack.{field}", asked, f"--{switch}" if asked else f"no --{switch}"
            )
    if arguments.has("grad-reduce-in-bf16"):
        changes["gradient_precision"] = ledger.took("stack.gradient_precision", "bf16", "--grad-reduce-in-bf16")
    if flash and name != "megatron-core":
        changes["attention"] = ledger.took("stack.attention", "flash", "--use-flash-attn")
    changes |= exchange(arguments, ledger)
    return {"preset": name, **changes} if changes else name
