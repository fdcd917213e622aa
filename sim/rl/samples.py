"""What one step of reinforcement learning asks for: prompts, groups of responses, and how long these are.

Lengths are a distribution, not a number: a group is done with its longest response, a batch that waits for all of them
with the longest of all, and the average alone decides throughput only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, log, sqrt

import numpy as np

from sim.arrays import Floats
from sim.errors import SpecError, require_not_negative, require_positive

CELLS = 256
"""Pieces into which the longest response is cut."""
SPREAD = 0.8
"""Standard deviation of lengths over their mean, before the longest are cut off. Assumed, between what two logs say by
the share that is cut off: short answers of 325 tokens, 0.4 % at 1,024, give 0.5 (volcengine/verl issue 1208); reasoning
of 1,676, 12 % at a limit that we take to be 4,096, gives 1.3 (Tjh-UKN/vime:summary.json@fd237c656b)."""
NARROW = 1e-6
"""Spread below which lengths count as all alike."""
LONGEST = 4.0
"""Longest response over the mean, where no limit is given. Assumed."""


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Response lengths, cut off at the longest.

    longest : tokens at which generation stops. [tokens]
    survival : share of responses that are longer than the middle of every cell.
    """

    longest: float
    survival: Floats

    @property
    def cell(self) -> float:
        """Tokens of a cell. [tokens]"""
        return self.longest / len(self.survival)

    @property
    def middles(self) -> Floats:
        """Middle of every cell. [tokens]"""
        middles: Floats = np.arange(0.5, len(self.survival)) * self.cell
        return middles

    @property
    def mean(self) -> float:
        """Mean length: the sum of what survives. [tokens]"""
        return float(self.survival.sum() * self.cell)

    @property
    def mean_square(self) -> float:
        """Mean of the squared lengths. [tokens²]"""
        return float(2.0 * (self.survival * self.middles).sum() * self.cell)

    @property
    def mean_age(self) -> float:
        """How far a response that is being written has got on average, where others follow when one ends: E[L²] / 2E[L]
        (renewal theory). [tokens]"""
        return self.mean_square / (2.0 * self.mean)

    def beyond(self, tokens: Floats) -> Floats:
        """Share of responses that are longer than so many tokens. [tokens]"""
        places = np.concatenate([[0.0], self.middles, [self.longest]])
        values = np.concatenate([[1.0], self.survival, [self.survival[-1]]])
        found: Floats = np.interp(tokens, places, values)
        return np.where(tokens >= self.longest, 0.0, found)


def lognormal_lengths(mean: float, longest: float | None = None, spread: float = SPREAD) -> Lengths:
    """Log-normal lengths that are cut off at the longest; their mean, as logs print it, is that of what is left.

    mean : mean length of a response. [tokens]
    longest : tokens at which generation stops; default: 4 times the mean.
    spread : standard deviation of the lengths over their mean, before any is cut off. 0: all are alike.

    Raises SpecError: a mean that is not below the longest.
    """
    from scipy.optimize import brentq
    from scipy.special import erfc

    longest = LONGEST * mean if longest is None else longest
    require_positive(mean_response=mean, longest_response=longest)
    require_not_negative(spread=spread)
    if mean > longest or (spread and mean > 0.995 * longest):
        raise SpecError(
            f"responses of {mean:,.0f} tokens on average, but none longer than {longest:,.0f}: the mean must be below "
            f"the longest. Raise the longest to {2 * mean:,.0f}, or give a spread of 0 and a longest of {mean:,.0f}"
        )
    if spread < NARROW:
        return Lengths(mean, np.ones(CELLS))
    logs, sigma = np.log((np.arange(CELLS) + 0.5) * longest / CELLS), sqrt(2.0 * log(hypot(1.0, spread)))

    def survival(centre: float) -> Floats:
        return np.asarray(0.5 * erfc((logs - centre) / (sigma * sqrt(2.0))))

    low, high = log(mean) - 10.0 * sigma - 10.0, log(longest) + 10.0 * sigma
    return Lengths(longest, survival(brentq(lambda centre: survival(centre).mean() * longest / mean - 1.0, low, high)))


@dataclass(frozen=True, slots=True)
class Samples:
    """What a step trains on.

    prompts : prompts a step trains on.
    group : responses to each prompt.
    prompt_tokens : length of a prompt. [tokens]
    lengths : of responses.
    turns : calls of tools or of an environment in a response, one after the other.
    tool_s : time of each of these calls. [s]
    """

    prompts: int
    group: int
    prompt_tokens: float
    lengths: Lengths
    turns: int = 0
    tool_s: float = 0.0

    def __post_init__(self) -> None:
        require_not_negative(turns=self.turns, tool_s=self.tool_s)
        require_positive(prompts=self.prompts, group=self.group, prompt_tokens=self.prompt_tokens)

    @property
    def responses(self) -> int:
        """Responses that are written for a step, and that it trains on."""
        return self.prompts * self.group

    @property
    def mean_tokens(self) -> float:
        """Prompt and response. [tokens]"""
        return self.prompt_tokens + self.lengths.mean

    @property
    def tokens(self) -> float:
        """Tokens that a step trains on, prompts included. [tokens]"""
        return self.responses * self.mean_tokens

    @property
    def packed_length(self) -> float:
        """Length as attention sees it where samples are packed: Σ l² / Σ l. [tokens]"""
        prompt, lengths = self.prompt_tokens, self.lengths
        squares = prompt**2 + 2.0 * prompt * lengths.mean + lengths.mean_square
        return squares / self.mean_tokens

    @property
    def longest_tokens(self) -> float:
        """Prompt and longest response. [tokens]"""
        return self.prompt_tokens + self.lengths.longest
