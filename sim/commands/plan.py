"""`flopcast plan`: which plan trains a model on a machine, how long the run takes and what it costs, without a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.commands import options
from sim.commands.fills import Fills, Opt, count, with_records
from sim.commands.options import Json, PriceOption, Verbose, print_json, print_view
from sim.commands.progress import progress_bar
from sim.commands.search_options import check_files, check_numbers, read_limit
from sim.errors import SpecError
from sim.reliability.cost import Price
from sim.scaling.questions import TOKENS, Planned, Pretraining
from sim.scaling.run import Terms
from sim.specs import Scenario
from sim.units import parse_whole

if TYPE_CHECKING:
    from sim.estimate import Estimate
    from sim.scaling.offers import Ranking

Model = Annotated[
    str,
    typer.Argument(
        help="A preset, a model of the Hugging Face hub, or a config.json.",
        show_default=False,
        autocompletion=options.preset("models"),
    ),
]


FULL, KEPT = 0.95, 0.9
"""Share of the memory above which a plan is advised to keep a reserve, and the share that the reserve leaves."""
HOW: dict[str, Opt | str] = {
    "length": Opt("--seq", read=lambda words, _: parse_whole(words, "sequence_length")),
    "memory_limit_bytes": Opt("--memory-limit", read=lambda words, _: read_limit(words)),
}
"""Options of every question that differ from its fields."""
PRETRAINING = Fills(
    Pretraining,
    "model",
    "assumed",
    tokens=Opt(read=count),
    framework=Opt(show_default="megatron-lm", autocompletion=options.preset("frameworks")),
    **HOW,
)


def terms_of(price: str | None) -> Terms:
    """The terms of a run at the price given, or at the GPU's list price."""
    return Terms(price=None if price is None else Price.read(price))


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What becomes of the best plan.

    Raises
    ------
    SpecError
        A file or a framework to which it could not be written: this is said before anything is computed.
    """

    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="YAML", help="Write the best plan as a scenario.")
    ] = None
    export_to: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="FRAMEWORK",
            help="Also the plan as a framework's options: megatron-lm, megatron-bridge, torchtitan or deepspeed.",
            autocompletion=options.frameworks_to_export_to,
        ),
    ] = None
    verbose: Verbose = False
    as_json: Json = False

    def __post_init__(self) -> None:
        check_files({}, None, self.output)
        if self.export_to is not None:
            from sim.foreign.exporters import check_framework

            check_framework(self.export_to)

    def next_steps(self, framework: str, limit_bytes: float | None = None) -> list[str]:
        """What to do with a plan of a framework, as far as it was not done: a sentence each.

        limit_bytes : memory limit that was asked for, which a search needs too.
        """
        from sim.foreign.exporters import FRAMEWORKS
        from sim.units import show

        file = self.output or "best.yaml"
        words = framework if framework in FRAMEWORKS else "FRAMEWORK"
        exported = [f"Add --export {words} to print the plan as the options of a framework."]
        written = "" if self.output else f"Add -o {file} to write this plan as a scenario. "
        limit = "" if limit_bytes is None else f" --memory-limit '{show(limit_bytes, 'B')}'"
        further = (
            f"flopcast estimate {file} shows where a step's time goes. flopcast search {file}{limit} shows other plans."
        )
        return [*(exported if self.export_to is None else []), written + further]

    def show(self, scenario: Scenario, data: dict[str, Any], view: Any) -> None:
        """Print the answer, as JSON or for eyes, then write the best plan's scenario where it was asked for."""
        from sim.commands.search import write_scenario
        from sim.foreign.exporters import export_scenario

        if self.as_json:
            said = {} if self.export_to is None else {"export": export_scenario(scenario, self.export_to).to_dict()}
            print_json({**data, **said})
        else:
            print_view(view)
        if self.output is not None:
            write_scenario(self.output, scenario)
        if self.output is not None and not self.as_json:
            typer.echo(f"\nThe best plan is in {self.output}")
        if self.export_to is not None and not self.as_json:
            from sim.commands.export import print_exported

            typer.echo()
            print_exported(export_scenario(scenario, self.export_to))


def reserve_steps(answer: Estimate) -> list[str]:
    """Advice for a plan that leaves little memory free."""
    from sim.units import show

    available = answer.memory_available_bytes
    if answer.largest.total < FULL * available:
        return []
    reserve = show(KEPT * available, "B")
    return [
        f"The plan fills {answer.largest.total / available:.0%} of the memory, and half of all predicted peaks are off "
        f"by more than 4%. Add --memory-limit '{reserve}' to keep a tenth."
    ]


@with_records
def plan(
    *,
    model: Model,
    gpus: Annotated[int | None, typer.Option(help="How many GPUs.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="A cluster preset, of any size; all GPUs with a list price if not given.",
            autocompletion=options.preset("clusters"),
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Or the kind of GPU: h100, a100-80gb, 4090.", autocompletion=options.preset("gpus")),
    ] = None,
    question: Annotated[partial[Pretraining], PRETRAINING],
    price: PriceOption = None,
    then: PlanOptions,
) -> None:
    """Which plan is the best for a model on so many GPUs, how long its run takes and what it costs; on which GPUs."""
    from sim.report.questions import planned_view, ranking_view, sentence_of
    from sim.units import show_count

    found = ask_plan(model, gpus, gpu, cluster, question, price, then.export_to)
    limit = question.keywords.get("memory_limit_bytes")
    steps = then.next_steps(question.keywords.get("framework") or "megatron-lm", limit)
    if not isinstance(found, Planned):
        best = found.offers[0]
        heading = f"{show_count(best.training.run.tokens)} tokens of {model} on {gpus} GPUs, the cheapest first"
        then.show(best.planned.answer.scenario, found.to_dict(), ranking_view(heading, found, then.verbose))
        return
    if "tokens" not in question.keywords:
        steps.insert(0, "Add --tokens 15T for the days and the cost of a run of so many tokens.")
    if limit is None:
        steps += reserve_steps(found.answer)
    then.show(found.answer.scenario, found.to_dict(), planned_view(found, sentence_of(found), steps, then.verbose))
    if not found.result.finished:
        raise KeyboardInterrupt


def ask_plan(
    model: str,
    gpus: int | None,
    gpu: str | None,
    cluster: str | None,
    question: partial[Pretraining],
    price: str | None,
    export_to: str | None = None,
) -> Planned | Ranking:
    """The best plan and its run on the machine named; where none is named, on all GPUs that have a list price.

    Raises
    ------
    SpecError
        A question that says too little, or too much.
    InfeasiblePlan
        Nothing fits.
    """
    from sim.scaling.offers import rank
    from sim.specs.machines import choice_among, gpu_named

    if gpus is None:
        raise SpecError("on how many GPUs? Give --gpus 512; flopcast shortest answers for every number of them")
    if cluster is not None and gpu is not None:
        raise SpecError(f"--cluster {cluster!r} names the machine already; leave --gpu out")
    check_numbers(gpus=gpus)
    named = gpu is not None or cluster is not None
    if price is not None and not named:
        raise SpecError(f"--price {price} is of one kind of GPU; name it with --gpu, or leave --price out")
    chosen = () if gpu is None else tuple(filter(None, [choice_among(gpu)]))
    asked = replace(question(model), assumed=chosen)
    asked = replace(asked, framework=asked.framework or export_to)
    terms = terms_of(price)
    if named:
        card = None if gpu is None else gpu_named(gpu)
        with progress_bar("plans priced") as progress:
            return asked.answer(card, gpus, cluster or "", terms=terms, export_to=export_to, progress=progress)
    if asked.tokens is None:
        assumed = (f"a run of {TOKENS / 1e12:g} trillion tokens (--tokens)",)
        asked = replace(asked, tokens=TOKENS, assumed=assumed)
    with progress_bar("machines searched") as progress:
        return rank(partial(asked.planned, terms=terms, export_to=export_to), [gpus], progress=progress)
