"""The stack of Megatron-LM's arguments: which generation they belong to, and what they switch in it."""

from __future__ import annotations

from collections.abc import Mapping

from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import Section
from sim.foreign.importers.megatron.rows import KIND, ArgumentRows
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
    stack = Section("stack", arguments.ledger)
    name, version = framework or (None, None)
    rows = ArgumentRows.on(arguments, {**(run or {}), "stack": stack}, old=old, named=name, version=version)
    rows.read("stack")
    if run is not None:
        rows.read("whole_run")
    _context(arguments, stack)
    rows.read("dispatch")
    _graphs(arguments, stack)
    return stack


def _context(arguments: Arguments, stack: Section) -> None:
    """How context-parallel ranks exchange what attention needs; of a list, layer by layer, where all say the same."""
    said, known = arguments.words("cp-comm-type"), table(KIND)["context_exchanges"]
    kinds = {word.lower() for word in said}
    if len(kinds) > 1 or not kinds <= known.keys():
        stack.ledger.ignore("--cp-comm-type", " ".join(said), "priced as the stack does it in all layers", matters=True)
    elif kinds:
        for field, value in known[kinds.pop()].items():
            stack.took(field, value, f"--cp-comm-type {said[0]}")


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
