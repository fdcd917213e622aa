"""`calibrate run`, `fit` and `from-runs`: a profile from a machine, from logs of one, or from timed training runs."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from flopcast_calibration.commands.shared import SHIPPED_DATA, check_out, console, read_profile
from sim.commands.progress import Advance, progress_bar, spinner
from sim.errors import ProfileError, SpecError, nearest, require_positive

#: A fit whose median error on its own data is above this is not taken unasked.
MOST_ERROR = 0.25


@dataclass(frozen=True, slots=True)
class Fitting:
    """How measurements become a profile.

    node : What was measured: a node or cluster preset, or a YAML file that describes one; found by the device's name if
        not given.
    network : What all network cards of a node carry together ('3200 Gbit/s'); default: the preset's.
    base : Profile that gives the values which were not measured; default: the GPU's own.
    force : Take fits that miss their own data by more than a quarter, too.
    """

    node: str | None = None
    network: str | None = None
    base: str | None = None
    draws: Annotated[int, typer.Option(max=10_000, min=1, help="Bootstrap refits for the intervals.")] = 20
    force: bool = False

    def of(self, machine: dict[str, Any]) -> tuple[Any, Any]:
        """The measured hardware, and the profile that stands in for what is not measured."""
        from flopcast_calibration.node import measured_cluster
        from sim.specs.loading import profile_of_gpu
        from sim.units import parse

        try:
            rate = None if self.network is None else parse(self.network, "bytes_per_s")
        except SpecError as error:
            raise SpecError(f"--network: {error}") from None
        stated = {name: value for name, value in machine.items() if value != "not stated"}
        cluster = measured_cluster(stated, self.node, rate)
        base = profile_of_gpu(cluster.gpu) if self.base is None else read_profile(self.base)
        if base.provenance.measured:
            raise SpecError(
                f"--base {self.base} was fitted to training runs, which new measurements may explain otherwise. Fit to "
                "the profile that it was made from, then anchor the result: flopcast anchor SCENARIO --profile FILE"
            )
        return cluster, base


def run(
    *,
    out: Path = Path("profile.yaml"),
    device: str = "auto",
    quick: bool = False,
    within: str | None = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes for collectives; 1 leaves them out. Default: one a GPU; on CPUs one a core, 4 at most.",
        ),
    ] = None,
    scenario: Path | None = None,
    how: Fitting,
) -> None:
    """Measure this machine with torch and fit a profile. An interrupted run goes on where it stopped.

    On several nodes: torchrun --nnodes 2 --nproc-per-node 8 … -m sim calibrate run, or srun with a task a GPU.

    out --out -o : Profile to write; the raw data go beside it.
    device : cuda (also AMD's GPUs), cpu, or auto.
    quick : Fewer shapes.
    within : Begin no measurement of one GPU after so long ('10 min'); small ones of every kind come first. Those of
        several GPUs all follow.
    scenario : Also measure this scenario's matrix multiplies.
    """
    from flopcast_calibration.bench.ranks import launched_job
    from flopcast_calibration.bench.run import pick_device, run_suite
    from flopcast_calibration.bench.timing import describe
    from sim import load_scenario
    from sim.units import parse

    # Whatever can be wrong with the request is found before anything is measured.
    if device not in ("auto", "cuda", "cpu"):
        raise SpecError(f"unknown device {device!r}{nearest(device, ('auto', 'cuda', 'cpu'))}")
    within_s = math.inf
    if within is not None:
        require_positive(within=(within_s := parse(within, "s")))
    job = launched_job()
    leads = job is None or job.rank == 0
    if leads:
        check_out(out)
    chosen = pick_device(device)
    if leads:
        how.of(describe(chosen))
    raw = out.with_suffix(".jsonl")
    question = load_scenario(scenario) if scenario is not None else None
    asked = {"quick": quick, "ranks": ranks, "scenario": question, "within_s": within_s}
    with progress_bar("measuring") if leads else nullcontext() as bar:
        try:
            data = run_suite(raw, chosen, **asked, report=_reporter(bar))
        except KeyboardInterrupt:
            if leads:
                typer.secho(f"what was measured is in {raw}; the same command goes on from there", err=True)
            raise
    if data is not None:
        for line in _failures(data):
            typer.secho(f"could not be measured: {line}", err=True)
        _fit(data, out, raw, how.of(data.machine), how)


def _reporter(bar: Advance | None) -> Callable[[str, int, int], None]:
    """What tells of every measurement on the bar; without a terminal, of the first of each kind in a line."""
    told: set[str] = set()

    def report(what: str, done: int, total: int) -> None:
        if bar is not None:
            bar(done, total, what)
        elif what not in told:
            told.add(what)
            typer.secho(f"measuring {what}: {done:,} of {total:,} done", err=True)

    return report


def fit(
    files: list[Path],
    *,
    out: Path = Path("profile.yaml"),
    operation: str | None = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks of logs that do not list them.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of logs that do not name their hosts.")] = None,
    how: Fitting,
) -> None:
    """Fit a profile to measurements that exist already: whatever they identify, all else as in the base profile.

    files : Journals of runs, tables, and logs of nccl-tests and other programs; any number of files.
    out --out -o : Profile to write.
    operation : Collective of logs that do not say it: all_reduce, all_gather, reduce_scatter, all_to_all or send.
    """
    from flopcast_calibration.measurement import MeasurementSet, least_disturbed, write_journal
    from flopcast_calibration.readers import read_measurements
    from flopcast_calibration.readers.collectives import collective
    from sim.files import here_or_shipped

    check_out(out)
    raw = out.with_suffix(".jsonl")
    _spare_journal(raw, files)
    operation = operation and collective(operation)
    machine: dict[str, Any] = {}
    items = []
    for path in (here_or_shipped(path, "calibration/data", SHIPPED_DATA) for path in files):
        log = read_measurements(path, operation, ranks, nodes)
        for note in log.notes:
            typer.secho(f"{path}: {note}", err=True)
        _join(machine, log.machine, path)
        items += log.measurements
    data = MeasurementSet(machine, tuple(least_disturbed(items)))
    asked = how.of(data.machine)
    _fit(data, out, raw, asked, how)
    if raw not in files:
        write_journal(raw, {"device": "not stated", **machine, "node": asked[0].name}, data.measurements)


def _spare_journal(raw: Path, files: Sequence[Path]) -> None:
    """Refuse to write what was fitted over the journal of a run, which holds the only copy of its measurements."""
    from flopcast_calibration.measurement import read_journal

    if raw in files or not raw.is_file() or "node" in read_journal(raw).machine:  # a fit's copy names the node
        return
    raise SpecError(
        f"{raw} holds what calibrate run measured, and this fit would write its own data over it: give another file "
        f"with -o, or fit both together: flopcast calibrate fit {' '.join(map(shlex.quote, map(str, (raw, *files))))}"
    )


def _join(machine: dict[str, Any], facts: dict[str, Any], path: Path) -> None:
    """Add what a file says of its machine; files of two machines make no profile."""
    device, other = machine.get("device"), facts.get("device")
    if device and other and device != other and "not stated" not in (device, other):
        raise ProfileError(f"{path} was measured on {other!r}, another file on {device!r}; fit one machine at a time")
    machine.update({name: value for name, value in facts.items() if value != "not stated" or name not in machine})


def _failures(data: Any) -> list[str]:
    """What could not be measured, counted by kind and reason."""
    counts = Counter((item.kind, item.shape.get("dtype", ""), item.reason) for item in data.failures)
    return [f"{count} {kind} {what}: {reason}".replace(" :", ":") for (kind, what, reason), count in counts.items()]


def _fit(data: Any, out: Path, raw: Path, asked: tuple[Any, Any], how: Fitting) -> None:
    """Fit, say how well, and write; fits so far from their own data that they would mislead are not taken."""
    from flopcast_calibration.build import BANDWIDTHS, calibrate
    from flopcast_calibration.write import write_profile

    cluster, base = asked
    with spinner("fitting") as say:
        result = calibrate(out.stem, data, cluster, base, how.draws, math.inf if how.force else MOST_ERROR, say)
    print_ = console().print
    poor = result.profile.poor_fits
    for part, fit in result.fits.items():
        verdict = "  poor: estimates will say so" if part in poor else ""
        beyond = "" if fit.unseen is None else f", on unseen ones {fit.unseen:.1%}"
        print_(f"{part:14} {fit.count:4} measurements, median error {fit.median_error:.1%}{beyond}{verdict}")
        if fit.short:
            for name in (each for each in BANDWIDTHS if each in fit.params):
                low, high = fit.intervals[name]
                share = f"{fit.params[name]:.0%} of the link (90 %: {low:.0%} to {high:.0%})"
                print_(f"  few sizes: {BANDWIDTHS[name]} {share}")
    print_(f"not measured: {', '.join(result.not_measured)}")
    for line in result.left_out:
        print_(f"not used: {line}")
    write_profile(result, out, raw)
    _written(f"{out}   raw data: {raw}", out)


def _written(profile: str, out: Path) -> None:
    console().print(f"profile: {profile}")
    console().print(f"use it:  flopcast estimate SCENARIO --profile {shlex.quote(str(out))}", soft_wrap=True)


def from_runs(
    runs: Path,
    *,
    out: Path = Path("profile.yaml"),
    stack: str | None = None,
    gpu: str = "",
    precision: str = "",
    base: str | None = None,
    parameter: list[str] | None = None,
) -> None:
    """Fit a profile to measured training runs, drawn to the bottom-up one.

    `validate --transfer --runs FILE` says how well some of these runs would have told of the others.

    runs : CSV of measured training runs, in the columns of docs/validation.md, or a folder of scenarios with cases.csv.
    out --out -o : Profile to write, with the stack's values in it.
    stack : Only the runs of this stack; needed where there are several.
    gpu : Only runs whose GPU's name holds this.
    precision : Only runs of this precision.
    base : Profile to start from; default: the one of the runs' GPU.
    parameter : Fit only these (gemm.max_efficiency, …).
    """
    from flopcast_calibration.from_runs import fit_runs, parameters_named
    from flopcast_calibration.readers.training_runs import read_training_runs, unread_columns
    from flopcast_calibration.write import write_runs_profile
    from sim.table import rows_table

    check_out(out)
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
    print_ = console().print
    if not chosen:
        raise SpecError(f"no run of {runs} is left to fit: {_why_none(read, stack, gpu, precision)}")
    kinds = sorted({(run.choices[0].profile.name, run.choices[0].stack.name) for run in chosen})
    if len(kinds) > 1:
        listed = "; ".join(f"profile {name}, stack {of}" for name, of in kinds)
        raise SpecError(f"runs of several kinds cannot share one fit: {listed}; choose with --stack and --gpu")
    with spinner("fitting") as say:
        found = fit_runs(chosen, names, progress=say)
    rows = []
    for item in found.parameters:
        verdict = "" if item.identified else "not identified"
        rows.append((item.name, f"{item.prior:.4g}", f"{item.value:.4g}", f"{item.width:.2g}", verdict))
    print_(rows_table(("parameter", "bottom-up", "fitted", "±", ""), rows, left=("parameter", "")))
    count = len({run.family for run in found.runs})
    not_modelled = sum(bool(run.skipped) for run in read) + len(chosen) - len(found.runs)
    print_(f"{len(found.runs)} runs of {count} families; {not_modelled} rows of the file are not modelled")
    for what, errors in (("before", found.before), ("fitted", found.errors)):
        print_(f"{what:9} mean absolute error {abs(errors).mean():6.1%}   bias {errors.mean():+6.1%}")
    write_runs_profile(found, out, runs.name)
    _written(str(out), out)


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
