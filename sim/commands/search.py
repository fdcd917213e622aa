"""`flopcast search`: the best plan out of every plan there is, and why not another."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.errors import SpecError


def search(
    scenario: Annotated[Path, typer.Argument(help="A scenario in YAML; its plan says how many GPUs.")],
    more_fields: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="Further fields of --why.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="FIELD=VALUE", help="Override a field; may be repeated.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="How many GPUs, such as 64..4096 or 1024.")] = None,
    objective: Annotated[str, typer.Option(help="step_time, days, cost or memory_headroom.")] = "step_time",
    max_gpus: Annotated[int | None, typer.Option(help="No plan of more GPUs.")] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Of one GPU, such as 72 GB; all it has if not given.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences a step, instead of the scenario's.")] = None,
    cp: Annotated[str | None, typer.Option(help="Context-parallel degrees to try, such as 1,2,4.")] = None,
    overlaps: Annotated[bool, typer.Option("--overlaps", help="Also switch the stack's overlaps on and off.")] = False,
    others: Annotated[bool, typer.Option("--others", help="Also try other schedules on the best two plans.")] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Also the plans that none beats in time, memory and GPUs at once.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="How many plans to show.")] = 10,
    why: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=VALUE", help="Why not a plan with these fields: plan.tp=4.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="A profile's name or YAML file.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that price; as many as pay if not given.")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Folder for the table of all plans, in Parquet; an interrupted search goes on.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the best plan as a scenario.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Every feasible plan, memory-checked and ranked; the best confirmed by the exact engine."""
    from sim.search import other_schedules, why_not
    from sim.search import search as run
    from sim.specs import load_scenario
    from sim.units import parse

    named = _named((*(why or ()), *(more_fields or ())))
    if more_fields and not why:
        raise SpecError(f"{more_fields[0]!r} belongs to no option; write --why {' '.join(more_fields)}")
    if output is not None and not output.parent.is_dir():
        raise SpecError(f"cannot write {output}: there is no folder {output.parent}")
    changes = [*(overrides or ())]
    given = load_scenario(scenario, changes, profile)
    if batch is not None:
        given = given.replace(
            training=given.training.replace(global_batch_size=batch),
            plan=given.plan.replace(dp=1, microbatch_size=1),
        )
        gpus = gpus or str(load_scenario(scenario, changes, profile).plan.num_gpus)
    with _progress() as progress:
        result = run(
            given,
            gpus=None if gpus is None else _range(gpus),
            max_gpus=max_gpus,
            memory_limit_bytes=None if memory_limit is None else parse(memory_limit, "bytes"),
            objective=objective,
            top=top,
            context=None if cp is None else _degrees(cp),
            overlaps=overlaps,
            progress=progress,
            jobs=jobs,
            save=save,
        )
    reason = why_not(result, named) if named else None
    alternatives = other_schedules(result) if others else []
    if output is not None:
        _write(output, result.best[0].scenario)
    if as_json:
        data = result.to_dict()
        if reason is not None:
            data["why"] = {
                "fields": named,
                "ruled_out": reason.ruled_out,
                "rank": reason.rank,
                "step_time_s": None if reason.answer is None else reason.answer.step_time_s,
                "losses_s": reason.losses,
            }
        if others:
            data["other_schedules"] = [
                {"plan": each.scenario.plan.model_dump(mode="json"), "step_time_s": each.step_time_s}
                for each in alternatives
            ]
        if pareto:
            data["pareto"] = [_point(result, place) for place in result.pareto().tolist()]
        typer.echo(json.dumps(data, indent=2, allow_nan=False))
        return
    from sim.report.search import others_view, pareto_view, search_view, why_view
    from sim.report.text import console

    out = console()
    out.print(search_view(result))
    if reason is not None:
        out.print("", why_view(result, named, reason))
    if others:
        out.print("", others_view(result, alternatives))
    if pareto:
        out.print("", pareto_view(result))
    if output is not None:
        out.print(f"\nThe best plan is in {output}")


def _point(result: Any, place: int) -> dict[str, Any]:
    """A priced plan as plain data."""
    return {
        "plan": result.scenario_at(place).plan.model_dump(mode="json"),
        "num_gpus": int(result.space.columns.num_gpus[result.row[place]]),
        "priced_step_time_s": float(result.step_time_s[place]),
        "memory_bytes": float(result.memory_bytes[place]),
    }


def _range(text: str) -> tuple[int, int]:
    """Fewest and most of `64..4096`, or twice the one number."""
    first, dots, last = text.partition("..")
    try:
        return int(first), int(last if dots else first)
    except ValueError:
        raise SpecError(f"--gpus {text!r} must be a number or a range such as 64..4096") from None


def _degrees(text: str) -> tuple[int, ...]:
    try:
        degrees = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        degrees = (0,)
    if degrees[0] < 1:
        raise SpecError(f"--cp {text!r} must be numbers of one or more with commas between, such as 1,2,4")
    return degrees


def _named(fields: tuple[str, ...]) -> dict[str, Any]:
    """The plan's fields that --why names."""
    from sim.specs.yaml12 import parse_yaml

    named = {}
    for field in (each for text in fields for each in text.split()):
        path, equals, value = field.partition("=")
        if not equals or not value:
            raise SpecError(f"--why {field!r} must look like plan.tp=4")
        named[path.removeprefix("plan.")] = parse_yaml(value, f"--why {field!r}")
    return named


def _write(path: Path, scenario: Any) -> None:
    """A scenario file that stands alone: every preset written out, so that it says the same tomorrow."""
    import yaml

    data = scenario.model_dump(mode="json", exclude={"assumed"}, exclude_none=True)
    data["description"] = f"Best plan of a search. {data['description']}".strip()
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, once a search has taken a second."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    begun = time.perf_counter()
    bar = Progress(console=Console(stderr=True), transient=True)
    task: list[Any] = []

    def advance(done: int, size: int) -> None:
        if not task and time.perf_counter() - begun > 1.0:
            bar.start()
            task.append(bar.add_task("plans priced", total=size))
        if task:
            bar.update(task[0], completed=done)

    try:
        yield advance
    finally:
        bar.stop()
