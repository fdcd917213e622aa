"""What each stage of a pipeline holds, in Megatron's letters, and how many of its layers run again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from sim.foreign.importers.ledger import Section


def layout_of(layers: Sequence[int], mtps: int = 0) -> str:
    """The shortest way to write stages of so many layers: `Et*3|(t*4|)*14t*3mL`.

    layers : of each stage, in the order that a micro-batch goes through them. The first has the embedding, the last
        the head, and before it modules of multi-token prediction.
    """
    stages = [f"t*{count}" if count > 2 else "t" * count for count in layers]
    stages[0] = f"E{stages[0]}"
    last = f"{stages.pop()}{'m' * mtps}L"
    runs = [(stage, len(list(same))) for stage, same in groupby(stages)]
    return "".join(f"({stage}|)*{times}" if times > 1 else f"{stage}|" for stage, times in runs) + last


def layers_of_ranks(layers: int, ranks: int, first: int | None, last: int | None) -> list[int] | None:
    """Layers of each rank, where the first and the last have so many, if said, and the others share the rest evenly, if
    they can."""
    given = [number for number in (first, last) if number is not None]
    rest, between = layers - sum(given), ranks - len(given)
    if rest < 0 or (rest % between if between else rest):
        return None
    each = rest // between if between else 0
    return [each if first is None else first, *[each] * (ranks - 2), each if last is None else last]


def take_repeated(plan: Section, number: int, layers: int, source: str) -> None:
    """Recompute so many whole layers of the `layers` of a stage."""
    if number in (0, layers):
        plan.took("recompute", "full" if number else "none", source)
        return
    plan.took("recompute", "full", source)
    plan.took("recompute_method", "block", source)
    plan.took("recompute_num_layers", number, f"{source}, of {layers} layers")


def take_flushes(plan: Section, key: str, local: int, batch: int) -> None:
    """Let a pipeline drain after every `local` sequences of a replica, where a step has several such rounds."""
    if plan["pp"] > 1 and batch > local * plan["dp"] and local % plan["microbatch_size"] == 0:
        each = local // plan["microbatch_size"]
        plan.took("microbatches_per_flush", each, f"{key} {local}: the pipeline drains after each of them")
