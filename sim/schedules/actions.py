"""An action: a kind of compute, on a virtual stage, of a micro-batch; written `2F0` as in PyTorch."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from sim.errors import ScheduleError


class Kind(StrEnum):
    """F forward, B whole backward, I its input-gradient half, W its weight-gradient half."""

    F = "F"
    B = "B"
    I = "I"  # noqa: E741
    W = "W"


class Action(NamedTuple):
    """One thing a rank does."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


_TEXT = re.compile(r"(\d+)([FBIW])(\d+)")


def parse_action(text: str) -> Action:
    """The action written as `2F0`: stage 2, forward, micro-batch 0."""
    match = _TEXT.fullmatch(text.strip())
    if not match:
        raise ScheduleError(f"{text!r} is not an action; write stage, kind (F, B, I or W) and micro-batch, such as 2F0")
    return Action(int(match[1]), Kind(match[2]), int(match[3]))
