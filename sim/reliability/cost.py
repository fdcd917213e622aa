"""What a GPU-hour costs, in which currency."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sim.errors import SpecError, require_positive
from sim.specs.machines import price_list
from sim.specs.presets import load_preset

SYMBOLS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
_PRICE = re.compile(r"(?P<before>[$€£¥])?\s*(?P<amount>[0-9]+(\.[0-9]*)?|\.[0-9]+)\s*(?P<after>[$€£¥]|[A-Za-z]{3})?")


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a GPU-hour, in a currency named by its ISO 4217 code.

    source : whose list price it is, and of which day; empty where somebody gave it.
    """

    amount: float
    currency: str = "USD"
    source: str = ""

    def __post_init__(self) -> None:
        require_positive(price=self.amount)

    @classmethod
    def read(cls, text: str) -> Price:
        """Read a price such as "2", "2.5 EUR" or "€2.5"; US dollars where no currency is named."""
        found = _PRICE.fullmatch(text.strip())
        symbol, code = (found["before"], found["after"]) if found else (None, None)
        if found is None or (symbol and code) or not math.isfinite(float(found["amount"])):
            raise SpecError(f"price {text!r} is no amount with a currency; write 2, '2.5 EUR' or '€2.5'")
        named = symbol or code or "USD"
        return cls(float(found["amount"]), SYMBOLS.get(named, named.upper()))

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency}"


UNLISTED = 2.0
"""Assumed for a GPU that no price list has. [US dollars]"""


def listed_price(gpu: str) -> Price:
    """The list price of an hour of a GPU, by the name that its record has; `UNLISTED` where it is not known."""
    for preset, row in price_list().items():
        if load_preset("gpus", preset)["name"] == gpu:
            return Price(row["price"], source=f"{row['cloud']}'s list price of {row['date']}, {row['page']}")
    return Price(UNLISTED, source=f"an assumption, as no list price of {gpu} is known; give yours by --price")
