"""What a GPU-hour costs, in which currency."""

from datetime import date

import pytest

from sim.errors import SpecError
from sim.reliability.cost import Price, listed_price
from sim.specs.machines import price_list
from sim.specs.presets import load_preset


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [("2", 2.0, "USD"), (" 2.50 eur ", 2.5, "EUR"), ("€2.5", 2.5, "EUR"), ("3$", 3.0, "USD"), (".5 CHF", 0.5, "CHF")],
)
def test_prices_name_their_currency(text, amount, currency):
    assert Price.read(text) == Price(amount, currency)
    assert Price.read(str(Price(amount, currency))) == Price(amount, currency)


@pytest.mark.parametrize("text", ["", "two", "-1", "0", "nan", "€2 EUR", "2 euros", "1e3", "٣", "2 EUR a day"])
def test_what_is_no_price_is_refused(text):
    with pytest.raises(SpecError, match="price"):
        Price.read(text)


def test_every_listed_price_names_its_page_its_day_and_a_machine():
    for gpu, row in price_list().items():
        assert load_preset("nodes", row["node"])["gpu"] == gpu
        assert 0.1 < row["price"] < 20
        assert date(2025, 1, 1) < date.fromisoformat(row["date"])
        price = listed_price(load_preset("gpus", gpu)["name"])
        assert price.amount == row["price"]
        assert row["date"] in price.source
        assert row["page"] in price.source
