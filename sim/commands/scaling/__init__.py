"""`flopcast scaling`: laws, walls and failures, one question a command."""

import typer

from sim.commands.scaling.laws import batch, fit, laws, model, optimal
from sim.commands.scaling.runs import goodput, limits
from sim.commands.scaling.strategies import strategies

app = typer.Typer(help="Scaling laws side by side: loss, data, batch, walls, failures and cost.", no_args_is_help=True)
for command in (optimal, model, batch, limits, strategies, goodput, fit, laws):
    app.command()(command)
