"""Quantities: parsed with the unit's meaning, refused without one or with another's, printed as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import rows

from sim.errors import SpecError
from sim.units import parse, parse_count, show, show_count, show_time, significant


@rows(
    ("text", "dimension", "value"),
    [
        ("400 Gbit/s", "bytes_per_s", 5e10), ("400Gb/s", "bytes_per_s", 5e10), ("3.35 TB/s", "bytes_per_s", 3.35e12),
        ("80 GB", "bytes", 80e9), ("80 GiB", "bytes", 80 * 2**30), ("1_000 B", "bytes", 1000), ("1e3 MB", "bytes", 1e9),
        ("312 TFLOP/s", "flop_per_s", 312e12), ("700 W", "w", 700),
        ("2.5 us", "s", 2.5e-6), ("2.5 µs", "s", 2.5e-6), ("1.5 min", "s", 90),
    ],
)  # fmt: skip
def test_parse(text, dimension, value):
    assert parse(text, dimension) == pytest.approx(value, rel=1e-12)


@rows(
    ("text", "dimension", "says"),
    [
        ("80", "bytes", "has no unit"), ("80 GB", "bytes_per_s", "is a size, not a bandwidth"),
        ("80 GB/s", "bytes", "is a bandwidth, not a size"), ("3 parsec", "s", "unknown unit 'parsec'"),
        ("80 gb", "bytes", "unknown unit 'gb'"), ("much", "bytes", "not a quantity"), ("", "bytes", "not a quantity"),
        ("nan GB", "bytes", "not a quantity"),
    ],
)  # fmt: skip
def test_parse_refuses_and_shows_the_way(text, dimension, says):
    with pytest.raises(SpecError, match=f"{says}.*(such as|write it as)"):
        parse(text, dimension)


@rows(
    ("shown", "text"),
    [
        (show(5.02e17, "FLOP/s"), "502 PFLOP/s"), (show(163e12, "FLOP/s"), "163 TFLOP/s"),
        (show(85.9e9, "B"), "85.9 GB"), (show(0, "B"), "0 B"),
        (show_time(2.1e-6), "2.10 µs"), (show_time(0.0123), "12.3 ms"), (show_time(99.7), "99.7 s"),
        (show_time(3 * 3600), "3.00 hours"), (show_time(7.25e6), "83.9 days"),
        (show_count(1.008e12), "1.01 trillion"), (show_count(175e9), "175 billion"),
        (show_count(1.7e6), "1.70 million"), (show_count(512), "512"),
    ],
)  # fmt: skip
def test_shown_as_people_write_it(shown, text):
    assert shown == text


@given(st.floats(1e-3, 1e18))
def test_shown_values_parse_back(value):
    assert parse(show(value, "B", digits=6), "bytes") == pytest.approx(value, rel=1e-4, abs=1e-6)


@given(st.floats(1.0, 1e9), st.integers(1, 6))
def test_significant_digits(value, digits):
    assert float(significant(value, digits).replace(",", "")) == pytest.approx(
        value, rel=10.0 ** (1 - digits) + 1e-12, abs=0.5
    )


def test_counts_end_somewhere():
    with pytest.raises(SpecError, match=r"tokens = .1e300. is more than 1e\+50"):
        parse_count("1e300", "tokens")
