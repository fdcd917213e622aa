"""`flopcast shape`: which nearby sizes of a model train faster at nearly the same parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from sim.commands import options
from sim.commands.options import Json, print_answer
from sim.commands.plan import Model
from sim.commands.progress import spinner

if TYPE_CHECKING:
    from rich.console import Group

    from sim.scaling.shape import Shapes


def shape(
    model: Model,
    gpu: Annotated[str, Option(help="The kind of GPU: a100-40gb, h100, ...", autocompletion=options.preset("gpus"))],
    tp: Annotated[int, Option(min=1, help="GPUs that cut every matrix.")] = 1,
    seq: Annotated[str | None, Option(help="Tokens a sequence, such as 2k.")] = None,
    framework: Annotated[
        str | None, Option(help="Whose kernels and padding count.", autocompletion=options.preset("frameworks"))
    ] = None,
    as_json: Json = False,
) -> None:
    """Which nearby vocabulary, heads and widths train faster at nearly the same parameters."""
    from sim.scaling.shape import shapes_near
    from sim.specs.machines import gpu_named
    from sim.units import parse_whole

    length = None if seq is None else parse_whole(seq, "sequence_length")
    with spinner("pricing nearby sizes"):
        found = shapes_near(model, gpu_named(gpu), tp, length, framework)
    print_answer(as_json, found.to_dict, lambda: _view(found))


def _view(found: Shapes) -> Group:
    from rich.console import Group

    from sim.report.terminal import assumptions, title
    from sim.table import plain_table
    from sim.units import show_count, show_time

    model, gpu, tp = found.scenario.model, found.scenario.cluster.gpu.name, found.scenario.plan.tp
    table = plain_table("change", "parameters", "step", "faster", left=("change",))
    table.add_row("as it is", show_count(found.own.params), show_time(found.own.step_time_s), "")
    for each in found.faster:
        change = ", ".join(
            f"{name} {getattr(model, name):,} → {size:,}" for name, size in each.sizes.items() if name not in _FOLLOW
        )
        table.add_row(change, show_count(each.params), show_time(each.step_time_s), f"{each.gain:+.1%}")
    nothing = [] if found.faster else ["No nearby size is faster."]
    heading = title(
        f"{model.name} on {tp} × {gpu}", "\nOne size is changed at a time; faster: parameters trained per second."
    )
    return Group(heading, "", table, *nothing, *assumptions(found.scenario.assumed))


_FOLLOW = ("num_kv_heads", "value_head_dim")
"""Sizes that follow from the heads and their columns."""
