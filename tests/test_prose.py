"""The words of the house are plain: the lint of tests/prose.py finds no fault, and finds those that it should."""

import textwrap

import pytest
from prose import CLIPPED, LONGEST, PRIVATE, docstrings, names, of_code, of_pages, sentences
from rows import forms


@forms("every", 5, 1)
def test_no_docstring_is_clipped_and_no_name_is_private(every):
    """In every fifth file; `make lint` reads all of them."""
    assert not of_code(every), "\n".join(of_code(every))


def test_no_sentence_of_a_page_is_long():
    assert not of_pages(), "\n".join(of_pages())


def test_docstrings_of_fields_and_constants_count_too(tmp_path):
    path = tmp_path / "room.py"
    path.write_text(
        textwrap.dedent('''
            """Cost of a room."""
            LIMIT = 3
            """Of one loop."""
            def held(x):
                """The same of GPipe."""
        '''),
        encoding="utf-8",
    )
    assert [text for _, text in docstrings(path) if CLIPPED.match(text)] == ["Of one loop.", "The same of GPipe."]
    assert [name for _, name in names(path) if name in PRIVATE] == ["held"]


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("One two three. Four five.", [3, 2]),
        ("`flopcast search x` takes 3 s.\n\n- A list item.\n- Another one, 2 % longer.", [4, 3, 5]),
        ("| a | table |\n|---|---|\n| is | no prose |", []),
        ("```bash\nflopcast estimate a b c d\n```\n\nProse [with a link](https://example.org/long/path).", [4]),
        ("# A heading has no length", []),
        (f"{'word ' * LONGEST}word.", [LONGEST + 1]),
    ],
)
def test_words_of_sentences_are_counted(text, lengths):
    assert [length for length, _ in sentences(text) if length] == lengths
