"""What the verbs have in common: where profiles are read from and written to, and what is asked of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.commands.options import check_target
from sim.errors import SpecError

SHIPPED_DATA = Path(__file__).parents[1] / "data"
"""Measurements that ship, `calibration/data` in the repository."""


def check_out(out: Path) -> None:
    """Refuse a profile that could not be written, raw data beside it included, or would replace another file."""
    check_target(out, (".yaml", ".yml"))
    check_target(out.with_suffix(".jsonl"))
    if out.exists() and not _is_profile(out):
        raise SpecError(f"{out} is there and is no profile; name another file (-o), or move it away")


def _is_profile(path: Path) -> bool:
    """Whether a file may be written over: a profile, or the draft of one."""
    from sim.specs.yaml12 import load_yaml

    known = load_yaml(path)
    return isinstance(known, dict) and "provenance" in known


def console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def read_profile(name: str) -> Any:
    return profile_and_stack(name)[0]


def profile_and_stack(name: str) -> tuple[Any, dict[str, Any]]:
    """A profile, and the values of the stack that were fitted with it."""
    from sim.specs import Profile, load_preset
    from sim.specs.presets import split_profile

    own, stack = split_profile(load_preset("profiles", name))
    return Profile.read(own, f"profile {name}"), stack
