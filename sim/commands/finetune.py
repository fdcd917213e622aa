"""`flopcast finetune`: does a fine-tuning fit, or what would make it fit; how long it takes, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from sim.commands import completion as complete
from sim.commands.options import with_records, with_value
from sim.commands.output import print_json, print_view
from sim.commands.plan import HowOptions, Model, PlanOptions
from sim.commands.progress import progress_bar, spinner
from sim.errors import InfeasiblePlan, SpecError

if TYPE_CHECKING:
    from sim.scaling.finetuning import FineTuning, Offer
    from sim.scaling.run import Terms


class _LoraCommand(TyperCommand):
    """A command whose `--lora` may stand without a rank."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from sim.scaling.finetuning import RANK

        return super().parse_args(ctx, with_value(args, "--lora", str(RANK), str.isdecimal))


COMMAND = _LoraCommand


@with_records
def finetune(
    *,
    model: Model,
    samples: Annotated[str | None, typer.Option(help="How many samples, such as 50k.")] = None,
    epochs: Annotated[float, typer.Option(help="How often each is seen.")] = 3.0,
    gpus: Annotated[int | None, typer.Option(help="How many GPUs; 1, 2, 4 and 8 if not given.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="The kind of GPU: rtx4090, a100-40gb, h100; all with a list price if not given.",
            autocompletion=complete.preset("gpus"),
        ),
    ] = None,
    lora: Annotated[
        int | None,
        typer.Option(metavar="[RANK]", help="Low-rank adapters, of rank 8 if not given, and not all weights."),
    ] = None,
    offload: Annotated[bool, typer.Option("--offload", help="States and activations may wait in host memory.")] = False,
    budget: Annotated[str | None, typer.Option(help="Money for the run: what it pays for, the fastest first.")] = None,
    how: HowOptions,
    then: PlanOptions,
) -> None:
    """Does a fine-tuning fit, or what would make it fit; hours and cost, on the GPUs named or those that suit best."""
    from sim.commands.search_options import check_numbers
    from sim.scaling.finetuning import FineTuning
    from sim.specs.machines import choice_among, gpu_named
    from sim.units import parse_count, parse_whole

    if samples is None:
        raise SpecError("on how many samples? Give --samples 50k")
    check_numbers(gpus=gpus, lora=lora)
    if epochs <= 0:
        raise SpecError(f"--epochs {epochs:g} must be above zero")
    if how.price is not None and gpu is None:
        raise SpecError(f"--price {how.price} is of one kind of GPU; name it with --gpu, or leave --price out")
    sizes = (parse_whole(samples, "samples"), epochs, lora or 0, how.length)
    chosen = () if gpu is None else tuple(filter(None, [choice_among(gpu)]))
    asked = FineTuning(model, *sizes, how.batch, how.precision, how.framework, offload, chosen)
    money = None if budget is None else parse_count(budget, "budget")
    card = None if gpu is None else gpu_named(gpu)
    if card is not None and gpus is not None:
        _one(asked, card, gpus, how.terms(), money, then)
    else:
        _ranked(asked, card, gpus, how.terms(), money, then)


def _one(asked: FineTuning, gpu: str, gpus: int, terms: Terms, budget: float | None, then: PlanOptions) -> None:
    """Answer for one machine; where nothing fits, with what would make it fit."""
    from sim.report.questions import lacking_view, planned_view
    from sim.scaling.finetuning import FRAMEWORK, Lacking, offer_of, remedies_of

    try:
        offer = offer_of(asked, gpu, gpus, terms)
    except InfeasiblePlan as error:
        lacking = Lacking(gpu, gpus, str(error))
        with spinner("looking for what would make it fit"):
            remedies, useless = remedies_of(asked, gpu, gpus, terms)
        if then.as_json:
            found = [{"change": words, **each.to_dict()} for words, each in remedies]
            print_json({**lacking.to_dict(), "remedies": found, "do_not_help": useless})
        else:
            print_view(lacking_view(asked, lacking, remedies, useless))
        best = f"; the cheapest change that makes it fit: {remedies[0][0]}" if remedies else ""
        raise InfeasiblePlan(f"the fine-tuning does not fit on {gpus} × {gpu}{best}") from None
    steps = [*then.next_steps(asked.framework or FRAMEWORK), "Leave --gpu or --gpus out to see other machines."]
    within = {} if budget is None else {"within_budget": offer.cost <= budget}
    data = {**offer.to_dict(), **within, "answer": offer.planned.to_dict()}
    view = planned_view(offer.planned, _sentence(offer, budget), steps)
    then.show(offer.planned.answer.scenario, data, view)


def _sentence(offer: Offer, budget: float | None) -> str:
    from sim.report.questions import money, sentence_of

    asked, currency = offer.asked, offer.training.run.currency
    times = "once" if asked.epochs == 1 else f"{asked.epochs:g} times"
    words = sentence_of(offer.planned, f"It fits: {asked.samples:,.0f} samples seen {times}")
    if budget is None:
        return words
    over = offer.cost - budget
    how_far = "within" if over <= 0 else f"{money(over, currency)} above"
    return f"{words[:-1]}, {how_far} the budget of {money(budget, currency)}."


def _ranked(
    asked: FineTuning, gpu: str | None, gpus: int | None, terms: Terms, budget: float | None, then: PlanOptions
) -> None:
    """Answer for several machines: the cheapest first, or within a budget the fastest."""
    from sim.report.questions import money, ranking_view
    from sim.scaling.finetuning import COUNTS, in_budget, offers_of

    counts = COUNTS if gpus is None else (gpus,)
    with progress_bar("machines searched") as progress:
        offers, lacking = offers_of(asked, () if gpu is None else (gpu,), counts, terms, progress)
    if not offers:
        raise InfeasiblePlan(
            f"{asked.model} fits on none of the {len(lacking)} machines: {lacking[-1].why}. Name one with --gpu and "
            "--gpus for what would help, such as --lora, --offload or a shorter --seq"
        )
    paid = offers if budget is None else in_budget(offers, budget)
    what = "the cheapest first"
    if budget is not None:
        limit = money(budget, offers[0].training.run.currency)
        what = f"within {limit}, the fastest first" if paid else f"{limit} pay for none of them; the cheapest first"
    everything = [*(each.to_dict() for each in offers), *(each.to_dict() for each in lacking)]
    data = {"budget": budget, "best": [each.to_dict() for each in paid], "all": everything}
    view = ranking_view(f"{asked.model} on these GPUs, {what}", paid or offers, offers, lacking)
    then.show((paid or offers)[0].planned.answer.scenario, data, view)
