"""`flopcast finetune`: does a fine-tuning fit, or what would make it fit; how long it takes, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from sim.commands import completion as complete
from sim.commands.options import Json, PriceOption, with_value
from sim.commands.output import print_json, print_view
from sim.commands.plan import (
    Batch,
    Export,
    Framework,
    Model,
    OutputFile,
    Precision,
    Sequence,
    check_files,
    exported_as_json,
    length_named,
    next_steps,
    terms_of,
    write_files,
)
from sim.commands.progress import progress_bar
from sim.errors import InfeasiblePlan, SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from sim.scaling.finetuning import FineTuning, Offer
    from sim.scaling.run import Terms


class _LoraCommand(TyperCommand):
    """A command whose `--lora` may stand without a rank."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from sim.scaling.finetuning import RANK

        return super().parse_args(ctx, with_value(args, "--lora", str(RANK), str.isdecimal))


COMMAND = _LoraCommand


def finetune(
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
    seq: Sequence = None,
    batch: Batch = None,
    budget: Annotated[str | None, typer.Option(help="Money for the run: what it pays for, the fastest first.")] = None,
    framework: Framework = None,
    precision: Precision = None,
    price: PriceOption = None,
    output: OutputFile = None,
    export_to: Export = None,
    as_json: Json = False,
) -> None:
    """Does a fine-tuning fit, or what would make it fit; hours and cost, on the GPUs named or those that suit best."""
    from sim.scaling.finetuning import COUNTS, FineTuning, offer_of, offers_of
    from sim.specs.machines import gpu_named
    from sim.units import parse_count

    check_files(output, export_to)
    if samples is None:
        raise SpecError("on how many samples? Give --samples 50k")
    if gpus is not None and gpus < 1:
        raise SpecError(f"--gpus {gpus} must be one or more")
    if epochs <= 0:
        raise SpecError(f"--epochs {epochs:g} must be above zero")
    if price is not None and gpu is None:
        raise SpecError(f"--price {price} is of one kind of GPU; name it with --gpu, or leave --price out")
    asked = FineTuning(
        model,
        parse_count(samples, "samples"),
        epochs,
        lora or 0,
        length_named(seq),
        batch,
        precision,
        framework,
        offload,
    )
    kinds = () if gpu is None else (gpu_named(gpu),)
    money = None if budget is None else parse_count(budget, "budget")
    terms = terms_of(price)
    if kinds and gpus is not None:
        _one(offer_of(asked, kinds[0], gpus, terms), terms, money, output, export_to, as_json)
        return
    counts = COUNTS if gpus is None else (gpus,)
    with progress_bar("machines searched") as progress:
        offers = offers_of(asked, kinds, counts, terms, progress)
    _ranked(offers, asked, money, output, export_to, as_json)


def _one(
    offer: Offer, terms: Terms, budget: float | None, output: Path | None, export_to: str | None, as_json: bool
) -> None:
    """Answer for one machine; where nothing fits, with what would make it fit."""
    from sim.report.questions import lacking_view, planned_view
    from sim.scaling.finetuning import FRAMEWORK, remedies_of

    if offer.planned is None or offer.run is None:
        with progress_bar("changes tried"):
            remedies, useless = remedies_of(offer, terms)
        if as_json:
            found = [each.to_dict() for each in remedies]
            print_json({**offer.to_dict(), "remedies": found, "do_not_help": useless})
        else:
            print_view(lacking_view(offer, remedies, useless))
        best = f"; the cheapest that does: {remedies[0].words}" if remedies else ""
        raise InfeasiblePlan(f"the fine-tuning does not fit on {offer.gpus} × {offer.gpu}{best}")
    scenario = offer.planned.answer.scenario
    if as_json:
        within = {} if budget is None else {"within_budget": offer.cost <= budget}
        answer = offer.planned.to_dict()
        print_json({**offer.to_dict(), **within, "answer": answer, **exported_as_json(scenario, export_to)})
    else:
        then = next_steps(output, export_to, offer.asked.framework or FRAMEWORK)
        then.append("Leave --gpu or --gpus out to see other machines.")
        print_view(planned_view(offer.planned, _sentence(offer, budget), then))
    write_files(scenario, output, export_to, as_json)


def _sentence(offer: Offer, budget: float | None) -> str:
    from sim.report.questions import money, sentence_of

    assert offer.planned is not None
    assert offer.run is not None
    asked = offer.asked
    times = "once" if asked.epochs == 1 else f"{asked.epochs:g} times"
    words = sentence_of(offer.planned, f"It fits: {asked.samples:,.0f} samples seen {times}")
    if budget is None:
        return words
    over = offer.cost - budget
    limit = money(budget, offer.run)
    return f"{words[:-1]}, {'within' if over <= 0 else f'{money(over, offer.run)} above'} the budget of {limit}."


def _ranked(
    offers: list[Offer],
    asked: FineTuning,
    budget: float | None,
    output: Path | None,
    export_to: str | None,
    as_json: bool,
) -> None:
    """Answer for several machines: the cheapest first, or within a budget the fastest."""
    from sim.report.questions import money as money_words
    from sim.report.questions import ranking_view
    from sim.scaling.finetuning import in_budget

    fitting = [offer for offer in offers if offer.planned is not None]
    shown = fitting if budget is None else in_budget(offers, budget)
    if as_json:
        print_json(
            {"budget": budget, "best": [each.to_dict() for each in shown], "all": [each.to_dict() for each in offers]}
        )
    elif fitting:
        assert fitting[0].run is not None
        what = "the cheapest first"
        if budget is not None:
            paid = money_words(budget, fitting[0].run)
            what = f"within {paid}, the fastest first" if shown else f"{paid} pay for none of them; the cheapest first"
        print_view(ranking_view(offers, shown or fitting, f"{asked.model} on these GPUs, {what}"))
    if not fitting:
        raise InfeasiblePlan(
            f"{asked.model} fits on none of the {len(offers)} machines; {offers[-1].lacking}. Name one with --gpu and "
            "--gpus for what would help, such as --lora, --offload or a shorter --seq"
        )
    best = (shown or fitting)[0].planned
    assert best is not None
    write_files(best.answer.scenario, output, export_to, as_json)
