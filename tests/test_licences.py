"""docs/licences.md is complete: every package that flopcast asks for, and every data file that ships, has its row."""

import re
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
from tracked import tracked

ROOT = Path(__file__).parents[1]
USERS_EXTRAS = ("torch", "notebooks", "mcp")
"""Extras that add something for users; the others are tools to work on flopcast."""


def table(heading: str) -> list[list[str]]:
    """Cells of the rows of the first table below a heading."""
    below = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    lines = below.partition("\n|")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_package_that_is_asked_for_has_its_licence():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {"": project["dependencies"]} | {extra: project["optional-dependencies"][extra] for extra in USERS_EXTRAS}
    wanted = {(re.split(r"[<>=~!\[;]", text)[0], extra) for extra, texts in asked.items() for text in texts}
    rows = table("What it needs")
    assert {(name, extra) for name, extra, _, _ in rows} == wanted
    assert {bundled for *_, bundled in rows} == {"no"}


@pytest.mark.parametrize(("name", "licence"), [(row[0], row[2]) for row in table("What it needs")])
def test_a_package_states_this_licence(name, licence):
    """In the words that its own metadata have for it."""
    try:
        stated = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    said = " ".join([
        stated.get("License-Expression") or "", stated.get("License") or "",
        *(line for line in stated.get_all("Classifier") or () if line.startswith("License")),
    ])  # fmt: skip
    assert re.split(r"[-'’ ]", licence)[0].casefold() in said.casefold(), said[:300]


def test_every_file_that_ships_and_is_no_code_has_its_row():
    listed = tracked("sim", "calibration", "validation", "scenarios")
    files = [path for path in listed if not path.endswith((".py", ".png"))]
    patterns = [pattern for row in table("What is in the wheel") for pattern in re.findall(r"`([^`]+/[^`]+)`", row[0])]
    assert not [path for path in files if not any(fnmatch(path, pattern) for pattern in patterns)]
    assert not [pattern for pattern in patterns if not any(fnmatch(path, pattern) for path in files)]
