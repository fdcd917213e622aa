"""Searches of all plans, whether a framework can run them or not: what the closed form and its proofs are tested on."""

from functools import partial

from sim import search as sim_search
from sim.search.sweep import sweep as sim_sweep

search = partial(sim_search, any_framework=True)
sweep = partial(sim_sweep, any_framework=True)
