"""The site: built strictly, with every public name, parameter, verb and option, and with nothing loaded from elsewhere."""

import html
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from shown import verbs

import sim
from sim.cli import app

pytestmark = pytest.mark.thorough  # the pages by themselves, and their links: tests/test_docs.py

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    for package in ("mkdocs", "material", "pdoc"):
        pytest.importorskip(package, reason=f"{package} is not installed (pip install -e '.[docs]')")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def text_of(page):
    """The words of a page, by the heading that they stand below."""
    parts = re.split(r'<h[123] id="([^"]+)">', page.read_text(encoding="utf-8"))
    plain = (html.unescape(re.sub(r"<[^>]+>", "", part)) for part in parts[2::2])
    return dict(zip(parts[1::2], plain, strict=True))


def test_the_api_has_every_public_name_and_parameter(site):
    sections = text_of(site / "api.html")
    for name in sim.__all__:
        assert name in sections, f"{name} is not in the API reference"
        code = getattr(sim, name)
        if callable(code):
            assert inspect.getdoc(code), f"{name} has no docstring"
            assert inspect.getdoc(code).split()[0] in sections[name], f"{name} is shown without its docstring"
            if "Fields of a scenario file" not in sections[name]:  # where a record's fields have a page of their own
                missing = [each for each in parameters(code) if not re.search(rf"\b{each}\b", sections[name])]
                assert not missing, f"{name} is shown without {missing[0]}"


def parameters(code):
    try:
        return inspect.signature(code).parameters
    except ValueError:  # an exception's
        return ()


def test_the_verbs_have_every_verb_and_option(site):
    sections = text_of(site / "verbs.html")
    shown = 0
    for path, command in verbs(typer.main.get_command(app)):
        section = sections["-".join(path)]
        shown_options = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
        missing = [
            option for each in shown_options for option in each.opts if option[:2] == "--" and option not in section
        ]
        assert not missing, f"{path}: {missing}"
        shown += 1
    assert shown > 30


def test_pages_load_nothing_from_elsewhere_and_link_to_no_folder_above(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?:[^"]+)"', text)
        assert not loaded, f"{page.name}: {loaded}"
        linked = [
            each
            for each in re.findall(r'href="((?:\.\./)+[^"#]+)', text)
            if not (page.parent / each).resolve().exists()
        ]
        assert not linked, f"{page.name}: {linked}"
