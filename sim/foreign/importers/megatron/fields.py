"""Whole numbers of a model in Megatron-LM's arguments, as the table lists them, and lists that mark layers."""

from __future__ import annotations

import re
from collections.abc import Callable

from sim.errors import SpecError
from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import Section, short

KIND = "megatron"
_PIECE = re.compile(r"\[([01](?:,[01]){0,999})\](?:\*(\d{1,4}))?")
"""Of a list of layers with (1) and without (0) experts: `[0]*3`, `[0,1]`."""
_MOST_LAYERS = 100_000


def take_fields(arguments: Arguments, model: Section, which: str) -> None:
    """Take whole numbers of the model, as the table lists them.

    Raises
    ------
    SpecError
        One is missing, is no such number, or contradicts what is known.
    """
    known = table(KIND)
    for field, names in known[which].items():
        needed = field in known["required"] and field not in model
        value = arguments.needed(*names) if needed else arguments.whole(*names)
        if value is not None and value != model.get(field, value):
            raise SpecError(f"{model.ledger.where}: --{names[0]} {value}, but the pattern has {model[field]} layers")
        if value is not None and field not in model:
            model.took(field, value, f"--{names[0]}")


def layer_marks(arguments: Arguments, name: str, layers: int, every: Callable[[int, int], bool]) -> list[bool] | None:
    """Marks of layers: of a number, what `every` makes of it; or a list such as `([0]*3+[1]*58)`, not executed.

    Raises
    ------
    SpecError
        Neither, or of another number of layers.
    """
    text = arguments.joined(name)
    if text is None:
        return None
    said, where = text, arguments.ledger.where

    def wrong(rule: str) -> SpecError:
        return SpecError(f"{where}: --{name} {short(said)!r} {rule}")

    text = re.sub(r"[\s'\"]", "", text)
    if re.fullmatch(r"[1-9]\d{0,5}", text):
        return [every(layer, int(text)) for layer in range(layers)]
    whole = re.fullmatch(r"\(([^()]*)\)(?:\*(\d{1,4}))?", text)
    text, again = (whole[1], int(whole[2] or 1)) if whole else (text, 1)
    found = [_PIECE.fullmatch(piece) for piece in text.split("+")]
    if not all(found):
        raise wrong("must be a whole number from 1, or a list such as ([0]*3+[1]*58)")
    runs = [(piece[1].split(","), int(piece[2] or 1)) for piece in found if piece is not None]
    if again * sum(len(marks) * times for marks, times in runs) > _MOST_LAYERS:
        raise wrong(f"lists more than {_MOST_LAYERS:,} layers")
    marks = [mark == "1" for marks, times in runs for mark in marks * times] * again
    if len(marks) != layers:
        raise wrong(f"lists {len(marks)} layers, but there are {layers}")
    return marks
