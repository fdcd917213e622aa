"""docs/licences.md is complete, and versions that flopcast asks for are those it is tested with."""

import re
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTED = ("notebooks", "test", "thorough")
"""Extras whose lower bounds are installed; those of tools and oracles are not, nor is an old torch."""


def required(*extras):
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    return [each for each in map(Requirement, texts) if each.name != PROJECT["name"]]


def test_lower_bounds_are_what_the_oldest_environment_installs():
    lines = (ROOT / "tests" / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = {each.name: each for each in map(Requirement, (line for line in lines if not line.startswith("#")))}
    bounds = {each.name: each for each in required(*TESTED)}
    assert pinned.keys() == bounds.keys()
    for name, bound in bounds.items():
        (low,), (exact,) = bound.specifier, pinned[name].specifier
        assert (low.operator, exact.operator) == (">=", "=="), name
        assert exact.contains(low.version), f"{name}: {bound} in pyproject.toml, {pinned[name]} in the constraints"


def test_nothing_has_an_upper_bound_but_oracles_which_have_one_release():
    every = required(*PROJECT["optional-dependencies"])
    bounded = {(each.name, str(part)) for each in every for part in each.specifier if part.operator != ">="}
    table = (ROOT / "sim" / "presets" / "importers" / "huggingface_defaults.yaml").read_text(encoding="utf-8")
    of_table = re.search(r"with transformers ([\d.]+);", table)[1]
    assert bounded == {("torch", "==2.13.0"), ("transformers", f"<={of_table}")}


def test_a_page_of_ours_loads_nothing():
    """No script, font or picture of somebody else's: what the licences say of reports."""
    for path in (ROOT / "sim" / "report" / "html" / "templates").iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, which nothing loads
        assert not re.search(r"https?://|@import|@font-face|<script[^>]*\bsrc=|url\(", text), path
