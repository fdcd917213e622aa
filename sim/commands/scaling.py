"""`flopcast scaling`: laws of loss and batch, one question a command."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from sim.commands.options import Answer
from sim.commands.progress import spinner
from sim.errors import SpecError
from sim.scaling.fit import NAMES, fit_loss, read_runs
from sim.scaling.goal import Goal
from sim.scaling.loss_laws import (
    BATCH_LAWS,
    BESIROGLU,
    DEFAULT_LAW,
    FLOP_PER_PARAM_TOKEN,
    LAWS,
    best_loss,
    best_tokens,
    compute_optimal,
    compute_optimal_for_loss,
    compute_optimal_repeated,
    critical_batches,
    get_law,
    mccandlish_batch,
    power_sum_loss,
    tokens_for_loss,
)
from sim.specs import ModelSpec
from sim.specs.presets import load_preset
from sim.units import parse_count, show_short, significant
from sim.work.sums import total_params

NAN = float("nan")
MOST_RESAMPLES = 10_000
LEAST_LOSS, MOST_LOSS = 0.1, 20.0
"""A guess among 128,000 words has 11.8. [nats/token]"""


def model_params(text: str) -> float:
    """A model's parameters, or the number that `text` is."""
    if text.lstrip("+-. ")[:1].isdigit():
        return _one_or_more(text, "parameters")
    return float(total_params(ModelSpec.read(load_preset("models", text), "model")))


def _one_or_more(text: str, name: str) -> float:
    """A number of parameters or tokens."""
    count = parse_count(text, name)
    if count < 1:
        raise SpecError(f"{text} {name}: there is one or more")
    return count


def _count(text: str | None, name: str) -> float | None:
    return None if text is None else _one_or_more(text, name)


def _loss(text: str | None) -> float | None:
    """A loss that models of language can have. [nats/token]"""
    loss = None if text is None else parse_count(text, "loss")
    if loss is not None and not LEAST_LOSS <= loss <= MOST_LOSS:
        raise SpecError(f"--loss {text}: models of language have {LEAST_LOSS} to {MOST_LOSS} nats a token")
    return loss


def optimal(*, budget: str | None = None, loss: str | None = None, unique_tokens: str | None = None) -> Answer:
    """The best model and data for a budget, or the cheapest for a loss, by every law.

    budget : Compute in FLOP, such as 5.76e23.
    loss : Loss to reach, in nats a token.
    unique_tokens : Different tokens there are; more are repeated.
    """
    from sim.report.scaling import optimum_view

    if (budget is None) == (loss is None):
        raise SpecError("give either --budget, such as 5.76e23, or --loss, such as 2.0")
    flop, target = _count(budget, "budget"), _loss(loss)
    refused: list[str] = []
    remarks = ["intervals are those published of the exponent, from the middle of the runs' compute outwards"]
    if flop is not None:
        best, title = [compute_optimal(flop, law) for law in LAWS.values()], f"The best use of {flop:.3g} FLOP"
    else:
        assert target is not None
        best, title = [], f"The cheapest way to a loss of {target:g}"
        for law in (law for law in LAWS.values() if law.frontier is not None):
            try:
                best.append(compute_optimal_for_loss(target, law))
            except SpecError as error:
                refused.append(f"{law.name}: {error}")
        remarks.append(f"laws without a loss: {', '.join(law.name for law in LAWS.values() if law.frontier is None)}")
    if (different := _count(unique_tokens, "unique_tokens")) is not None:
        if flop is None:
            raise SpecError("--unique-tokens goes with --budget")
        best.append(compute_optimal_repeated(flop, different))
        epochs = significant(max(best[-1].tokens / different, 1.0), 2)
        remarks.append(
            f"the last row has only {show_short(different)} different tokens, and sees them in {epochs} epochs"
        )

    def refuse() -> None:
        if refused:
            raise SpecError("\n".join(refused))

    if not best:
        refuse()
    view = partial(optimum_view, title, best, remarks, show_flop=flop is None)
    return Answer(lambda: [asdict(each) for each in best], lambda: [view()], after=refuse)


def model(name: str, *, tokens: str | None = None, loss: str | None = None) -> Answer:
    """A model under every law: its compute-optimal data, its loss on some tokens, the tokens that reach a loss.

    name : A model preset, or a number of parameters such as 70B.
    tokens : Tokens it is trained on.
    loss : Loss it should reach.
    """
    from sim.report.scaling import model_view

    params, data, target = model_params(name), _count(tokens, "tokens"), _loss(loss)
    rows, remarks = [], []
    for law in LAWS.values():
        best = best_tokens(params, law)
        flop = FLOP_PER_PARAM_TOKEN * params * best
        row: dict[str, Any] = {"law": law.name, "best_tokens": best, "flop": flop, "best_loss": best_loss(flop, law)}
        if data is not None:
            row["loss"] = float(power_sum_loss(params, data, law.form)) if law.form else NAN
        if target is not None:
            row["tokens_for_loss"] = NAN
            if law.form:
                try:
                    row["tokens_for_loss"] = tokens_for_loss(target, params, law.form)
                except SpecError as error:
                    remarks.append(f"{law.name}: {error}")
        rows.append(row)
    title = f"{name}: {show_short(params)} parameters" + (f" on {show_short(data)} tokens" if data else "")
    follows = "the loss follows its law of compute, your loss its law of parameters and tokens"
    apart = [f"{law.name}: {follows}" for law in LAWS.values() if law.form and law.frontier != law.form.frontier]
    notes = ["best tokens: with so many a model of this size is the best use of the compute", *remarks, *apart]
    found = {"params": params, "laws": rows, "notes": remarks}
    return Answer(lambda: found, lambda: [model_view(title, rows, notes)])


def batch(name: str, *, tokens: str | None = None, loss: str | None = None, at: str | None = None) -> Answer:
    """The critical batch by every law, and the steps and tokens that a batch of yours would take.

    name : A model preset, or a number of parameters such as 70B.
    tokens : Tokens at a small batch; compute-optimal if not given.
    loss : Final loss; the Besiroglu law's if not given.
    at --batch : A batch, in tokens, to price.
    """
    from sim.report.scaling import batch_view

    params, remarks = model_params(name), []
    if (data := _count(tokens, "tokens")) is None:
        data = best_tokens(params, get_law(DEFAULT_LAW))
        remarks.append(f"tokens: the {show_short(data)} that are compute-optimal by {DEFAULT_LAW}")
    if (final := _loss(loss)) is None:
        final = float(power_sum_loss(params, data, BESIROGLU))
        remarks.append(f"loss: {final:.3f} by {DEFAULT_LAW}")
    asked = _count(at, "tokens a batch")
    facts = {"params": params, "tokens": data, "loss": final, "flop": FLOP_PER_PARAM_TOKEN * params * data}
    rows = dict[str, dict[str, Any]]()
    for name, found in critical_batches(**facts).items():
        law = BATCH_LAWS[name]
        rows[name] = {"batch_tokens": float(found), "data_overhead": law.data_overhead, "checked": law.checked}
        if asked is not None and law.data_overhead:
            goal = Goal(params, data, float(mccandlish_batch(name, **facts)), final)
            rows[name] |= {"steps": float(goal.steps(asked)), "tokens": float(goal.tokens(asked))}
    title = f"{show_short(params)} parameters on {show_short(data)} tokens, loss {final:.3f}"
    if asked is not None:
        title += f"; steps and tokens are for batches of {show_short(asked)} tokens"
    return Answer(lambda: {"facts": facts, "batch": asked, "laws": rows}, lambda: [batch_view(title, rows, remarks)])


def fit(runs: Path, *, bootstraps: int = 200, seed: int = 0, least_tokens_per_param: float = 0.0) -> Answer:
    """Fit L = E + A/params^alpha + B/tokens^beta to runs of yours, with bootstrap intervals.

    runs : CSV with the columns params, tokens and loss.
    bootstraps : Resamples behind the intervals, 10 to 10,000.
    seed : Of the resampling.
    least_tokens_per_param : Leave out runs with fewer.
    """
    from sim.report.scaling import fit_view

    if not 10 <= bootstraps <= MOST_RESAMPLES or seed < 0:
        raise SpecError(f"--bootstraps {bootstraps} must be 10 to {MOST_RESAMPLES:,}, and --seed {seed} zero or more")
    if least_tokens_per_param < 0:
        raise SpecError(f"--least-tokens-per-param {least_tokens_per_param:g} must be zero or more")
    table = read_runs(runs)
    kept = table[:, table[1] >= least_tokens_per_param * table[0]]
    with spinner("fitting"):
        found = fit_loss(kept, bootstraps, seed)
    left = table.shape[1] - kept.shape[1]
    title = f"{kept.shape[1]} runs of {runs}" + (f" ({left} left out)" if left else "")
    told: dict[str, Any] = dict(zip(NAMES, found.constants.tolist(), strict=True))
    told["intervals"] = {name: found.interval(name) for name in (*NAMES, "exponent")}
    told |= {"runs": kept.shape[1], "objective": found.objective, "residual": found.residual}
    return Answer(lambda: told, lambda: [fit_view(title, found)])


def laws() -> Answer:
    """The laws there are: their constants with published errors, where they stand, and how far that was checked."""
    from sim.report.scaling import laws_view

    told = ("fact", "data_overhead", "summary", "source", "checked")
    rows = {name: {key: getattr(law, key) for key in told} for name, law in BATCH_LAWS.items()}
    loss = {name: asdict(law) for name, law in LAWS.items()}
    return Answer(lambda: {"loss": loss, "batch": rows}, lambda: [laws_view(LAWS, BATCH_LAWS)])
