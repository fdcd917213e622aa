"""`flopcast validate rl`: published steps of reinforcement learning beside ours."""

from __future__ import annotations

import typer

from sim.commands.examples import examples
from sim.commands.options import Json
from sim.commands.output import print_json, print_view


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command(name="rl", epilog=examples("validate rl", "validate rl --json"))(rl)


def rl(as_json: Json = False) -> None:
    """NeMo RL's printed step times of GRPO on H100, on policy and one step off, predicted by `flopcast rl`."""
    from statistics import median

    from rich.text import Text

    from sim.table import plain_table
    from sim.units import show_time
    from validation.rl.published import published_steps

    runs = published_steps()
    if as_json:
        print_json([{"name": run.name, "measured_s": run.measured_s, **run.predicted.to_dict()} for run in runs])
        return
    table = plain_table("run", "measured", "predicted", "error", "rollouts", "training", "limited by",
                        left=("run", "limited by"))  # fmt: skip
    for run in runs:
        step = run.predicted
        table.add_row(
            run.name, show_time(run.measured_s), show_time(step.step_time_s), f"{run.error:+.0%}",
            show_time(step.period.rollout_s), show_time(step.work.seconds), step.limit,
        )  # fmt: skip
    ratios = [1.0 / (1.0 + run.error) for run in runs]
    print_view(
        table,
        Text(
            f"measured over predicted: {min(ratios):.1f} to {max(ratios):.1f}, {median(ratios):.1f} in the median; "
            "nothing is fitted to these runs",
            style="dim",
        ),
    )
