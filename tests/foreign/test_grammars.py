"""Files of every kind as people write them, put together at random from the kind's grammar, and read back.

A grammar is a module of `tests/grammars/`, named as its kind: `write(rng)` gives a file's name, its text, the facts that an
import must find in it, and the options it needs. Those in `forms` write a kind in another form.
"""

import importlib
import random
from pathlib import Path

import pytest
from facts import wrong_facts
from rows import forms, rows

from sim.foreign.importers import Given, import_text

PARTS = ("recipe_parts",)  # shared by grammars
GRAMMARS = sorted(path.stem for path in (Path(__file__).parents[1] / "grammars").glob("[a-z]*.py"))
GRAMMARS = [name for name in GRAMMARS if name not in PARTS]
FORMS = sorted(path.stem for path in (Path(__file__).parents[1] / "grammars/forms").glob("[a-z]*.py"))


@forms("seeds", range(4), range(10))
@pytest.mark.parametrize("kind", GRAMMARS)
def test_a_file_of_the_grammar_is_read_right(kind, seeds):
    rows("seed", seeds)(the_file_is_read_right)(kind=kind)


def the_file_is_read_right(kind, seed):
    grammar = importlib.import_module(f"grammars.{kind}")
    name, text, expected, options = grammar.write(random.Random(seed))
    imported = import_text(text, name, Given(**options))
    assert imported.kind == kind, text
    assert not wrong_facts(imported.scenario(), expected), text


@pytest.mark.parametrize("form", FORMS)
@rows("seed", range(10))
def test_a_file_of_another_form_is_read_right(form, seed):
    name, text, expected, options = importlib.import_module(f"grammars.forms.{form}").write(random.Random(seed))
    assert not wrong_facts(import_text(text, name, Given(**options)).scenario(), expected), text
