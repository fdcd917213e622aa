"""`flopcast check`: is my run normal? Measured step times beside the estimate of their scenario."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.commands import options
from sim.commands.options import AsJson, Overrides, ProfileOption, print_json, print_view
from sim.errors import SpecError

if TYPE_CHECKING:
    from sim.foreign.logs import LoggedSteps
    from sim.specs import Scenario


def check(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG",
            help="A log of Megatron-LM, Megatron-Bridge, NeMo, torchtitan or DeepSpeed, a trainer_state.json, or a CSV "
            "of W&B; - reads it from a pipe. With --measured, no log but the scenario alone.",
            show_default=False,
        ),
    ],
    scenario: Annotated[
        Path | None,
        typer.Argument(
            help="The run's scenario in YAML; not needed where Megatron-LM printed its arguments.",
            show_default=False,
            autocompletion=options.scenario_files,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="The machine, where there is no scenario: flopcast presets list clusters.",
            autocompletion=options.preset("clusters"),
        ),
    ] = None,
    measured: Annotated[
        list[str] | None, typer.Option(help='Measured step time, instead of a log: "9.1 s"; several as a log has them.')
    ] = None,
    overrides: Overrides = None,
    profile: ProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """Is my run normal? Measured step times beside the estimate, and what to look at first if they differ."""
    from sim.check import check as run
    from sim.check import measure
    from sim.foreign.logs import LoggedSteps, Row, read_log, seconds_of
    from sim.units import parse

    if measured and scenario is not None:
        raise SpecError(f"--measured says how long a step takes, and so does the log {log}; leave one of them out")
    scenario = log if measured else scenario
    given = [Row(parse(text, "s"), line) for line, text in enumerate(measured or ())]
    logged = LoggedSteps("given by --measured", rows=given) if measured else read_log(log)
    build, name = _scenario(log, logged, scenario, cluster, overrides or (), profile)
    found = run(build, measure(seconds_of(logged, build(()), log)))
    changes = (*(overrides or ()), *([f"profile={profile}"] if profile else ()))
    own = "".join(f" -s {shlex.quote(each)}" for each in changes)
    command = f"flopcast estimate {name}{own}"
    anchor = f"flopcast anchor {name} --measured '{found.measured.seconds:.4g} s'{own} -o mine.yaml"
    made = f"flopcast import {shlex.quote(str(log))} --cluster {cluster} -o {name}" if scenario is None else ""
    if as_json:
        commands = [each for each in (made, anchor) if each]
        print_json({**found.to_dict(), "source": logged.source, "notes": logged.notes, "next": commands})
        return
    from sim.report.check import check_view
    from sim.report.terminal import console

    print_view(check_view(found, logged, command, made, anchor, console().width))


def _scenario(
    log: Path,
    logged: LoggedSteps,
    scenario: Path | None,
    cluster: str | None,
    overrides: Sequence[str],
    profile: str | None,
) -> tuple[Callable[[Sequence[str]], Scenario], str]:
    """(the scenario under further overrides, the name of its file).

    Raises
    ------
    SpecError
        No scenario is given, and the log does not say what runs, or nobody where.
    """
    from sim.specs import build_scenario, load_scenario

    if scenario is not None:
        if cluster is not None:
            raise SpecError(f"{scenario} says its cluster; to try another one say -s cluster={cluster}")
        if str(scenario) == "-":
            raise SpecError("the scenario is read more than once, with one change at a time; give a file instead of -")
        path = scenario
        return lambda more: load_scenario(path, [*overrides, *more], profile), shlex.quote(str(path))
    if not logged.arguments or str(log) == "-":
        raise SpecError(
            f"{log} does not say what runs; give its scenario too: flopcast check {log} SCENARIO. Of the run's "
            "config.json, launch script, TOML or recipe one is made by flopcast import FILE -o run.yaml"
        )
    if cluster is None:
        raise SpecError(
            f"{log} has Megatron-LM's arguments, but not which machine they ran on; add --cluster NAME, one of "
            "flopcast presets list clusters"
        )
    from sim.foreign.importers import Given, import_text

    imported = import_text(logged.arguments, str(log), Given(cluster=cluster), kind="megatron")
    data = imported.data | ({"profile": profile} if profile else {})
    return lambda more: build_scenario(data, [*overrides, *more], str(log)), shlex.quote(f"{log.stem}-scenario.yaml")
