"""Response lengths drawn at random, and the mean of the longest, against which the formulas are held."""

import numpy as np


def drawn(lengths, count, seed=0):
    """Random lengths, by inversion; who outlives the last cell is cut off at the longest. [tokens]"""
    chances = np.random.default_rng(seed).random(count)
    found = np.interp(chances, lengths.survival[::-1], lengths.middles[::-1])
    return np.maximum(np.where(chances < lengths.survival[-1], lengths.longest, found), 1.0)


def expected_longest(lengths, count):
    """Mean of the longest of so many responses. [tokens]"""
    return float((1.0 - (1.0 - lengths.survival) ** count).sum() * lengths.cell)
