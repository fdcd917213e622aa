"""Hybrid models of Megatron-LM: layers of one block each, Mamba, attention, an MLP or experts; by letters or shares."""

from __future__ import annotations

from sim.errors import SpecError
from sim.foreign.importers.huggingface.layer_kinds import shortest
from sim.foreign.importers.keys import Arguments
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.pipeline_layouts import layout_of

_MOST_LAYERS = 100_000
MIXERS = {"M": "mamba2", "*": "full_attention", "G": "gated_delta_net"}
MLPS = {"-": "dense", "E": "sparse"}
"""Letters of hybrid models, whose layers are one block each (megatron/core/ssm/mamba_hybrid_layer_allocation.py)."""


def take_blocks(arguments: Arguments, model: Section, plan: Section, hybrid: bool) -> None:
    """A hybrid model's pattern: one block a letter, `|` between pipeline stages, behind `/` multi-token prediction; or
    the pattern that the shares of attention and of MLPs come to.

    hybrid : whether the program builds such models where neither is given.

    Raises
    ------
    SpecError
        A pattern that cannot be read, or that the pipeline's ranks cannot share.
    """
    name, pattern = arguments.take("hybrid-layer-pattern", "hybrid-override-pattern")
    attention, mlps = arguments.number("hybrid-attention-ratio"), arguments.number("hybrid-mlp-ratio")
    if pattern is None and (hybrid or attention is not None or mlps is not None):
        layers = arguments.whole("num-layers")
        if layers is not None and layers <= _MOST_LAYERS:
            name = "hybrid-attention-ratio" if attention or mlps else "num-layers"
            pattern = _dealt(layers, attention or 0.0, mlps or 0.0)
    if pattern is None:
        return
    where = model.ledger.where
    letters, slash, modules = pattern.strip("\"'").partition("/")
    stages = letters.split("|")
    letters = "".join(stages)
    strange = next((letter for letter in letters if letter not in {**MIXERS, **MLPS}), None)
    if strange is not None or not letters or len(letters) > _MOST_LAYERS:
        raise SpecError(
            f"{where}: --{name} {short(pattern)!r} must say the layers by {' '.join([*MIXERS, *MLPS])}"
            + (f", not {strange!r}" if strange else "")
        )
    model.took("num_layers", len(letters), f"--{name}")
    model.took("layer_types", shortest([MIXERS.get(letter, "none") for letter in letters]), f"--{name}")
    model.took("mlp_layer_types", shortest([MLPS.get(letter, "none") for letter in letters]), f"--{name}")
    if slash:
        model.ledger.ignore(
            f"--{name}", modules, "modules of several blocks that predict further tokens; not counted", matters=True
        )
    if len(stages) > 1:
        if len(stages) % plan["pp"]:
            raise SpecError(
                f"{where}: --{name} has {len(stages)} stages, no multiple of the {plan['pp']} pipeline ranks"
            )
        plan.took("pipeline_layout", layout_of([len(stage) for stage in stages]), f"--{name}")
        if len(stages) > plan["pp"]:
            plan.took("num_chunks", len(stages) // plan["pp"], f"--{name}")


def _dealt(layers: int, attention: float, mlps: float) -> str:
    """The letters of so many layers with these shares, spread as Megatron-LM spreads them: attention between equal
    runs of Mamba, MLPs in place of Mamba, towards the end (`_allocate_auto` of mamba_hybrid_layer_allocation.py).
    """
    letters = ["M"] * layers
    for share, letter in ((attention, "*"), (mlps, "-")):
        count = round(layers * share)
        left = letters.count("M") - count
        runs = count + 1 if letter == "*" else count
        if not runs:
            continue
        step = x = left / runs
        for place in range(layers):
            if letters[place] != "M":
                continue
            if x < 0.5:
                letters[place] = letter
                x += step
            else:
                x -= 1
    return "".join(letters)
