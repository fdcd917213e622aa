"""Versions that flopcast asks for: those it is tested with at the least, and none of them at the most but oracles'."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
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
