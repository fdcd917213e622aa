"""How answers display themselves in a notebook.

Answers live on lower floors than pictures and pages do. They say here only that they can be displayed; `sim` itself,
which stands above all floors, knows the views and loads them when the first answer is looked at.
"""

from __future__ import annotations

import sys
from typing import Any


def _view(answer: Any) -> Any:
    views = sys.modules["sim"].notebook_views()
    return next(views[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in views)


class NotebookDisplay:
    """A record that Jupyter displays as a page, and that can be drawn."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(_view(self)[0](self))

    def plot(self, *what: Any, **options: Any) -> Any:
        """A picture of it, as a matplotlib figure that a notebook shows by itself."""
        return _view(self)[1](self, *what, **options)
