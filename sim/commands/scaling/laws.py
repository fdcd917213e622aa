"""Commands that put the laws side by side: for a budget or a loss, a model, a batch; and a fit of your own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from sim.commands.fills import with_records
from sim.commands.options import AsJson, Output
from sim.commands.output import print_json, print_view
from sim.commands.progress import spinner
from sim.commands.scaling.shared import figures, model_params
from sim.errors import SpecError
from sim.units import parse_count, show_short, significant

if TYPE_CHECKING:
    from sim.scaling.published import LossLaw

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
    from sim.scaling.allocation import compute_optimal, compute_optimal_for_loss
    from sim.scaling.repeated_data import compute_optimal_repeated

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
