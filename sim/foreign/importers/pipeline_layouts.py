"""Pipeline layouts in Megatron's letters, from what each stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def layout_of(layers: Sequence[int], mtps: int = 0) -> str:
    """The shortest way to write stages of so many layers: `Et*3|(t*4|)*14t*3mL`.

    layers : of each stage, in the order that a micro-batch goes through them. The first has the embedding, the last
        the head, and before it modules of multi-token prediction.
    """
    stages = [_layers(count) for count in layers]
    stages[0] = f"E{stages[0]}"
    last = f"{stages.pop()}{'m' * mtps}L"
    runs = [(stage, len(list(same))) for stage, same in groupby(stages)]
    return "".join(f"({stage}|)*{times}" if times > 1 else f"{stage}|" for stage, times in runs) + last


def _layers(count: int) -> str:
    return f"t*{count}" if count > 2 else "t" * count
