"""Commands about runs of a size: the walls they meet, and what failures leave of them."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

from typer import Argument, Option

from sim import reliability as rel
from sim.commands.fills import with_records
from sim.commands.options import Output, PriceOption, Restart, failure_options, startup_of
from sim.commands.scaling.shared import figures, model_params
from sim.errors import SpecError
from sim.units import parse, parse_count, show, show_count, show_short, show_time

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
    from sim.scaling.limits import PUBLISHED_WALLS, latency_wall, require_possible, utilisation_in_time
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
    storing = rel.even_storing(size, gpus, machine)
    if write_bandwidth is not None:
        storing = storing.written_at(parse(write_bandwidth, "bytes_per_s"))
    load = 0.0 if restart is not None else storing.load_s()
    failures = startup_of(restart, failing)(gpus_per_node=machine.node.gpus_per_node, load_s=load)
    spares = failures.spare_nodes
    between = float(rel.job_mtbf(gpus, failures.gpu_mtbf_s))
    pause = storing.blocking_s if blocking is None else parse(blocking, "s")
    if asynchronous and blocking is None:
        pause = rel.require_pause(storing, machine.node.name)
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
    hours = float(rel.gpu_hours(paid, wall))
    rate = rel.listed_price(machine.gpu.name) if price is None else rel.Price.read(price)
    watts = machine.node.power_per_gpu_w if power is None else parse(power, "w")
    joules = None if watts is None else float(rel.energy(hours, watts, pue))
    found = {
        "gpus": gpus, "checkpoint_bytes": size, "write_s": storing.write_s, "blocking_s": pause, "drain_s": drain,
        "restart_s": failures.restart_s, "load_s": load, "job_mtbf_s": between, "interval_s": chosen,
        "best_interval_s": best, "goodput": asdict(formula), "simulated": asdict(played),
        "wall_s": wall, "wall_interval_s": spread,
        "gpu_hours": hours, "cost": float(rel.rent(hours, rate.amount)), "currency": rate.currency, "energy_j": joules,
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
