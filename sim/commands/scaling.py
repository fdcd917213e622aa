"""`flopcast scaling`: laws, walls and failures, one question a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sim.commands.fills import with_records
from sim.commands.options import (
    AsJson,
    Output,
    PriceOption,
    Restart,
    examples,
    failure_options,
    print_json,
    print_view,
    startup_of,
)
from sim.commands.progress import spinner
from sim.errors import SpecError
from sim.reliability import goodput as rel
from sim.reliability.cost import Price, energy, gpu_hours, listed_price, rent
from sim.reliability.storing import even_storing, require_pause
from sim.units import parse, parse_count, show, show_count, show_short, show_time, significant

if TYPE_CHECKING:
    from sim.scaling.published import LossLaw


def model_params(text: str) -> float:
    """A model's parameters, or the number that `text` is."""
    from sim.specs import ModelSpec
    from sim.specs.presets import load_preset
    from sim.work.sums import total_params

    if text.lstrip("+-. ")[:1].isdigit():
        return parse_count(text, "parameters")
    return float(total_params(ModelSpec.read(load_preset("models", text), "model")))


def figures() -> Any:
    """The module that draws the laws, which loads slowly."""
    from sim.report import scaling

    return scaling


Runs = Annotated[Path | None, Option("--runs", help="CSV of your runs; its fit joins the laws.")]


@with_records
def optimal(
    *,
    budget: Annotated[str | None, Option(help="Compute in FLOP, such as 5.76e23.")] = None,
    loss: Annotated[str | None, Option(help="Loss to reach, in nats a token.")] = None,
    unique_tokens: Annotated[str | None, Option(help="Different tokens there are; more are repeated.")] = None,
    runs: Runs = None,
    output: Output,
) -> None:
    """The best model and data for a budget, the cheapest for a loss, by every law. With both: whether it suffices."""
    from sim.report.scaling import optimum_view
    from sim.scaling.allocation import compute_optimal, compute_optimal_for_loss, compute_optimal_repeated

    if budget is None and loss is None:
        raise SpecError("give --budget, such as 5.76e23, or --loss, such as 2.0")
    flop = None if budget is None else parse_count(budget, "budget")
    target = None if loss is None else parse_count(loss, "loss")
    laws = _laws(runs)
    refused: list[str] = []
    remarks = ["intervals follow from the published ones of the exponent, around the middle of the runs' compute"]
    if flop is not None:
        best = [compute_optimal(flop, law) for law in laws]
        title = f"The best use of {flop:.3g} FLOP"
    else:
        assert target is not None
        best = []
        for law in (law for law in laws if law.form is not None):
            try:
                best.append(compute_optimal_for_loss(target, law))
            except SpecError as error:
                refused.append(f"{law.name}: {error}")
        title = f"The cheapest way to a loss of {target:g}"
        remarks.append(f"laws without a loss: {', '.join(law.name for law in laws if law.form is None)}")
    if unique_tokens is not None:
        if flop is None:
            raise SpecError("--unique-tokens goes with --budget")
        different = parse_count(unique_tokens, "unique_tokens")
        repeated = compute_optimal_repeated(flop, different)
        best.append(repeated)
        epochs = repeated.tokens / different
        remarks.append(
            f"the last row has {show_short(different)} different tokens: {significant(max(epochs, 1.0), 2)} epochs"
        )
    if not best:
        raise SpecError("\n".join(refused))
    output.show(
        lambda: [asdict(each) for each in best],
        lambda: [optimum_view(title, best, remarks, show_flop=flop is None)],
        lambda: figures().draw_optimal(laws, best),
    )
    if refused:
        raise SpecError("\n".join(refused))
    if flop is not None and target is not None:
        _require_loss(flop, target, laws)


def _require_loss(flop: float, target: float, laws: list[LossLaw]) -> None:
    from sim.scaling.allocation import best_loss, compute_optimal_for_loss

    short = [law for law in laws if law.form is not None and float(best_loss(flop, law)) > target]
    if short:
        law = short[-1]
        needed = compute_optimal_for_loss(target, law).flop
        raise SpecError(
            f"{flop:.3g} FLOP are too few for a loss of {target:g} by {', '.join(each.name for each in short)}: by "
            f"{law.name} they reach {float(best_loss(flop, law)):.3f}, and {target:g} takes {needed:.3g} FLOP"
        )


@with_records
def model(
    *,
    name: Annotated[str, Argument(help="A model preset, or a number of parameters such as 70B.")],
    tokens: Annotated[str | None, Option(help="Tokens it is trained on.")] = None,
    loss: Annotated[str | None, Option(help="Loss it should reach.")] = None,
    runs: Runs = None,
    output: Output,
) -> None:
    """A model under every law: its compute-optimal data, its loss on some tokens, the tokens that reach a loss."""
    from sim.report.scaling import model_view
    from sim.scaling.allocation import best_loss, flop_for_params
    from sim.scaling.loss_laws import FLOP_PER_PARAM_TOKEN, power_sum_loss, tokens_for_loss

    params = model_params(name)
    data = None if tokens is None else parse_count(tokens, "tokens")
    target = None if loss is None else parse_count(loss, "loss")
    laws, rows, remarks = _laws(runs), [], []
    for law in laws:
        flop = float(flop_for_params(params, law))
        row: dict[str, Any] = {"law": law.name, "best_tokens": flop / FLOP_PER_PARAM_TOKEN / params}
        row |= {"flop": flop, "best_loss": float(best_loss(flop, law))}
        if data is not None:
            row["loss"] = float(power_sum_loss(params, data, law.form)) if law.form else float("nan")
        if target is not None:
            row["tokens_for_loss"] = float("nan")
            if law.form:
                try:
                    row["tokens_for_loss"] = tokens_for_loss(target, params, law.form)
                except SpecError as error:
                    remarks.append(f"{law.name}: {error}")
        rows.append(row)
    title = f"{name}: {show_short(params)} parameters" + (f" on {show_short(data)} tokens" if data else "")
    apart = (law.name for law in laws if law.frontier and law.form)
    notes = ["best tokens: where this size is the best use of the compute", *remarks]
    notes += [
        f"{law}: the loss follows its law of compute, your loss its law of parameters and tokens" for law in apart
    ]
    output.show(
        lambda: {"params": params, "laws": rows, "notes": remarks},
        lambda: [model_view(title, rows, notes)],
        lambda: figures().draw_model(laws, params, data, target),
    )


@with_records
def batch(
    *,
    name: Annotated[str, Argument(help="A model preset, or a number of parameters such as 70B.")],
    tokens: Annotated[str | None, Option(help="Tokens at a small batch; compute-optimal if not given.")] = None,
    loss: Annotated[str | None, Option(help="Final loss; the Besiroglu law's if not given.")] = None,
    at: Annotated[str | None, Option("--batch", help="A batch, in tokens, to price.")] = None,
    output: Output,
) -> None:
    """The critical batch by every law, and the steps and tokens that a batch of yours would take."""
    from sim.report.scaling import batch_view
    from sim.scaling.allocation import flop_for_params
    from sim.scaling.critical_batch import (
        critical_batch_laws,
        critical_batches,
        mccandlish_batch,
        steps_needed,
        tokens_needed,
    )
    from sim.scaling.loss_laws import FLOP_PER_PARAM_TOKEN, power_sum_loss
    from sim.scaling.published import BESIROGLU, DEFAULT_LAW, get_law

    params, remarks = model_params(name), []
    if tokens is not None:
        data = parse_count(tokens, "tokens")
    else:
        data = float(flop_for_params(params, get_law(DEFAULT_LAW))) / FLOP_PER_PARAM_TOKEN / params
        remarks.append(f"tokens: the {show_short(data)} that are compute-optimal by {DEFAULT_LAW}")
    if loss is not None:
        final = parse_count(loss, "loss")
    else:
        final = float(power_sum_loss(params, data, BESIROGLU))
        remarks.append(f"loss: {final:.3f} by {DEFAULT_LAW}")
    facts = {"params": params, "tokens": data, "loss": final, "flop": FLOP_PER_PARAM_TOKEN * params * data}
    laws = critical_batch_laws()
    batches = {name: float(found) for name, found in critical_batches(**facts).items()}
    limits = {name: float(mccandlish_batch(name, **facts)) for name, law in laws.items() if law.data_overhead}
    asked = None if at is None else parse_count(at, "batch")
    rows = {
        name: {"batch_tokens": tokens, "data_overhead": laws[name].data_overhead, "checked": laws[name].checked}
        for name, tokens in batches.items()
    }
    for name, critical in limits.items() if asked is not None else ():
        rows[name] |= {
            "steps": float(steps_needed(data, asked, critical)),
            "tokens": float(tokens_needed(data, asked, critical)),
        }
    title = f"{show_short(params)} parameters on {show_short(data)} tokens, loss {final:.3f}"
    if asked is not None:
        title += f"; steps and tokens at batches of {show_short(asked)}"
    output.show(
        lambda: {"facts": facts, "batch": asked, "laws": rows},
        lambda: [batch_view(title, rows, remarks)],
        lambda: figures().draw_batch(data, batches, limits, asked),
    )


@with_records
def fit(
    *,
    runs: Annotated[Path, Argument(help="CSV with the columns params, tokens and loss.")],
    bootstraps: Annotated[int, Option(min=10, max=10_000, help="Resamples behind the intervals.")] = 200,
    seed: Annotated[int, Option(min=0, help="Of the resampling.")] = 0,
    least_tokens_per_param: Annotated[float, Option(help="Leave out runs with fewer.")] = 0.0,
    output: Output,
) -> None:
    """Fit L = E + A/params^alpha + B/tokens^beta to runs of yours, with bootstrap intervals."""
    from sim.report.scaling import fit_view
    from sim.scaling.fit import fit_loss, read_runs

    table = read_runs(runs)
    kept = table.take(table.tokens >= least_tokens_per_param * table.params)
    with spinner("fitting"):
        found = fit_loss(kept, bootstraps, seed)
    top = 6 * float((kept.params * kept.tokens).max())
    intervals = {name: found.interval(name) for name in ("irreducible", "a", "alpha", "b", "beta", "exponent")}
    constants = {"runs": len(kept), "objective": found.objective, "residual": found.residual}
    left = len(table) - len(kept)
    title = f"{len(kept)} runs of {runs}" + (f" ({left} left out)" if left else "")
    output.show(
        lambda: asdict(found.form) | {"intervals": intervals} | constants,
        lambda: [fit_view(title, found, [top, 10 * top, 100 * top, 1000 * top])],
        lambda: figures().draw_fit(found),
    )


def laws(as_json: AsJson = False) -> None:
    """The laws there are: their constants with published errors, where they stand, and how far that was checked."""
    from sim.report.scaling import laws_view
    from sim.scaling.critical_batch import critical_batch_laws
    from sim.scaling.published import LAWS

    batch_laws = critical_batch_laws()
    if as_json:
        rows = {name: {"needs": law.needs, "data_overhead": law.data_overhead, "summary": law.summary,
                       "source": law.source, "checked": law.checked} for name, law in batch_laws.items()}  # fmt: skip
        print_json({"loss": {name: asdict(law) for name, law in LAWS.items()}, "batch": rows})
    else:
        print_view(laws_view(LAWS, batch_laws))


def _laws(runs: Path | None) -> list[LossLaw]:
    from sim.scaling.published import LAWS

    laws = list(LAWS.values())
    if runs is not None:
        from sim.scaling.fit import fit_loss, read_runs

        laws.append(fit_loss(read_runs(runs)).law())
    return laws


FAILURES = failure_options()


@with_records
def limits(
    *,
    budget: Annotated[str | None, Option(help="Compute of a run to hold against the walls, in FLOP.")] = None,
    duration: Annotated[str, Option(help="How long it may take.")] = "91 d",
    batch_tokens: Annotated[str, Option("--batch", help="Tokens a batch.")] = "60M",
    layer_latency: Annotated[str, Option(help="Least time of a layer, forward and backward.")] = "110 us",
    output: Output,
) -> None:
    """The latency and data-movement walls of compute-optimal runs: our derivation, the published figures beside."""
    from sim.report.scaling import notes
    from sim.scaling.loss_laws import PUBLISHED_WALLS, latency_wall, require_possible, utilisation_in_time
    from sim.table import plain_table

    seconds, latency = parse(duration, "s"), parse(layer_latency, "s")
    size = parse_count(batch_tokens, "batch")
    wall = float(latency_wall(seconds, size, latency))
    asked = None if budget is None else parse_count(budget, "budget")
    rows = []
    for flop in sorted({*(10.0**power for power in range(24, 32)), *([asked] if asked else [])}):
        share, gpus = utilisation_in_time(flop, size, seconds)
        rows.append(
            {"flop": flop, "h100s": gpus if share else None, "utilisation": share, "latency_allows": flop <= wall}
        )
    table = plain_table("FLOP", "H100s", "best share of peak", "latency")
    for row in rows:
        cells = [show_short(row["h100s"]), f"{row['utilisation']:.0%}"] if row["h100s"] else ["no number", "–"]
        table.add_row(f"{row['flop']:.2e}", *cells, "allows it" if row["latency_allows"] else "forbids it")
    below = notes(
        f"latency wall: {wall:.2e} FLOP at {layer_latency} a layer",
        "share of peak: what communication leaves if every kernel is perfect; 8 H100 per node, 400 Gbit/s",
        "published, three months: " + ", ".join(f"{k} {v:.0e}" for k, v in PUBLISHED_WALLS.items()),
    )
    heading = f"Compute-optimal runs in {show_time(seconds)} at {show_short(size)} tokens a batch"
    output.show(
        lambda: {"latency_wall_flop": wall, "runs": rows, "published_flop": PUBLISHED_WALLS},
        lambda: [heading, table, below],
        lambda: figures().draw_limits(seconds, size, latency),
    )
    if asked is not None:
        require_possible(asked, seconds, size, latency)


@with_records
def goodput(
    *,
    name: Annotated[str, Argument(help="A model preset, or a number of parameters such as 405B.")],
    gpus: Annotated[int, Option(help="GPUs of the job.")],
    cluster: Annotated[str, Option(help="A cluster preset, for its storage, nodes and power.")] = "superpod-h100",
    write_bandwidth: Annotated[
        str | None, Option(help="Bandwidth of all ranks together to storage; default: the cluster's.")
    ] = None,
    interval: Annotated[str | None, Option(help="Work between checkpoints; default: the best.")] = None,
    blocking: Annotated[
        str | None, Option(help="How long training pauses for a checkpoint that is written in the background.")
    ] = None,
    asynchronous: Annotated[bool, Option(help="Write in the background, with the cluster's pause.")] = False,
    failing: Annotated[partial[rel.Failures], FAILURES],
    restart: Restart = None,
    useful: Annotated[str, Option(help="Length of the run without failures.")] = "30 d",
    price: PriceOption = None,
    power: Annotated[
        str | None, Option(help="Power of a GPU and its share of the node; default: the cluster's.")
    ] = None,
    pue: Annotated[float, Option(help="Power usage effectiveness of the building.")] = 1.1,
    output: Output,
) -> None:
    """What failures and checkpoints leave of a cluster, by formula and by simulation; days, energy and cost."""
    import numpy as np

    from sim.report.scaling import goodput_view
    from sim.specs import ClusterSpec
    from sim.specs.loading import resolve

    machine = ClusterSpec.read(resolve(cluster, "cluster"), f"cluster preset {cluster!r}")
    size = float(rel.checkpoint_bytes(model_params(name)))
    storing = even_storing(size, gpus, machine)
    if write_bandwidth is not None:
        storing = storing.written_at(parse(write_bandwidth, "bytes_per_s"))
    load = 0.0 if restart is not None else storing.load_s()
    failures = startup_of(restart, failing)(gpus_per_node=machine.node.gpus_per_node, load_s=load)
    spares = failures.spare_nodes
    between = float(rel.job_mtbf(gpus, failures.gpu_mtbf_s))
    pause = storing.blocking_s if blocking is None else parse(blocking, "s")
    if asynchronous and blocking is None:
        pause = require_pause(storing, machine.node.name)
    drain = storing.write_s if asynchronous or blocking is not None else 0.0
    rules = {"Young": rel.young_interval, "Daly": rel.daly_interval, "exact": rel.best_interval}
    best = {rule: float(interval_of(pause, between)) for rule, interval_of in rules.items()} if pause else {}
    if interval is None and not best:
        raise SpecError("checkpoints that pause nothing have no best interval; give --interval, such as '5 min'")
    chosen = max(best["exact"], drain - pause) if interval is None else parse(interval, "s")
    checkpoints = rel.Checkpoints(chosen, pause, drain)
    formula = rel.goodput(gpus, checkpoints, failures)
    played = rel.simulate_goodput(gpus, checkpoints, failures)
    work = parse(useful, "s")
    wall = formula.wall_time(work)
    # Runs of very many failures are all of the expected length, and slow to play.
    runs = int(min(100, 3e5 * between / wall))
    times = rel.simulate_wall_times(work, gpus, checkpoints, failures, runs) if runs >= 20 else None
    spread = None if times is None else [float(end) for end in np.quantile(times, [0.05, 0.95])]
    paid = gpus + (spares or 0) * failures.gpus_per_node
    hours = float(gpu_hours(paid, wall))
    rate = listed_price(machine.gpu.name) if price is None else Price.read(price)
    watts = machine.node.power_per_gpu_w if power is None else parse(power, "w")
    joules = None if watts is None else float(energy(hours, watts, pue))
    found = {
        "gpus": gpus, "checkpoint_bytes": size, "write_s": storing.write_s, "blocking_s": pause, "drain_s": drain,
        "restart_s": failures.restart_s, "load_s": load, "job_mtbf_s": between, "interval_s": chosen,
        "best_interval_s": best, "goodput": asdict(formula), "simulated": asdict(played),
        "wall_s": wall, "wall_interval_s": spread,
        "gpu_hours": hours, "cost": float(rent(hours, rate.amount)), "currency": rate.currency, "energy_j": joules,
    }  # fmt: skip
    by_rule = ", ".join(f"{rule} {show_time(value)}" for rule, value in best.items())
    facts = {
        "Failures": f"one in {show_time(between)}",
        "Checkpoint": f"{show(size, 'B')}, {show_time(storing.write_s)} to write"
        + (f", training stops for {show_time(pause)}" if drain else ""),
        "Restart": show_time(failures.restart_s) + (f", of which {show_time(load)} to load" if load else ""),
        "Interval": show_time(chosen) + (f"  ({by_rule})" if best else ""),
        "Goodput": f"{formula.useful:.1%}",
        "Wall clock": f"{show_time(wall)} for {show_time(work)} of work",
        "90 % of runs": f"{show_time(spread[0], 4)} to {show_time(spread[1], 4)}" if spread else "as expected",
        "Cost": f"{show_count(hours)} GPU-hours, {show_count(hours * rate.amount)} {rate.currency} at {rate} an hour",
        "Energy": "left out: the GPU's power is not known; give --power"
        if joules is None
        else f"{joules / 3.6e12:.3g} GWh of whole nodes at full power, PUE {pue:g}",
    }
    ready = "enough spare nodes" if spares is None else f"{spares} spare nodes, which are paid for"
    title = f"{show_short(model_params(name))} parameters on {gpus:,} GPUs of {cluster}"
    priced = [f"{rate} a GPU-hour: {rate.source}"] if rate.source else []
    notes = [f"{ready}; the simulation has 20,000 failures", *priced, *storing.notes]
    output.show(
        lambda: found,
        lambda: [goodput_view(title, facts, formula, played, notes)],
        lambda: figures().draw_goodput(gpus, checkpoints, failures),
    )


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
