"""Tests that go through tables: a row that fails is named by its values."""

from functools import partial

import pytest
from rows import rows


def area(width, height):
    return width * height


def test_a_row_that_fails_is_named_by_its_functions_not_their_addresses():
    @rows(
        ("shape", "expected"), [(partial(area, height=2), 6), (partial(partial(area, 1), height=area), 4), (area, "a")]
    )
    def check(shape, expected):
        assert shape is None, expected

    with pytest.raises(AssertionError) as failed:
        check()
    names = [line.partition(": AssertionError")[0] for line in str(failed.value).splitlines() if ": Assertion" in line]
    assert names == ["area(height=2), 6", "area(1, height=area), 4", "area, 'a'"]
