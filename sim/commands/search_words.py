"""What the words after `flopcast search` say: ranges, degrees, fields of a plan; and a scenario written to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.errors import SpecError

OWN = "own"
"""In --why: the scenario's own plan, so that the fields beside it are changes of that and nothing is left free."""


def read_range(text: str) -> tuple[int, int]:
    """Fewest and most of `64..4096`, or twice the one number."""
    first, dots, last = text.partition("..")
    try:
        fewest, most = int(first), int(last if dots else first)
    except ValueError:
        raise SpecError(f"--gpus {text!r} must be a whole number or a range such as 64..4096") from None
    if fewest < 1:
        raise SpecError(f"--gpus {text!r}: {fewest} must be one or more, such as 64..4096")
    if fewest > most:
        raise SpecError(f"--gpus {text!r} must go from fewer to more; write {most}..{fewest}")
    return fewest, most


def read_limit(text: str) -> float:
    """Memory that a plan may use of a GPU. [bytes]"""
    from sim.units import parse

    limit = parse(text, "bytes")
    if limit <= 0:
        raise SpecError(f"--memory-limit {text!r} must be above zero, such as '72 GB'")
    return limit


def read_degrees(text: str, option: str, of: int = 0, what: str = "") -> tuple[int, ...]:
    """Degrees of `1,2,4`, each of which must divide a number of something, if that is given."""
    try:
        degrees = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        degrees = (0,)
    if degrees[0] < 1:
        raise SpecError(f"{option} {text!r} must be numbers of one or more with commas between, such as 1,2,4")
    wrong = [each for each in degrees if of % each]
    if wrong:
        able = [each for each in range(1, min(of, 64) + 1) if of % each == 0]
        more = " …" if of > able[-1] or len(able) > 8 else ""
        raise SpecError(
            f"{option} {wrong[0]} must divide the {what}; degrees that do: {', '.join(map(str, able[:8]))}{more}"
        )
    return degrees


def read_fields(words: Sequence[str]) -> tuple[bool, dict[str, Any]]:
    """(whether the scenario's own plan is meant, the plan's fields) that --why names."""
    from sim.specs.yaml12 import parse_yaml

    own, named = False, {}
    for field in (each for text in words for each in text.split()):
        if field == OWN:
            own = True
            continue
        path, equals, value = field.partition("=")
        if not equals or not value:
            raise SpecError(f"--why {field!r} must look like plan.tp=4, or be {OWN} for the scenario's own plan")
        name = path.removeprefix("plan.")
        if name in named:
            raise SpecError(f"--why names {path!r} twice; keep one")
        named[name] = parse_yaml(value, f"--why {field!r}")
    if words and not named and not own:
        raise SpecError(f"--why names no field; write --why plan.tp=4, or --why {OWN} for the scenario's own plan")
    return own, named


def write_scenario(path: Path, scenario: Any) -> None:
    """A scenario file that stands alone: every preset written out, so that it says the same tomorrow."""
    import yaml

    data = scenario.model_dump(mode="json", exclude={"assumed"}, exclude_none=True)
    data["description"] = f"Best plan of a search. {data['description']}".strip()
    try:
        path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"cannot write {path}: {error.strerror or error}; make room there, or name another file"
        ) from None
