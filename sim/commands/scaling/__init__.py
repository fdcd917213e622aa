"""`flopcast scaling`: laws, walls and failures, one question a command."""

from collections.abc import Callable

import typer

from sim.commands.examples import examples
from sim.commands.scaling.laws import batch, fit, laws, model, optimal
from sim.commands.scaling.runs import goodput, limits

app = typer.Typer(help="Scaling laws side by side: loss, data, batch, limits, failures and cost.", no_args_is_help=True)
EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    optimal: ("scaling optimal --budget 5.76e23", "scaling optimal --budget 1e24 --unique-tokens 100B"),
    model: ("scaling model gpt3-175b --tokens 300B --loss 2.0",),
    batch: ("scaling batch llama3-405b --tokens 15.6T --batch 16M",),
    limits: ("scaling limits --budget 1e28",),
    goodput: ("scaling goodput llama3-405b --gpus 16384 --spares 16",),
    fit: ("scaling fit runs.csv",),
    laws: ("scaling laws",),
}
for command, lines in EXAMPLES.items():
    app.command(epilog=examples(*lines))(command)
