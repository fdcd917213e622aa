"""Where `flopcast` begins: once `main` has begun, an interrupt ends it in one line, also while it still loads.

An interrupt before that ends in a traceback of Python's own, which no program can prevent. To keep that time short,
what runs before `main`, here and in `sim/__init__.py`, imports next to nothing.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in `sim/__init__.py`
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def main() -> None:
    """Load the command line and run it."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so by a shell's background job
    if heeded:
        signal.signal(signal.SIGINT, _leave)
    import gc

    # What is loaded stays: looking through it for garbage every 700 objects takes a tenth of a short answer's time.
    gc.set_threshold(50_000, *gc.get_threshold()[1:])
    # Nor does anything here need pydantic's plugins, for which every installed package would be looked through.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from sim.cli import main as run

    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:  # before or after run's own care
        _leave()
    finally:
        gc.freeze()  # the process ends: no last search either


def _leave(signum: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """Nothing is computed yet that could be lost, and modules half loaded would only complain."""
    os.write(2, b"flopcast: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
