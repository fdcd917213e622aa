"""flopcast under its own name: the public names of `sim`, each loaded when it is first asked for.

>>> import flopcast
>>> flopcast.estimate("scenarios/gpt-1t-3072-a100.yaml")
<Estimate gpt-1t-3072-a100: 105 s a step, 491 PFLOP/s, 51.3% of peak>
"""

from __future__ import annotations

import sim
from sim import __all__, __version__

TYPE_CHECKING = False  # as in `sim`
if TYPE_CHECKING:
    from typing import Any

    from sim import *  # noqa: F403

__all__ = [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(sim, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names and no others, which is what an interpreter offers when Tab is pressed."""
    return sorted(__all__)
