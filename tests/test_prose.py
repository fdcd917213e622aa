"""The words of the house are plain: the lint of tests/prose.py finds no fault, and finds those that it should."""

from prose import of_code, of_pages
from rows import forms


@forms("every", 5, 1)
def test_no_docstring_is_clipped_and_no_name_is_private(every):
    """In every fifth file; `make lint` reads all of them."""
    assert not of_code(every), "\n".join(of_code(every))


def test_no_sentence_of_a_page_is_long():
    assert not of_pages(), "\n".join(of_pages())
