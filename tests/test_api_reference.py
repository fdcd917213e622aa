"""The API reference is built from docstrings, says every public name and parameter, and is built without a warning."""

import html
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sim

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of the public names."""
    pytest.importorskip("pdoc", reason="pdoc is not installed (pip install -e '.[docs]')")
    folder = tmp_path_factory.mktemp("api")
    command = [sys.executable, "-W", "error", str(ROOT / "docs" / "api.py"), str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return (folder / "sim.html").read_text(encoding="utf-8")


def test_it_has_every_public_name_and_parameter(page):
    sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', page, re.DOTALL))
    for name in sim.__all__:
        assert name in sections, f"{name} is not in the API reference"
        text = html.unescape(re.sub(r"<[^>]+>", "", sections[name]))
        code = getattr(sim, name)
        if callable(code):
            assert inspect.getdoc(code), f"{name} has no docstring"
            assert "docstring" in sections[name], f"{name} is shown without its docstring"
            missing = [each for each in parameters(code) if not re.search(rf"\b{each}\b", text)]
            assert not missing, f"{name} is shown without {missing[0]}"


def test_a_record_says_its_fields_one_a_line(page):
    assert "<li><strong>step_time_s</strong>: one optimizer step. [s]</li>" in page


def parameters(code):
    try:
        return inspect.signature(code).parameters
    except ValueError:  # an exception's
        return ()
