"""The stack of Megatron-LM's arguments: which generation they belong to, and what they switch in it."""

from __future__ import annotations

from collections.abc import Mapping

from sim.errors import SpecError
from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.megatron.layers import KIND, take_switches
from sim.specs.plan import GRAPH_MODULES


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
    ledger = arguments.ledger
    flash = arguments.has("use-flash-attn")
    name, version, why = "megatron-lm", "latest", "arguments of Megatron-Core"
    if old and not flash:
        version, why = "2021", "arguments of 2021"
    if "deepspeed" in arguments:
        name, version, why = "megatron-deepspeed", "latest", "--deepspeed"
    if framework is not None:
        (name, version), why = framework, "the file's kind"
    stack = Section("stack", ledger)
    stack.assume("framework", name, f"{why}; another by --set stack.framework=NAME")
    stack.assume("version", version, f"{why}; another by --set stack.version=DATE")
    # Megatron-Core overlaps only where it is asked to; the preset describes a run that asks.
    for field in ("overlap_grad_reduce", "overlap_param_gather"):
        switch = field.replace("_", "-")
        asked = arguments.has(switch)
        if framework is not None and asked:
            stack.took(field, True, f"--{switch}")
        elif (name, version) == ("megatron-lm", "latest"):
            stack.settle(field, asked or None, f"--{switch}", False, f"no --{switch}")
    kept = arguments.text("main-grads-dtype")  # bf16 sums in it too (megatron/training/arguments.py, validate_args)
    if arguments.has("grad-reduce-in-bf16") or kept == "bf16":
        source = "--main-grads-dtype" if kept == "bf16" else "--grad-reduce-in-bf16"
        if kept == "bf16" and arguments.has("accumulate-allreduce-grads-in-fp32"):
            both = "--main-grads-dtype bf16 and --accumulate-allreduce-grads-in-fp32"
            raise SpecError(f"{ledger.where}: {both} exclude each other; keep one")
        stack.took("gradient_precision", "bf16", source)
    _padding(arguments, stack)
    _attention(arguments, stack, flash)
    take_switches(arguments, stack, "stack_switches")
    if run is not None:
        _of_whole_run(arguments, stack, run)
    _context(arguments, stack)
    _dispatch(arguments, stack)
    _graphs(arguments, stack)
    return stack


def _padding(arguments: Arguments, stack: Section) -> None:
    """How the vocabulary is padded, where it is not as the framework does unasked."""
    for name in ("padded-vocab-size", "pad-vocab-size-to", "extra-vocab-size"):
        if name in arguments:
            stack.took("vocab_multiple", 1, f"--{name}")
            return
    multiple = arguments.whole("make-vocab-size-divisible-by")
    if multiple is not None and multiple % 128:
        stack.took("vocab_multiple", multiple, "--make-vocab-size-divisible-by")


def _attention(arguments: Arguments, stack: Section, flash: bool) -> None:
    """Which kernel attention runs in; flash where the GPU has one, unless told otherwise."""
    said, known = arguments.text("attention-backend"), table(KIND)["attention_backends"]
    said = None if said is None else said.removeprefix("AttnBackend.")
    if said is not None and said not in known:
        rule = f"must be one of {', '.join(known)}"
        raise SpecError(f"{arguments.ledger.where}: --attention-backend {short(said)!r} {rule}")
    if said is not None and known[said] is not None:
        stack.took("attention", known[said], f"--attention-backend {said}")
    elif flash:
        stack.took("attention", "flash", "--use-flash-attn")
    elif said is not None:
        arguments.ledger.took("stack.attention", "what the GPU has", f"--attention-backend {said}")


def _context(arguments: Arguments, stack: Section) -> None:
    """How context-parallel ranks exchange what attention needs; of a list, layer by layer, where all say the same."""
    if arguments.raw("ds-sequence-parallel-size") not in (None, ["1"]):
        stack.took("context_by_heads", True, "--ds-sequence-parallel-size")
    said, known = arguments.words("cp-comm-type"), table(KIND)["context_exchanges"]
    kinds = {word.lower() for word in said}
    if len(kinds) > 1 or not kinds <= known.keys():
        stack.ledger.ignore("--cp-comm-type", " ".join(said), "priced as the stack does it in all layers", matters=True)
    elif kinds:
        for field, value in known[kinds.pop()].items():
            stack.took(field, value, f"--cp-comm-type {said[0]}")


def _of_whole_run(arguments: Arguments, stack: Section, run: Mapping[str, Section]) -> None:
    """What follows from switches together with the rest of the command, or from their absence."""
    core = (stack["framework"], stack["version"]) == ("megatron-lm", "latest")
    said = "attention" in stack or arguments.raw("attention-backend") is not None
    if core and arguments.raw("transformer-impl") == ["local"] and not said:
        # megatron/core/models/gpt/gpt_layer_specs.py, get_gpt_layer_local_spec: DotProductAttention.
        arguments.take("transformer-impl")
        stack.took("attention", "math", "--transformer-impl local, without --use-flash-attn")
    if core and "fused_cross_entropy" not in stack:
        stack.assume("fused_cross_entropy", False, "no --cross-entropy-loss-fusion")
    if core and run["model"].get("num_experts") and "fused_router" not in stack:
        stack.assume("fused_router", False, "no --moe-router-fusion")
    sent = run["plan"].get("ep", 1) * run["plan"].get("etp", 1) > 1
    if core and run["model"].get("num_experts") and sent and "expert_dispatcher" not in stack:
        stack.assume("expert_dispatcher", "allgather", "Megatron-LM's default of --moe-token-dispatcher-type")
    _gradients(arguments, stack, run["training"])
    _fused_bias(arguments, stack, run["model"])
    plan, overlaps = run["plan"], "no-overlap-p2p-communication"
    if arguments.has(overlaps):
        if plan.get("num_chunks", 1) > 1:
            stack.took("overlap_p2p", False, f"--{overlaps}")
        else:
            stack.ledger.ignore(f"--{overlaps}", "", "without virtual stages there is nothing that it switches")


def _gradients(arguments: Arguments, stack: Section, training: Section) -> None:
    """Read the precision of summed gradients. Beside fp16 its default is fp16 (megatron/training/arguments.py,
    validate_args: bf16 turns --accumulate-allreduce-grads-in-fp32 on)."""
    asked = arguments.has("accumulate-allreduce-grads-in-fp32")
    if asked and "gradient_precision" not in stack:
        stack.took("gradient_precision", "fp32", "--accumulate-allreduce-grads-in-fp32")
    elif training["precision"] == "fp16" and stack["framework"] == "megatron-lm" and "gradient_precision" not in stack:
        stack.assume("gradient_precision", "fp16", "no --accumulate-allreduce-grads-in-fp32")


def _fused_bias(arguments: Arguments, stack: Section, model: Section) -> None:
    """Biases in one kernel with the activation and with dropout: two switches for one field of ours."""
    gated = bool(model.get("gated_mlp"))
    mine, other = ("no-bias-swiglu-fusion", "no-bias-gelu-fusion")[:: 1 if gated else -1]
    if arguments.has(other):
        stack.ledger.ignore(f"--{other}", "", "of another activation than the model's")
    unfused = {name: arguments.has(name) for name in (mine, "no-bias-dropout-fusion")}
    plain = not (model.get("dropout") or model.get("bias", True))  # nothing but the activation is left to fuse
    if plain and unfused.pop("no-bias-dropout-fusion"):
        why = "without effect in a model that has neither biases nor dropout"
        stack.ledger.ignore("--no-bias-dropout-fusion", "", why)
    asked = [name for name, set_ in unfused.items() if set_]
    if len(asked) == len(unfused):
        stack.took("fused_bias_activation", False, ", ".join(f"--{name}" for name in asked))
    for name in asked if len(asked) < len(unfused) else ():
        why = "stack.fused_bias_activation is of activation and dropout together, and the other of them is fused"
        stack.ledger.ignore(f"--{name}", "", why, matters=True)


def _graphs(arguments: Arguments, stack: Section) -> None:
    """What is launched as CUDA graphs: --cuda-graph-impl, and what of a layer, by the newer and the older name."""
    kind, names = arguments.text("cuda-graph-impl"), arguments.words("cuda-graph-modules", "cuda-graph-scope")
    if arguments.has("enable-cuda-graph", "external-cuda-graph") and kind is None:
        kind = "local"
    if kind in (None, "none"):
        return
    if kind == "full_iteration" or "full_iteration" in names:
        stack.took("cuda_graphs", "full_iteration", f"--cuda-graph-impl {kind}")
        return
    known = [name for name in names if name in GRAPH_MODULES]
    for name in names:
        if name not in known:
            stack.ledger.ignore("--cuda-graph-modules", name, "not modelled", matters=True)
    if names and not known:
        return
    stack.took("cuda_graphs", "scoped", f"--cuda-graph-impl {kind}")
    if known:
        stack.took("cuda_graph_scope", known, "--cuda-graph-modules")
    else:
        stack.assume("cuda_graph_scope", ["attn", "mlp"], "whole layers, as Megatron-LM's default; experts never")


def _dispatch(arguments: Arguments, stack: Section) -> None:
    """How tokens travel to experts."""
    kind = arguments.text("moe-token-dispatcher-type")
    backend = arguments.text("moe-flex-dispatcher-backend")
    if backend is not None and kind != "flex" and not arguments.has("moe-enable-deepep"):
        why = "without effect without --moe-token-dispatcher-type flex"
        stack.ledger.ignore("--moe-flex-dispatcher-backend", backend, why)
        backend = None
    if arguments.has("moe-enable-deepep") or kind == "flex":
        source = f"--moe-flex-dispatcher-backend {backend}" if backend else "--moe-enable-deepep"
        stack.took("expert_dispatcher", backend or "deepep", source)
    elif kind is not None:
        word = "allgather" if kind == "allgather" else "alltoall"
        stack.took("expert_dispatcher", word, f"--moe-token-dispatcher-type {kind}")
    for name in ("deepep", "hybridep"):
        sms = arguments.whole(f"moe-{name}-num-sms")
        if sms is not None and stack.get("expert_dispatcher") == name:
            stack.took("dispatcher_sms", sms, f"--moe-{name}-num-sms")
