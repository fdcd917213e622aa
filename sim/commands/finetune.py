"""`flopcast finetune`: does a fine-tuning fit, or what would make it fit; how long it takes, and what it costs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from sim.commands import options
from sim.commands.fills import Fills, Opt, count, with_records
from sim.commands.options import PriceOption, print_json, print_view, with_value
from sim.commands.plan import HOW, Model, PlanOptions, reserve_steps, terms_of
from sim.commands.progress import progress_bar, spinner
from sim.commands.search_options import check_numbers
from sim.errors import InfeasiblePlan, SpecError
from sim.scaling.finetuning import COUNTS, FRAMEWORK, RANK, FineTuning, Unfit, tune
from sim.units import parse_whole

if TYPE_CHECKING:
    from sim.scaling.offers import Offer, Ranking

TUNING = Fills(
    FineTuning,
    "model",
    "assumed",
    samples=Opt(read=lambda words, _: parse_whole(words, "samples")),
    rank=Opt(
        "--lora",
        metavar="[RANK]",
        show_default="all weights",
        help=f"Train low-rank adapters, of rank {RANK} if not given.",
    ),
    qlora=Opt(
        "--qlora",
        metavar="[RANK]",
        show_default="weights in 16 bits",
        help=f"Train low-rank adapters beside weights in 4 bits (NF4), of rank {RANK} if not given.",
    ),
    offload="--offload",
    budget=Opt(read=count),
    framework=Opt(show_default=FRAMEWORK, autocompletion=options.preset("frameworks")),
    **HOW,
)


class _LoraCommand(TyperCommand):
    """A command whose `--lora` and `--qlora` may stand without a rank."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(each.partition("=")[0] == "--tokens" for each in args):
            raise SpecError(
                "finetune counts samples instead of --tokens: give --samples, and --seq for the tokens of each"
            )
        for option in ("--lora", "--qlora"):
            args = with_value(args, option, str(RANK), str.isdecimal)
        return super().parse_args(ctx, args)


COMMAND = _LoraCommand


@with_records
def finetune(
    *,
    model: Model,
    question: Annotated[partial[FineTuning], TUNING],
    price: PriceOption = None,
    gpus: Annotated[int | None, typer.Option(help="How many GPUs; default: 1, 2, 4 and 8 are compared.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="The kind of GPU: rtx4090, a100-40gb or another; default: all with a list price.",
            autocompletion=options.preset("gpus"),
        ),
    ] = None,
    then: PlanOptions,
) -> None:
    """Does a fine-tuning fit, or what would make it fit; hours and cost, on the GPUs named or those that suit best."""
    from sim.report.questions import lacking_view, money, planned_view, ranking_view, tuned_sentence
    from sim.scaling.offers import Ranking

    asked, found = ask_tuning(model, gpus, gpu, question, price)
    data = tuning_data(asked, found)
    if isinstance(found, Unfit):
        lacking, remedies = found.lacking, found.remedies
        if then.as_json:
            print_json(data)
        else:
            print_view(lacking_view(asked, found))
        best = f"; the cheapest change that makes it fit: {remedies[0][0]}" if remedies else ""
        raise InfeasiblePlan(f"the fine-tuning does not fit on {lacking.gpus} × {lacking.gpu}{best}")
    if isinstance(found, Ranking):
        what = "the cheapest first"
        if found.budget is not None:
            limit = money(found.budget, found.offers[0].training.run.currency)
            paid = f"within {limit}, the fastest first"
            what = paid if found.paid else f"none of them costs as little as {limit}; the cheapest first"
        view = ranking_view(f"{asked.model} on these GPUs, {what}", found, then.verbose)
        then.show(found.shown[0].planned.answer.scenario, data, view)
        return
    steps = [
        *then.next_steps(asked.framework or FRAMEWORK, asked.memory_limit_bytes),
        *(reserve_steps(found.planned.answer) if asked.memory_limit_bytes is None else ()),
        "Leave --gpu or --gpus out to see other machines.",
    ]
    view = planned_view(found.planned, tuned_sentence(asked, found), steps, then.verbose)
    then.show(found.planned.answer.scenario, data, view)


def tuning_data(asked: FineTuning, found: Offer | Unfit | Ranking) -> dict[str, Any]:
    """The answer as plain data with stable keys, for JSON."""
    from sim.scaling.offers import Offer

    if not isinstance(found, Offer):
        return found.to_dict()
    within = {} if asked.budget is None else {"within_budget": found.cost <= asked.budget}
    return {**found.to_dict(), **within, "answer": found.planned.to_dict()}


def ask_tuning(
    model: str, gpus: int | None, gpu: str | None, question: partial[FineTuning], price: str | None
) -> tuple[FineTuning, Offer | Unfit | Ranking]:
    """A fine-tuning and its answer on the machine named, or on several.

    Raises
    ------
    SpecError
        A question that says too little, or too much.
    InfeasiblePlan
        Nothing fits on any of several machines.
    """
    from sim.scaling.offers import rank
    from sim.specs.machines import choice_among, gpu_named

    if "samples" not in question.keywords:
        raise SpecError("on how many samples? Give --samples 50k")
    lora, qlora = (question.keywords.get(each) for each in ("rank", "qlora"))
    check_numbers(gpus=gpus, lora=lora, qlora=qlora)
    if lora and qlora:
        raise SpecError(f"--lora {lora} and --qlora {qlora} both say what is trained; leave one out")
    if question.keywords["epochs"] <= 0:
        raise SpecError(f"--epochs {question.keywords['epochs']:g} must be above zero")
    if price is not None and gpu is None:
        raise SpecError(f"--price {price} is of one kind of GPU; name it with --gpu, or leave --price out")
    asked = question(model, assumed=() if gpu is None else tuple(filter(None, [choice_among(gpu)])))
    card, terms = None if gpu is None else gpu_named(gpu), terms_of(price)
    if card is not None and gpus is not None:
        with spinner("looking for what fits"):
            return asked, tune(asked, card, gpus, terms)
    counts = COUNTS if gpus is None else (gpus,)
    with progress_bar("machines searched") as progress:
        ask = partial(asked.planned, terms=terms)
        return asked, rank(ask, counts, () if card is None else (card,), asked.budget, progress)
