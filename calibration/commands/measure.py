"""`calibrate run` and `calibrate fit`: from a machine, or from logs of one, to a profile."""

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
    from flopcast_calibration.bench.machine import describe
    from flopcast_calibration.bench.ranks import launched_job
    from flopcast_calibration.bench.run import pick_device, run_suite
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
        _write(_fitted(data, out, how.of(data.machine), how), out, raw)


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
    result = _fitted(data, out, asked, how)
    if raw not in files:
        write_journal(raw, {"device": "not stated", **machine, "node": asked[0].name}, data.measurements)
    _write(result, out, raw)


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


def _fitted(data: Any, out: Path, asked: tuple[Any, Any], how: Fitting) -> Any:
    """The calibration, said aloud; fits that are so far from their own data that they would mislead are not taken."""
    from flopcast_calibration.build import BANDWIDTHS, calibrate

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
    return result


def _write(result: Any, out: Path, raw: Path) -> None:
    from flopcast_calibration.write import write_profile

    write_profile(result, out, raw)
    print_ = console().print
    print_(f"profile: {out}   raw data: {raw}")
    print_(f"use it:  flopcast estimate SCENARIO --profile {shlex.quote(str(out))}", soft_wrap=True)
