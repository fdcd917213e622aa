"""The precision in DeepSpeed's JSON: of multiplies, of weights and states of the optimizer, of gradients."""

from __future__ import annotations

from sim.foreign.importers.keys import Keys
from sim.foreign.importers.ledger import Section

_WIDTHS = {"fp32": "fp32", "float32": "fp32", "fp16": "fp16", "float16": "fp16", "half": "fp16", "bf16": "bf16",
           "bfp16": "bf16", "bfloat16": "bf16"}  # fmt: skip
"""DeepSpeed's names of numbers (deepspeed/runtime/config.py, DtypeEnum), torch's, and ours."""


def take_precision(training: Section, stack: Section, keys: Keys) -> None:
    """fp16, bf16, torch_autocast, data_types and communication_data_type."""
    sections = {name: keys.section(name) for name in ("bf16", "fp16")}
    enabled = {name: section.flag("enabled") for name, section in sections.items()}
    cast = keys.section("torch_autocast")
    casts, width = cast.flag("enabled"), _width(cast, "dtype")
    choice = next((name for name in sections if enabled[name]), None)
    source = f"{choice}.enabled"
    if choice is None and casts:
        choice, source = width or "bf16", "torch_autocast"
        why = f"weights in fp32 beside multiplies in {choice} are priced as {choice} weights with fp32 masters"
        cast.ledger.ignore("torch_autocast", choice, why, matters=True)
    elif casts or width is not None:
        cast.ledger.ignore("torch_autocast", width or "", "without effect beside the precision that is enabled")
    if choice is None and False in enabled.values():
        off = " and ".join(f"{name}.enabled false" for name in sections if enabled[name] is False)
        choice, source = "fp32", f"{off}: DeepSpeed's own is then fp32"
    why = "neither fp16 nor bf16 is told in the file; the trainer's usual"
    training.settle("precision", choice, source, "bf16", why)
    _states(training, sections)
    cast.leave()
    for section in sections.values():
        section.leave()
    _gradients(training, stack, keys)


def _states(training: Section, sections: dict[str, Keys]) -> None:
    """Masters and moments in 16 bits (deepspeed/runtime/precision_config.py)."""
    for name, section in sections.items():
        masters, states = f"{name}_master_weights_and_grads", "bf16_optimizer_states"
        here = training["precision"] == name
        if section.flag(masters) and here:
            training.took("master_precision", "none" if name == "bf16" else "fp16", f"{name}.{masters}")
        if name == "bf16" and section.flag(states) and here:
            training.took("moment_precision", "bf16", f"{name}.{states}")


def _gradients(training: Section, stack: Section, keys: Keys) -> None:
    """In which gradients are summed over GPUs, and over micro-batches: one field of ours."""
    types = keys.section("data_types")
    summed, kept = _width(keys, "communication_data_type"), _width(types, "grad_accum_dtype")
    types.leave()
    if keys.flag("fp32_allreduce") and summed is None:
        summed = "fp32"
    if training["precision"] == "fp32":
        stack.assume("gradient_precision", "fp32", "beside weights in fp32")
        for name, said in (("communication_data_type", summed), ("data_types.grad_accum_dtype", kept)):
            if said not in (None, "fp32"):
                keys.ledger.ignore(name, said, "gradients of fp32 weights are priced in fp32", matters=True)
        return
    source = "communication_data_type" if summed else "data_types.grad_accum_dtype"
    if summed and kept and summed != kept:
        why = f"gradients are priced in one precision, that of communication_data_type, {summed}"
        keys.ledger.ignore("data_types.grad_accum_dtype", kept, why, matters=True)
    if summed or kept:
        stack.took("gradient_precision", summed or kept, source)
    elif training["precision"] == "fp16":
        stack.assume("gradient_precision", "fp16", "DeepSpeed's own beside weights in fp16")


def _width(keys: Keys, name: str) -> str | None:
    said = keys.text(name)
    if said is None or said.lower() in ("none", "null"):
        return None
    plain = said.lower().removeprefix("torch.")
    if plain not in _WIDTHS:
        raise keys.wrong(name, said, "must be fp32, fp16 or bf16")
    return _WIDTHS[plain]
