"""Searches of all plans, whether a framework can run them or not: what the closed form and its proofs are tested on."""

from functools import partial

import numpy as np

from sim import search as sim_search
from sim.search.formula import price_space
from sim.search.sweep import sweep as sim_sweep

search = partial(sim_search, any_framework=True)
sweep = partial(sim_sweep, any_framework=True)


def price_all(space):
    """Yield the number, rows, step times and memory of one category after the other. [-, -, s, bytes]"""
    priced = price_space(space)
    for number in np.unique(priced.category).tolist():
        here = priced.take(priced.category == number)
        yield number, here.row, here.step_time_s, here.memory_bytes
