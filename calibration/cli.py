"""`flopcast calibrate`: measure a machine, fit a profile, look at it, hold two against each other."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.commands.examples import examples
from sim.commands.progress import progress_bar, spinner
from sim.errors import ProfileError, SpecError, nearest

#: Measurements of shipped profiles.
_SHIPPED_DATA = Path(__file__).parent / "data"

#: A fit whose median error on its own data is above this is not written unasked.
MOST_ERROR = 0.25

app = typer.Typer(help="Measure a machine and fit the profile that every estimate then uses.", no_args_is_help=True)

Node = Annotated[
    str | None,
    typer.Option(help="Node preset that was measured, or cluster preset; found by the device's name if not given."),
]
Network = Annotated[
    str | None,
    typer.Option(help="What all network cards of a node carry together ('3200 Gbit/s'); default: the preset's."),
]
Base = Annotated[
    str | None,
    typer.Option(help="Profile whose values stand in for what was not measured; default: the GPU's own."),
]
Draws = Annotated[int, typer.Option(min=1, help="Bootstrap refits for the intervals.")]
Force = Annotated[bool, typer.Option("--force", help="Write the profile even where a fit misses its own data.")]


@app.command(
    epilog=examples(
        "calibrate run -o mine.yaml",
        "calibrate run --quick -o mine.yaml",
    )
)
def run(
    out: Annotated[Path, typer.Option("--out", "-o", help="Profile to write; the raw data go beside it.")] = Path(
        "profile.yaml"
    ),
    device: Annotated[str, typer.Option(help="cuda, cpu, or auto.")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shapes, under two minutes.")] = False,
    ranks: Annotated[int | None, typer.Option(min=1, help="Processes for collectives; 1 leaves them out.")] = None,
    scenario: Annotated[Path | None, typer.Option(help="Also measure this scenario's matrix multiplies.")] = None,
    node: Node = None,
    network: Network = None,
    base: Base = None,
    draws: Draws = 20,
    force: Force = False,
) -> None:
    """Measure this machine with torch and fit a profile. An interrupted run goes on where it stopped.

    On several nodes: torchrun --nnodes 2 --nproc-per-node 8 … -m sim.cli calibrate run, or srun with a task a GPU.
    """
    from calibration.bench.machine import describe
    from calibration.bench.ranks import launched_job
    from calibration.bench.run import pick_device, run_suite
    from sim import load_scenario

    # Whatever can be wrong with the request is found before anything is measured.
    if device not in ("auto", "cuda", "cpu"):
        raise SpecError(f"unknown device {device!r}{nearest(device, ('auto', 'cuda', 'cpu'))}")
    job = launched_job()
    leads = job is None or job.rank == 0
    if leads:
        _check_out(out)
    chosen = pick_device(device)
    if leads:
        _asked(describe(chosen), node, network, base)
    raw = out.with_suffix(".jsonl")
    question = load_scenario(scenario) if scenario is not None else None
    with progress_bar("measuring") if leads else nullcontext() as bar:

        def report(what: str, done: int, total: int) -> None:
            if bar is not None:
                bar(done, total, what)

        data = run_suite(raw, chosen, quick=quick, ranks=ranks, scenario=question, report=report)
    if data is not None:
        for line in _failures(data):
            typer.secho(f"could not be measured: {line}", err=True)
        _fit(data, out, raw, _asked(data.machine, node, network, base), draws, force)


@app.command(
    epilog=examples(
        "calibrate fit all_reduce.log gemm.csv -o mine.yaml --node dgx-a100-80gb",
    )
)
def fit(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Journals of runs, tables, and logs of nccl-tests and other programs; any number of files."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Profile to write.")] = Path("profile.yaml"),
    operation: Annotated[str | None, typer.Option(help="Collective of logs that do not say it.")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks of logs that do not list them.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of logs that do not name their hosts.")] = None,
    node: Node = None,
    network: Network = None,
    base: Base = None,
    draws: Draws = 20,
    force: Force = False,
) -> None:
    """Fit a profile to measurements that exist already: whatever they identify, all else as in the base profile."""
    from calibration.measurement import MeasurementSet, least_disturbed, write_journal
    from calibration.readers import read_measurements

    _check_out(out)
    machine: dict[str, Any] = {}
    items = []
    for path in files:
        log = read_measurements(path, operation, ranks, nodes)
        for note in log.notes:
            typer.secho(f"{path}: {note}", err=True)
        _join(machine, log.machine, path)
        items += log.measurements
    data = MeasurementSet(machine, tuple(least_disturbed(items)))
    asked = _asked(data.machine, node, network, base)
    raw = out.with_suffix(".jsonl")
    result = _fitted(data, out, asked, draws, force)
    if raw not in files:
        write_journal(raw, {"device": "not stated", **machine, "node": asked[0].name}, data.measurements)
    _write(result, out, raw)


def _join(machine: dict[str, Any], facts: dict[str, Any], path: Path) -> None:
    """Add what a file says of its machine; files of two machines make no profile."""
    device, other = machine.get("device"), facts.get("device")
    if device and other and device != other and "not stated" not in (device, other):
        raise ProfileError(f"{path} was measured on {other!r}, another file on {device!r}; fit one machine at a time")
    machine.update({name: value for name, value in facts.items() if value != "not stated" or name not in machine})


@app.command(
    "from-runs",
    epilog=examples(
        "calibrate from-runs runs.csv -o mine.yaml",
    ),
)
def from_runs(
    runs: Annotated[Path, typer.Argument(help="CSV of measured training runs, in the columns of docs/validation.md.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Profile to write, with the stack's values in it.")] = Path(
        "profile.yaml"
    ),
    stack: Annotated[
        str | None, typer.Option(help="Only the runs of this stack; needed where there are several.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="Only runs whose GPU's name holds this.")] = "",
    precision: Annotated[str, typer.Option(help="Only runs of this precision.")] = "",
    base: Annotated[str | None, typer.Option(help="Profile to start from; default: the one of the runs' GPU.")] = None,
    parameter: Annotated[list[str] | None, typer.Option(help="Fit only these (gemm.max_efficiency, …).")] = None,
    folds: Annotated[int, typer.Option(min=0, help="Groups of families left out in turn; 0 skips it.")] = 4,
) -> None:
    """Fit a profile to measured training runs, drawn to the bottom-up one and cross-validated by family."""
    from calibration.from_runs import fit_runs
    from calibration.priors import parameters_named
    from calibration.readers.training_runs import read_training_runs, unread_columns
    from calibration.write import write_runs_profile
    from sim.table import Table

    _check_out(out)
    names = parameters_named(parameter)
    unread = unread_columns(runs)
    if unread:
        typer.echo(f"columns that nothing reads: {', '.join(unread)}")
    read = read_training_runs(runs, base)
    chosen = [
        run
        for run in read
        if run.choices and gpu in run.gpu and precision in run.precision and stack in (None, run.choices[0].stack.name)
    ]
    print_ = _console().print
    left = [run for run in read if run.skipped]
    if not chosen:
        raise SpecError(f"no run of {runs} is left to fit: {_why_none(read, stack, gpu, precision)}")
    kinds = sorted({(run.choices[0].profile.name, run.choices[0].stack.name) for run in chosen})
    if len(kinds) > 1:
        listed = "; ".join(f"profile {name}, stack {of}" for name, of in kinds)
        raise SpecError(f"runs of several kinds cannot share one fit: {listed}; choose with --stack and --gpu")
    found = fit_runs(chosen, names, folds=folds, report=lambda text: print_(f"[dim]{text}[/dim]"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("parameter", "bottom-up", "fitted", "±", "least", "most", ""):
        table.add_column(name, justify="left" if name in ("parameter", "") else "right", no_wrap=True)
    for item in found.parameters:
        ends = (f"{min(item.left_out):.4g}", f"{max(item.left_out):.4g}") if item.left_out else ("", "")
        verdict = "" if item.identified else "not identified"
        table.add_row(item.name, f"{item.prior:.4g}", f"{item.value:.4g}", f"{item.width:.2g}", *ends, verdict)
    print_(table)
    if found.left_out_errors is not None:
        print_("least, most: of the fits that each left a group of families out")
    count = len({run.family for run in found.runs})
    not_modelled = len(left) + len(chosen) - len(found.runs)
    print_(f"{len(found.runs)} runs of {count} families; {not_modelled} rows of the file are not modelled")
    for what, errors in (
        ("before", found.before),
        ("fitted", found.errors),
        *((("left out", found.left_out_errors),) if found.left_out_errors is not None else ()),
    ):
        print_(f"{what:9} mean absolute error {abs(errors).mean():6.1%}   bias {errors.mean():+6.1%}")
    write_runs_profile(found, out, runs.name)
    print_(f"profile: {out}")
    print_(f"use it:  flopcast estimate SCENARIO --profile {shlex.quote(str(out))}", soft_wrap=True)


def _why_none(read: list[Any], stack: str | None, gpu: str, precision: str) -> str:
    """What to change where a choice leaves no run."""
    usable = [run for run in read if run.choices]
    if not usable:
        return f"none of {len(read)} rows can be modelled ({read[0].id}: {read[0].skipped})"
    stacks = {run.choices[0].stack.name for run in usable}
    if stack is not None and stack not in stacks:
        return f"no run of stack {stack!r}{nearest(stack, stacks)}"
    gpus, precisions = ({getattr(run, name) for run in usable} for name in ("gpu", "precision"))
    if not any(gpu in name for name in gpus):
        return f"no run on a GPU {gpu!r}{nearest(gpu, gpus)}"
    if not any(precision in name for name in precisions):
        return f"no run of precision {precision!r}{nearest(precision, precisions)}"
    return f"{len(usable)} runs, but none of all of --stack, --gpu and --precision; loosen one"


@app.command(
    epilog=examples(
        "calibrate show a100",
        "calibrate show mine.yaml --png mine.png",
    )
)
def show(
    profile: Annotated[str, typer.Argument(help="A profile's YAML file, or the name of a shipped one.")],
    png: Annotated[
        Path | None, typer.Option(help="Draw measured points against the fitted curves (.png or .svg).")
    ] = None,
    node: Node = None,
) -> None:
    """A profile's values with intervals and sources; with --png, its fits drawn against the measurements."""
    from sim.specs.presets import source_rows
    from sim.table import Table

    data, path = _profile_data(profile)
    record = _profile(profile)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("field", "value", "90 % interval", "source"):
        table.add_column(name, overflow="fold", style="dim" if name == "source" else "")
    for field, value, source, interval in source_rows(data):
        between = " to ".join(str(limit) for limit in interval) if interval else ""
        table.add_row(field, str(value), between, source)
    out = _console()
    out.print(table)
    if png is not None:
        from calibration.measurement import read_journal
        from calibration.node import measured_cluster
        from calibration.report import draw_profile

        raw = (path.parent if path else _SHIPPED_DATA) / record.provenance.raw_data
        if not raw.is_file():
            raise ProfileError(f"profile {record.name!r} has no measurements beside it to draw")
        measured = read_journal(raw)
        draw_profile(record, measured_cluster(measured.machine, node), measured, png)
        out.print(f"drawn: {png}")


@app.command(
    epilog=examples(
        "calibrate compare a100 h100",
    )
)
def compare(
    first: Annotated[str, typer.Argument(help="A profile's YAML file or name.")],
    second: Annotated[str, typer.Argument(help="Another.")],
) -> None:
    """Two profiles side by side."""
    from sim.table import Table

    left, right = _profile(first), _profile(second)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("field", left.name, right.name, "change"):
        table.add_column(name, justify="left" if name == "field" else "right")
    for section in ("gemm", "attention", "memory", "nvlink", "network", "host"):
        pair = [getattr(record, section).model_dump() for record in (left, right)]
        for field, value in pair[0].items():
            other = pair[1][field]
            if any(isinstance(one, (int, float)) for one in (value, other)):
                shown = ["–" if one is None else f"{one:.4g}" for one in (value, other)]
                table.add_row(f"{section}.{field}", *shown, _change(value, other))
    for field, (one, another) in _of_stacks(first, second).items():
        table.add_row(f"stack.{field}", *("–" if value is None else str(value) for value in (one, another)), "")
    _console().print(table)


def _of_stacks(*profiles: str) -> dict[str, tuple[Any, ...]]:
    """Values of the stack that were fitted with each profile."""
    from sim.specs.presets import load_file_as_preset, split_profile

    files = [name.endswith((".yaml", ".yml")) for name in profiles]
    stacks = [
        split_profile(load_file_as_preset(Path(name)))[1] if file else {}
        for name, file in zip(profiles, files, strict=True)
    ]
    return {field: tuple(stack.get(field) for stack in stacks) for field in dict.fromkeys(k for s in stacks for k in s)}


def _change(value: float | None, other: float | None) -> str:
    """A percentage where the two are of one size; a factor where they are not; nothing beside (almost) zero."""
    if not value or not other:
        return ""
    ratio = other / value
    if not 1e-4 < ratio < 1e4:
        return ""
    return f"{ratio - 1:+.0%}" if 0.1 <= ratio < 10 else f"× {ratio:.2g}"


def _check_out(out: Path) -> None:
    """Refuse, before anything is measured, a file that could not be written afterwards."""
    if out.is_dir():
        raise ProfileError(f"--out {out} is a folder; name a file in it, such as {out / 'profile.yaml'}")
    if out.suffix not in (".yaml", ".yml"):
        raise ProfileError(f"--out {out} must end in .yaml; the raw data go beside it as .jsonl")
    if not out.parent.is_dir():
        raise ProfileError(f"the folder {out.parent} of --out does not exist; make it first (mkdir -p {out.parent})")
    if not os.access(out.parent, os.W_OK):
        raise ProfileError(f"the folder {out.parent} of --out cannot be written to; choose another")


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def _profile_data(name: str) -> tuple[dict[str, Any], Path | None]:
    from sim.specs.presets import raw_preset
    from sim.specs.yaml12 import load_yaml

    if name.endswith((".yaml", ".yml")):
        return load_yaml(name), Path(name)
    return raw_preset("profiles", name), None


def _profile(name: str) -> Any:
    from sim.specs import Profile, load_preset
    from sim.specs.presets import load_file_as_preset, split_profile

    looks_like_file = name.endswith((".yaml", ".yml"))
    data = load_file_as_preset(Path(name)) if looks_like_file else load_preset("profiles", name)
    return Profile.read(split_profile(data)[0], f"profile {name}")


def _asked(machine: dict[str, Any], node: str | None, network: str | None, base: str | None) -> tuple[Any, Any]:
    """The measured hardware, and the profile that stands in for what is not measured."""
    from calibration.node import measured_cluster
    from sim.specs.loading import profile_of_gpu
    from sim.units import parse

    try:
        rate = None if network is None else parse(network, "bytes_per_s")
    except SpecError as error:
        raise SpecError(f"--network: {error}") from None
    cluster = measured_cluster({} if machine.get("device") == "not stated" else machine, node, rate)
    return cluster, profile_of_gpu(cluster.gpu) if base is None else _profile(base)


def _failures(data: Any) -> list[str]:
    """What could not be measured, counted by kind and reason."""
    counts = Counter(
        (item.kind, item.shape.get("algorithm") or item.shape.get("dtype", ""), item.reason) for item in data.failures
    )
    return [f"{count} {kind} {what}: {reason}".replace(" :", ":") for (kind, what, reason), count in counts.items()]


def _fit(data: Any, out: Path, raw: Path, asked: tuple[Any, Any], draws: int, force: bool) -> None:
    """Fit, write, and say what came of it."""
    _write(_fitted(data, out, asked, draws, force), out, raw)


def _fitted(data: Any, out: Path, asked: tuple[Any, Any], draws: int, force: bool) -> Any:
    """The calibration, said aloud.

    Raises
    ------
    ProfileError
        A fit is so far from its own data that the profile would mislead.
    """
    from calibration.build import calibrate

    cluster, base = asked
    with spinner("fitting"):
        result = calibrate(out.stem, data, cluster, base, draws)
    print_ = _console().print
    poor = result.profile.poor_fits
    for part, fit in result.fits.items():
        verdict = "  poor: estimates will say so" if part in poor else ""
        unseen = result.profile.unseen.get(part)
        beyond = "" if unseen is None else f", on unseen ones {unseen:.1%}"
        print_(f"{part:14} {result.counts[part]:4} measurements, median error {fit.median_error:.1%}{beyond}{verdict}")
    print_(f"not measured: {', '.join(result.not_measured)}")
    for line in result.left_out:
        print_(f"not used: {line}")
    absurd = {part: fit.median_error for part, fit in result.fits.items() if fit.median_error > MOST_ERROR}
    if absurd and not force:
        listed = ", ".join(f"{part} {error:.0%}" for part, error in absurd.items())
        raise ProfileError(
            f"not written: half of the measurements are further from the fit than {MOST_ERROR:.0%} ({listed}); is the "
            f"machine right (--node {cluster.node.name}, --network)? --force writes the profile all the same"
        )
    return result


def _write(result: Any, out: Path, raw: Path) -> None:
    from calibration.write import write_profile

    write_profile(result, out, raw)
    print_ = _console().print
    print_(f"profile: {out}   raw data: {raw}")
    print_(f"use it:  flopcast estimate SCENARIO --profile {shlex.quote(str(out))}", soft_wrap=True)
