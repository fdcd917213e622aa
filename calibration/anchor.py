"""`flopcast anchor`: a few measured steps of one's own, and every estimate that resembles them is drawn to them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.commands import options
from sim.commands.options import Json, print_json
from sim.errors import SpecError
from sim.units import parse, show, show_time

if TYPE_CHECKING:
    from flopcast_calibration.from_runs import RunsFit
    from flopcast_calibration.readers.training_runs import Run
    from sim.check import Explanation
    from sim.specs import Scenario


def anchor(
    scenarios: Annotated[
        list[Path],
        typer.Argument(metavar="SCENARIO...", help="The runs' scenario files."),
    ],
    measured: Annotated[
        list[str],
        typer.Option(help='Measured step time of each scenario, in order: "12.3 s"; of one scenario, repeats.'),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the profile here.")] = Path("anchored.yaml"),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="Override a field of all: plan.tp=4.", autocompletion=options.fields),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="A profile's name or YAML file, instead of the scenario's.")
    ] = None,
    parameter: Annotated[list[str] | None, typer.Option(help="Fit only these (gemm.max_efficiency, …).")] = None,
    as_json: Json = False,
) -> None:
    """Fit the profile and stack of a scenario to step times that you measured, and write both to one file.

    A value moves further the less certain it is and the more the steps depend on it. `--profile` of every verb takes
    the file. If all steps are too far off to learn from, no file is written, and the exit code is 2.
    """
    from rich.console import Console

    from flopcast_calibration.commands.shared import check_out
    from flopcast_calibration.from_runs import fit_runs, parameters_named
    from flopcast_calibration.readers.training_runs import run_of
    from flopcast_calibration.write import write_runs_profile
    from sim.check import check_possible, explanations

    if out.suffix not in (".yaml", ".yml") and not out.is_dir():
        out = out.with_name(f"{out.name}.yaml")  # what every verb knows for a file
    check_out(out)
    names = parameters_named(parameter)
    times = _times(scenarios, measured)
    builds = [partial(_changed, path, settings or (), profile) for path in scenarios]
    runs = [run_of(build(()), time) for build, time in zip(builds, times, strict=True)]
    _check_alike(scenarios, runs)
    for run in runs:
        check_possible(run.choices[0], run.measured)
    runs = _repeats_as_one(runs)
    found = fit_runs(runs, names)
    behind = explanations(builds, times)
    too_full = [(run.id, answer) for run, answer in zip(found.runs, found.answers, strict=True) if not answer.fits]
    learnt = len(found.too_far) < len(found.runs)
    if learnt:
        write_runs_profile(found, out, ", ".join(dict.fromkeys(run.id for run in runs)))
    if as_json:
        causes = {"does_not_fit": [name for name, _ in too_full], "behind": [each._asdict() for each in behind]}
        print_json({"profile": str(out) if learnt else None, **facts_of(found), **causes})
    else:
        print_ = Console(highlight=False, markup=False).print
        for part in _view(found, too_full, behind):
            print_(part, soft_wrap="(-s " in str(part))  # what is typed again stays on one line
        if learnt:
            print_(f"profile: {out}", soft_wrap=True)
            first = shlex.quote(str(scenarios[0]))
            print_(f"use it:  flopcast estimate {first} --profile {shlex.quote(str(out))}", soft_wrap=True)
    if not learnt:
        kept = f"{out} is as it was" if out.exists() else f"{out} was not written"
        raise SpecError(
            f"nothing was learnt, so {kept}: what was measured is further from the prediction than any value explains; "
            "look at what the scenario states"
        )


anchor.examples = (  # type: ignore[attr-defined]
    'anchor scenarios/megatron-2021/39.1b.yaml --measured "16.9 s" -o mine.yaml',
    'anchor scenarios/megatron-2021/18.4b.yaml scenarios/megatron-2021/39.1b.yaml --measured "10.3 s" '
    '--measured "16.9 s" -o mine.yaml',
)


def _times(scenarios: Sequence[Path], measured: Sequence[str]) -> list[float]:
    """Step time of every scenario: one each, or the median of a single one's repeats. [s]"""
    times = [parse(text, "s") for text in measured]
    if len(scenarios) == 1:
        return [median(times)]
    if len(times) != len(scenarios):
        raise SpecError(
            f"{len(scenarios)} scenarios and {len(times)} step times; give --measured once for each, in order"
        )
    return times


def _check_alike(scenarios: Sequence[Path], runs: Sequence[Run]) -> None:
    """Refuse runs that one file of values cannot be of."""
    for path, run in zip(scenarios[1:], runs[1:], strict=True):
        for what in ("profile", "stack"):
            one, other = (getattr(each.choices[0], what).name for each in (runs[0], run))
            if one != other:
                raise SpecError(
                    f"{scenarios[0]} has {what} {one!r} and {path} {other!r}: no profile fits both; make a file of each"
                )


def _repeats_as_one(runs: Sequence[Run]) -> list[Run]:
    """Runs of one scenario are repeats of one measurement: their median."""
    repeats: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        asked = run.choices[0]  # whatever profile and stack it has
        parts = (asked.model, asked.cluster, asked.plan, asked.training)
        repeats.setdefault(tuple(part.model_dump_json() for part in parts), []).append(run)
    return [replace(same[0], measured=median([run.measured for run in same])) for same in repeats.values()]


def facts_of(found: RunsFit) -> dict[str, Any]:
    """Runs and values as plain data with stable keys, for JSON."""
    return {
        "runs": [
            {
                "scenario": run.id,
                "measured_s": run.measured,
                "before_s": run.measured * (1 + float(before)),
                "after_s": run.measured * (1 + float(after)),
                "explained": run in found.explained,
                "too_far": run in found.too_far,
            }
            for run, before, after in zip(found.runs, found.before, found.errors, strict=True)
        ],
        "moved": [
            {"parameter": item.name, "before": item.prior, "after": item.value, "sd": item.width}
            for item in found.parameters
            if item.moved
        ],
        "not_moved": [item.name for item in found.parameters if not item.moved],
    }


AGREES = 0.02
"""Share by which a predicted step may be off and still be as it was measured: no value need move."""
LIKELY = 0.05
"""How likely what may be behind a measurement has to be, to be named."""
_EARLIER = (
    "This fit begins with its values, but intervals will rest on the runs given now. Give all scenarios and step times "
    "together, with the profile that it was made from, and all of them count."
)
_TOO_FAR = (
    "further off than three standard deviations of all that is uncertain. The scenario is probably not what ran: look "
    "at the causes below, at training.precision, training.global_batch_size, training.sequence_length and the plan's "
    "degrees, and whether the log counts micro-batches as steps."
)
_MISSING = (
    "The scenario may miss something: precision, kernels, recomputation, a slow node. Estimates are less sure for it."
)
_TOO_FULL = (
    "and yet it ran. It probably kept less than the scenario says: look at plan.recompute, plan.zero_stage, "
    "plan.microbatch_size and training.optimizer before you trust the values above."
)


def _view(found: RunsFit, too_full: Sequence[tuple[str, Any]], behind: Sequence[Explanation]) -> Iterator[Any]:
    """The values that moved, what was measured and predicted of every run, and what may be behind the times."""
    earlier = found.runs[0].choices[0].profile
    if names := list(dict.fromkeys(run.name for run in earlier.provenance.measured)):
        yield f"Profile {earlier.name} was drawn to runs before ({'; '.join(names)}). {_EARLIER}"
    yield from _moved(found)
    for run, before, after in zip(found.runs, found.before, found.errors, strict=True):
        yield from _step(found, run, before, after)
    for name, answer in too_full:
        needed, available = (show(each, "B") for each in (answer.largest.total, answer.memory_available_bytes))
        yield f"{name}: the scenario needs {needed} a GPU and has {available}, {_TOO_FULL}"
    yield "possible causes of the difference, the likeliest first:"
    for each in behind:
        if each.probability >= LIKELY:
            changes = f" (-s {' -s '.join(map(shlex.quote, each.changes))})" if each.changes else ""
            yield f"  {each.probability:4.0%}  {each.name or 'none beyond what the scenario states'}{changes}"
    if behind[0].changes:
        yield f"  Look at: {behind[0].look}. If that is the cause, add the setting above and anchor again."


def _moved(found: RunsFit) -> Iterator[Any]:
    """A table of the values that moved, most first, and why the others did not."""
    from sim.table import rows_table

    ranked = sorted(found.parameters, key=lambda each: -abs(each.value - each.prior) / each.prior_width)
    rows = [
        (item.name, f"{item.prior:.4g}", f"{item.value:.4g}", f"{item.width:.2g}", "at its bound" * item.at_bound)
        for item in ranked
        if item.moved
    ]
    still = [item.name for item in found.parameters if not item.moved]
    used = [abs(error) for run, error in zip(found.runs, found.before, strict=True) if run not in found.too_far]
    if rows:
        yield rows_table(("parameter", "before", "after", "± (1 sd)", ""), rows, left=("parameter", ""))
    if still and used:
        why = "the steps are nearly as predicted" if max(used) < AGREES else "the measured steps do not depend on them"
        yield f"unchanged, as {why}: {', '.join(still)}"


def _step(found: RunsFit, run: Run, before: float, after: float) -> Iterator[str]:
    """What was measured and predicted of a run, and what values alone cannot explain."""
    from sim.uncertainty import REST

    name = f"{run.id}: " if len(found.runs) > 1 else ""
    measured, first, last = (show_time(run.measured * (1 + each)) for each in (0.0, before, after))
    yield f"{name}step time: measured {measured}, predicted {first} before this fit, {last} after it"
    if run in found.too_far:
        yield f"  It changes nothing, as it is {1 / (1 + before):.2f} times the prediction: {_TOO_FAR}"
    elif run not in found.explained:
        yield f"  What remains is more than runs of one framework differ by ({REST:.0%}). {_MISSING}"


def _changed(path: Path, settings: Sequence[str], profile: str | None, changes: Sequence[str]) -> Scenario:
    """The scenario of a file under settings, a profile and changes."""
    from sim.specs import load_scenario

    return load_scenario(path, [*settings, *changes], profile)
