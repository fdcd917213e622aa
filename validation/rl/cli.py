"""`flopcast validate rl`: published rates of inference and steps of reinforcement learning beside ours."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from sim.commands.examples import examples
from sim.commands.options import Json
from sim.commands.output import print_json, print_view
from sim.table import plain_table
from sim.units import show_time

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flopcast_validation.rl.engines import Rate
    from flopcast_validation.rl.published import Published


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command(name="rl", epilog=examples("validate rl", "validate rl --json"))(rl)


def rl(as_json: Json = False) -> None:
    """Rates of TensorRT-LLM and step times of NeMo RL, as printed, beside what `flopcast rl` predicts."""
    from flopcast_validation.rl.engines import published_rates
    from flopcast_validation.rl.published import published_steps

    rates, steps = published_rates(), published_steps()
    if as_json:
        print_json(
            {
                "rates": [{**asdict(rate), "share": rate.share} for rate in rates],
                "steps": [{"name": run.name, "measured_s": run.measured_s, **run.predicted.to_dict()} for run in steps],
            }
        )
        return
    print_view(*_rates(rates), "", *_steps(steps))


def _rates(rates: list[Rate]) -> tuple[RenderableType, ...]:
    table = plain_table("engine", "rates", "median", "least", "most")
    by_engine: dict[str, list[float]] = {}
    for rate in rates:
        by_engine.setdefault(rate.engine, []).append(rate.share)
    by_engine["all"] = [rate.share for rate in rates]
    for name, shares in by_engine.items():
        table.add_row(name, str(len(shares)), *(f"{each(shares):.0%}" for each in (median, min, max)))
    return Text("Tokens a second of TensorRT-LLM 1.0, of what is predicted", style="bold"), table


def _steps(runs: list[Published]) -> tuple[RenderableType, ...]:
    table = plain_table("run", "measured", "predicted", "error", "rollouts", "training", "limited by",
                        left=("run", "limited by"))  # fmt: skip
    for run in runs:
        step = run.predicted
        table.add_row(
            run.name, show_time(run.measured_s), show_time(step.step_time_s), f"{run.error:+.0%}",
            show_time(step.period.rollout_s), show_time(step.work.seconds), step.limit,
        )  # fmt: skip
    ratios = [1.0 / (1.0 + run.error) for run in runs]
    words = (
        f"measured over predicted: {min(ratios):.1f} to {max(ratios):.1f}, {median(ratios):.1f} in the median; nothing "
        "is fitted to these runs"
    )
    return Text("GRPO steps of NeMo RL 0.4", style="bold"), table, Text(words, style="dim")
