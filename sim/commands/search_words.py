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
        return int(first), int(last if dots else first)
    except ValueError:
        raise SpecError(f"--gpus {text!r} must be a number or a range such as 64..4096") from None


def read_degrees(text: str, option: str) -> tuple[int, ...]:
    """Degrees of `1,2,4`."""
    try:
        degrees = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        degrees = (0,)
    if degrees[0] < 1:
        raise SpecError(f"{option} {text!r} must be numbers of one or more with commas between, such as 1,2,4")
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
    return own, named


def write_scenario(path: Path, scenario: Any) -> None:
    """A scenario file that stands alone: every preset written out, so that it says the same tomorrow."""
    import yaml

    data = scenario.model_dump(mode="json", exclude={"assumed"}, exclude_none=True)
    data["description"] = f"Best plan of a search. {data['description']}".strip()
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")
