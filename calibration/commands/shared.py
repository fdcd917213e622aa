"""What the verbs have in common: where profiles are read from and written to, and what is asked of the user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sim.errors import ProfileError

SHIPPED_DATA = Path(__file__).parents[1] / "data"
"""Measurements that ship, `calibration/data` in the repository."""


def check_out(out: Path) -> None:
    """Refuse, before anything is measured, a file that could not be written afterwards."""
    if out.is_dir():
        raise ProfileError(f"--out {out} is a folder; name a file in it, such as {out / 'profile.yaml'}")
    if out.suffix not in (".yaml", ".yml"):
        raise ProfileError(f"--out {out} must end in .yaml; the raw data go beside it as .jsonl")
    if not out.parent.is_dir():
        raise ProfileError(f"the folder {out.parent} of --out does not exist; make it first (mkdir -p {out.parent})")
    if not os.access(out.parent, os.W_OK):
        raise ProfileError(f"the folder {out.parent} of --out cannot be written to; choose another")
    if out.exists() and not _is_profile(out):
        raise ProfileError(f"{out} is there and is no profile; name another file (-o), or move it away")


def _is_profile(path: Path) -> bool:
    """Whether a file may be written over: a profile, or the draft of one."""
    from sim.specs.yaml12 import load_yaml

    known = load_yaml(path)
    return isinstance(known, dict) and "provenance" in known


def console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def profile_data(name: str) -> tuple[dict[str, Any], Path | None]:
    from sim.specs.presets import raw_preset
    from sim.specs.yaml12 import load_yaml

    if name.endswith((".yaml", ".yml")):
        return load_yaml(name), Path(name)
    return raw_preset("profiles", name), None


def read_profile(name: str) -> Any:
    from sim.specs import Profile, load_preset
    from sim.specs.presets import load_file_as_preset, split_profile

    looks_like_file = name.endswith((".yaml", ".yml"))
    data = load_file_as_preset(Path(name)) if looks_like_file else load_preset("profiles", name)
    return Profile.read(split_profile(data)[0], f"profile {name}")
