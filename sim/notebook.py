"""How answers display themselves in a notebook.

Answers live on lower floors than pictures and pages do. They say here only that they can be displayed; `sim` itself,
which stands above all floors, says where the views are, and they are loaded when the first answer is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class View(NamedTuple):
    """What is known of displaying one type.

    html : (answer) -> self-contained HTML, safe to put into a page.
    plot : (answer, **options) -> a matplotlib figure.
    """

    html: Callable[[Any], str]
    plot: Callable[..., Any]


_provider: Callable[[], Mapping[str, View]] | None = None


def provide(views: Callable[[], Mapping[str, View]]) -> None:
    """Say where views come from: a function that loads them, by name of the type."""
    global _provider
    _provider = views


def _view(answer: Any) -> View:
    assert _provider is not None, "sim provides the views when it is imported"
    views = _provider()
    return next(views[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in views)


class NotebookDisplay:
    """A record that Jupyter displays as a page, and that can be drawn."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _view(self).html(self)

    def plot(self, **options: Any) -> Any:
        """A picture of it, as a matplotlib figure that a notebook shows by itself."""
        return _view(self).plot(self, **options)
