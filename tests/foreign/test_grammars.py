"""Files of every kind as people write them, put together at random, and read back (`tests/grammars/writing.py`)."""

import random

import pytest
from facts import wrong_facts
from grammars.writing import BASES, FORMS, KINDS, OPTIONS, ROWS, with_keys, write, written
from rows import forms, rows

from sim.foreign.importers import Given, import_text

SAID = [(kind, *row) for kind in ROWS for row in ROWS[kind]]


@rows(("kind", "keys", "facts"), SAID)
def test_what_a_recipe_says_is_read(kind, keys, facts):
    name, text = written(kind, with_keys(BASES[kind], keys), random.Random(0))
    imported = import_text(text, name, Given(**OPTIONS.get(kind, {"gpus": 8})), kind=kind if kind in KINDS else None)
    assert not wrong_facts(imported.scenario(), facts)


@forms("seeds", range(4), range(10))
@pytest.mark.parametrize("kind", [*KINDS, *FORMS])
def test_a_file_of_the_grammar_is_read_right(kind, seeds):
    rows("seed", seeds)(the_file_is_read_right)(kind=kind)


def the_file_is_read_right(kind, seed):
    name, text, expected, options = write(kind, random.Random(seed))
    imported = import_text(text, name, Given(**options))
    assert kind in FORMS or imported.kind == kind, text
    assert not wrong_facts(imported.scenario(), expected), text
