"""What each stage of a pipeline holds, in Megatron's letters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


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
