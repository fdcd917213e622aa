"""The stack of Megatron-LM's arguments: which generation they belong to, and what they switch in it."""

from __future__ import annotations

from sim.specs.importers.keys import Arguments
from sim.specs.importers.ledger import Section
from sim.specs.modules import GRAPH_MODULES

_BACKENDS = {"flash": "flash", "fused": "flash", "unfused": "math"}
"""Kernels of attention that --attention-backend names; of the others Transformer Engine chooses."""


def read_stack(arguments: Arguments, old: bool, framework: tuple[str, str] | None = None) -> Section:
    """Which generation of the framework the arguments belong to, and what they switch in it.

    framework : (name, version) of one whose files have been read as these arguments.
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
    if arguments.has("overlap-cpu-optimizer-d2h-h2d"):
        stack.took("overlap_optimizer_offload", True, "--overlap-cpu-optimizer-d2h-h2d")
    if arguments.has("grad-reduce-in-bf16"):
        stack.took("gradient_precision", "bf16", "--grad-reduce-in-bf16")
    kind = (arguments.raw("attention-backend") or [""])[0]
    if flash:
        stack.took("attention", "flash", "--use-flash-attn")
    elif kind in _BACKENDS:
        stack.took("attention", _BACKENDS[kind], f"--attention-backend {arguments.text('attention-backend')}")
    _dispatch(arguments, stack)
    _graphs(arguments, stack)
    return stack


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
    if arguments.has("moe-enable-deepep") or kind == "flex" or backend is not None:
        source = f"--moe-flex-dispatcher-backend {backend}" if backend else "--moe-enable-deepep"
        stack.took("expert_dispatcher", backend or "deepep", source)
    elif kind == "allgather":
        stack.ledger.ignore("--moe-token-dispatcher-type", kind, "priced as all-to-alls, which send less", matters=True)
    elif kind is not None:
        stack.ledger.took("stack.expert_dispatcher", "alltoall", f"--moe-token-dispatcher-type {kind}")
    for name in ("deepep", "hybridep"):
        sms = arguments.whole(f"moe-{name}-num-sms")
        if sms is not None and stack.get("expert_dispatcher") == name:
            stack.took("dispatcher_sms", sms, f"--moe-{name}-num-sms")
    if arguments.has("overlap-moe-expert-parallel-comm"):
        stack.took("overlap_experts", True, "--overlap-moe-expert-parallel-comm")
