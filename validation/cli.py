"""`flopcast validate`: answers against reality."""

from __future__ import annotations

import typer

from validation.job.cli import register

app = typer.Typer(help="Compare predictions with what was measured.", no_args_is_help=True)


@app.callback()
def _validate() -> None:
    """Compare predictions with what was measured."""


register(app)
