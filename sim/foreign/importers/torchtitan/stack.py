"""torchtitan's precision and stack: what is compiled, converted to fewer bits, sent and kept in which."""

from __future__ import annotations

from sim.foreign.importers.defaults import take_16_bits
from sim.foreign.importers.keys import Keys, table
from sim.foreign.importers.ledger import Section
from sim.foreign.importers.torchtitan.model import KIND

_WIDTHS = {"bfloat16": "bf16", "float32": "fp32"}
_GATHERS = "enable_fsdp_float8_all_gather"


def read_stack(keys: Keys, training: Keys, model: Keys, cut: Keys, plan: Section) -> Section:
    """The framework; whether layers are compiled ([compile] enable, or training.compile of older files); how tokens go
    to experts, keys and values round, and pieces of the sequence to multiplies; and how the loss is worked out
    (ChunkedLossWrapper of newer files, in Python)."""
    stack, compiler = Section("stack", keys.ledger), keys.section("compile")
    stack.took("framework", "torchtitan", "the file's kind")
    enabled, older = compiler.flag("enable"), training.flag("compile")
    enabled = older if enabled is None else enabled
    _, parts = compiler.take("components")
    if enabled and isinstance(parts, list) and "model" not in parts:
        stack.took("compiled", False, f"compile.components {', '.join(map(str, parts))}: not the model")
    else:
        why = "torchtitan's default: torchtitan/config/configs.py, CompileConfig.enable"
        stack.settle("compiled", enabled, "compile.enable", False, why)
    backend = model.text("moe_comm_backend")
    if backend in ("deepep", "hybridep"):
        stack.took("expert_dispatcher", backend, "moe_comm_backend")
    elif backend not in (None, "standard"):
        stack.ledger.ignore("moe_comm_backend", backend, "priced as all-to-alls", matters=True)
    if compiler.flag("chunked_loss"):
        stack.took("chunked_loss", True, "loss ChunkedLossWrapper")
    pieces = compiler.flag("enable_async_tensor_parallel") or cut.flag("enable_async_tensor_parallel")
    compiler.leave()
    if plan["tp"] > 1 and cut.flag("disable_loss_parallel"):
        stack.took("vocab_parallel_loss", False, "disable_loss_parallel")
    if plan["tp"] > 1 and pieces:
        stack.took("async_tensor_parallel", True, "enable_async_tensor_parallel")
    if plan["cp"] > 1:
        _context(stack, cut)
    return stack


def _context(stack: Section, cut: Keys) -> None:
    """How context-parallel ranks get the others' keys and values, and which pieces of a sequence they hold."""
    method = cut.text("context_parallel_rotate_method")
    if method not in (None, "allgather", "alltoall"):
        raise cut.wrong("context_parallel_rotate_method", method, "must be allgather or alltoall")
    rotates, why = None if method is None else method == "alltoall", "torchtitan's default, allgather"
    stack.settle("overlap_context", rotates, "context_parallel_rotate_method", False, why)
    if cut.says("context_parallel_load_balancer"):
        named = str(cut.take("context_parallel_load_balancer")[1])
        stack.took("balanced_context", named.lower() != "none", "context_parallel_load_balancer")


def take_update(stack: Section, optimizer: Keys) -> None:
    """Whether the update is one kernel for many tensors."""
    made, older = optimizer.text("implementation"), optimizer.flag("fused")
    if made not in (None, "fused", "foreach", "for-loop"):
        raise optimizer.wrong("implementation", made, "must be fused, foreach or for-loop")
    if made is not None or older is not None:
        fused = made != "for-loop" if made is not None else older
        stack.took("fused_optimizer", fused, "optimizer.implementation" if made else "optimizer.fused")
    optimizer.leave()


def take_precision(training: Section, stack: Section, model: Keys, keys: Keys, whole: Keys) -> None:
    """Read the precisions of linears, and of weights, states and gradients."""
    less, source, gathers = _converted(model, whole)
    said = {name: keys.text(name) for name in ("mixed_precision_param", "dtype", "mixed_precision_reduce")}
    for name, value in said.items():
        if value not in (None, *_WIDTHS):
            raise keys.wrong(name, value, f"must be {' or '.join(_WIDTHS)}")
    param, dtype, reduced = said.values()
    if dtype == "bfloat16":
        take_16_bits(training, stack, "bf16", "dtype bfloat16")
    if less is not None:
        training.took("precision", less, source)
        if param == "float32":
            why = f"beside linears in {less} activations are priced in 16 bits"
            keys.ledger.ignore("training.mixed_precision_param", param, why, matters=True)
    elif dtype == "bfloat16":
        training.took("precision", "bf16", "dtype bfloat16")
        if param == "float32":
            why = "weights of dtype bfloat16 are priced to multiply in 16 bits"
            keys.ledger.ignore("training.mixed_precision_param", param, why, matters=True)
    else:
        width = _WIDTHS[param or "bfloat16"]
        training.settle("precision", width if param else None, f"mixed_precision_param {param}", width, f"{KIND}'s own")
    if reduced is not None:
        stack.took("gradient_precision", _WIDTHS[reduced], "mixed_precision_reduce")
    if gathers and less != "fp8":
        stack.ledger.ignore(_GATHERS, True, f"without effect with linears in {training['precision']}")
    if less is not None:
        stack.settle("fp8_gathers", (gathers and less == "fp8") or None, _GATHERS, False, f"no {_GATHERS}")


def _converted(model: Keys, whole: Keys) -> tuple[str | None, str, bool]:
    """(precision of converted linears, what says so, whether float8's sections ask to gather in it), by the converters'
    names and by the sections that older files have for each."""
    _, converters = model.take("converters")
    names = converters if isinstance(converters, list) else str(converters or "").replace(",", " ").split()
    known = table(KIND)["converters"]
    found = [(known[part], f"{name}: linears") for name in names[:20] for part in known if part in str(name).lower()]
    float8, mx = whole.section("float8"), whole.section("mx")
    quantize = whole.section("quantize")
    kinds = {name: quantize.section(name) for name in ("linear", "grouped_mm", "dense", "moe")}
    if float8.flag("enable_float8_linear"):
        found.append(("fp8", "float8.enable_float8_linear"))
    sections = [float8, *(each.section("float8") for each in kinds.values())]
    asked = [each.flag(_GATHERS) for each in sections]
    by_rows = [str(each.text("recipe_name")).startswith("rowwise") for each in sections]
    of_mx = [mx, *(each.section("mx") for each in kinds.values())]
    recipes = [each.text("recipe_name") for each in of_mx]
    if found and found[0][0] == "mxfp8" and any("mxfp4" in str(recipe) for recipe in recipes):
        found[0] = "mxfp4", "recipe_name: linears"
    for section in (*sections, *of_mx, *kinds.values(), quantize):
        section.leave()
    if any(by_rows) and any(asked):
        whole.ledger.ignore(_GATHERS, True, "without effect with recipe_name rowwise")
    precision, source = found[0] if found else (None, "")
    return precision, source, any(asked) and not any(by_rows)
