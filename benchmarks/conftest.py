"""The yardstick of benchmarks that have none of their own."""

import pytest
from timing import seconds


@pytest.fixture(scope="module")
def loop():
    """The yardstick: a Python loop of 65,536 additions over a list, as many as the main scenario has actions. [s]"""

    def add():
        total, values = 0.0, [1.0] * 65536
        for index in range(65536):
            total += values[index]
        return total

    return seconds(add)
