"""What can go wrong, in words for the person who can put it right.

Every message names the value, the rule it breaks and the nearest remedy. The command line turns
`SpecError`, `ProfileError` and `ScheduleError` into exit code 2 and `InfeasiblePlan` into exit code 3.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any


class FlopcastError(Exception):
    """Any mistake flopcast can explain."""


class SpecError(FlopcastError):
    """A description (YAML, override, argument) that breaks a rule."""


class ProfileError(FlopcastError):
    """A calibrated profile that is broken or does not belong to the hardware."""


class ScheduleError(FlopcastError):
    """A schedule that skips work, repeats it, or can never finish."""


class InfeasiblePlan(FlopcastError):
    """A plan that is well formed but does not fit in the GPUs' memory."""


def visible(text: str) -> str:
    """Text in which what would steer a terminal or turn a line round (escapes, bidirectional marks) is written out."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def nearest(word: str, choices: Iterable[str]) -> str:
    """A closing hint: '; did you mean X?' or the choices themselves where nothing is near."""
    options = sorted(choices)
    by_lower = {option.lower(): option for option in options}
    numbers = {part for part in word.lower().split("-") if any(map(str.isdigit, part))}
    alike = [each for each in by_lower if numbers <= {*each.split("-")}]  # "hgx-h100" means no H800

    def close(cutoff: float) -> list[str]:
        found = (difflib.get_close_matches(word.lower(), among, 1, cutoff) for among in (alike, by_lower))
        return next(filter(None, found), [])

    parts = [each for each in by_lower if word.lower() in each][:3] if len(word) > 2 else []
    begun = [each for each in by_lower if word and each.startswith(f"{word.lower()}-")][:3]
    # Names that go on where the word ends are meant first, then a misspelt name, then names that contain the word.
    matches = [by_lower[match] for match in begun or close(0.8) or parts or close(0.6)]
    if matches:
        return f"; did you mean {' or '.join(repr(match) for match in matches)}?"
    return f"; choose from {', '.join(options)}" if options else ""


def _require(rule: Callable[[Any], Any], words: str, values: dict[str, Any]) -> None:
    """Refuse numbers, and arrays with any number, that are not finite or break a rule; name the first and its value."""
    import numpy as np

    for name, value in values.items():
        try:
            numbers = np.atleast_1d(np.asarray(value, dtype=float))
        except OverflowError:
            raise SpecError(f"{name} is beyond any number that can be reckoned with; write one below 1e300") from None
        wrong = numbers[~(rule(numbers) & np.isfinite(numbers))]
        if wrong.size:
            raise SpecError(f"{name} = {wrong[0]:g} is not a finite number{words}")


def require_positive(**values: Any) -> None:
    """Refuse numbers, and arrays with any number, that are not finite and above zero."""
    _require(lambda numbers: numbers > 0, " above zero", values)


def require_not_negative(**values: Any) -> None:
    """Refuse numbers, and arrays with any number, that are not finite and at least zero."""
    _require(lambda numbers: numbers >= 0, ", zero or more", values)
