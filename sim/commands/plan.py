"""`flopcast plan` and `flopcast finetune`: on which GPUs and by which plan, how long and how dear, without a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sim.commands import options as opt
from sim.commands.files import print_exported
from sim.commands.fills import COUNT, Fills, Opt
from sim.commands.progress import progress_bar, spinner
from sim.commands.search import write_scenario
from sim.errors import InfeasiblePlan, SpecError, require_positive
from sim.estimate import Estimate
from sim.foreign.exporters import FRAMEWORKS, check_framework, export_scenario
from sim.reliability.cost import Price
from sim.scaling.finetuning import CHUNKED, COUNTS, FRAMEWORK, RANK, FineTuning, Unfit, tune, with_fused_kernels
from sim.scaling.offers import InTime, Ranking, in_time, rank
from sim.scaling.questions import TOKENS, Planned, Pretraining
from sim.scaling.run import Terms
from sim.specs import Scenario
from sim.specs.machines import choice_among, gpu_named
from sim.units import parse, parse_whole, show, show_count, show_time

Model = Annotated[
    str,
    typer.Argument(
        help="A preset, a model of the Hugging Face hub, or a config.json.",
        show_default=False,
        autocompletion=opt.preset("models"),
    ),
]
FULL, KEPT = 0.95, 0.9
"""Share of the memory above which a plan is advised to keep a reserve, and the share that the reserve leaves."""
HOW: dict[str, Opt | str] = {
    "length": Opt("--seq", read=lambda words, _: parse_whole(words, "sequence_length")),
    "memory_limit_bytes": Opt("--memory-limit", read=lambda words, _: opt.read_limit(words)),
    "profile": Opt(autocompletion=opt.preset("profiles")),
}
"""Options of both questions that differ from their fields."""
PRETRAINING = Fills(
    Pretraining,
    *("model", "overrides", "assumed"),
    tokens=COUNT,
    framework=Opt(show_default="megatron-lm", autocompletion=opt.preset("frameworks")),
    **HOW,
)

TUNING = Fills(
    FineTuning,
    *("model", "overrides", "assumed"),
    samples=Opt(read=lambda words, _: parse_whole(words, "samples")),
    rank=Opt(
        "--lora",
        show_default="all weights",
        help=f"Train low-rank adapters, of rank {RANK} if not given.",
        metavar="[RANK]",
    ),
    qlora=Opt(
        "--qlora",
        show_default="weights in 16 bits",
        help=f"Train low-rank adapters beside weights in 4 bits (NF4), of rank {RANK} if not given.",
        metavar="[RANK]",
    ),
    offload="--offload",
    framework=Opt(show_default=FRAMEWORK, autocompletion=opt.preset("frameworks")),
    **HOW,
)


def _terms(price: str | None) -> Terms:
    """The terms of a run at the price given, or at the GPU's list price."""
    return Terms(price=None if price is None else Price.read(price))


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What becomes of the best plan; what could not be written is refused before anything is computed.

    output --output -o YAML : Write the best plan as a scenario.
    export_to --export FRAMEWORK : Also the plan as a framework's options: megatron-lm, megatron-bridge, torchtitan or
        deepspeed.
    """

    output: Path | None = None
    export_to: str | None = None
    verbose: opt.Verbose = False
    as_json: opt.Json = False

    def __post_init__(self) -> None:
        opt.check_output(self.output)
        if self.export_to is not None:
            check_framework(self.export_to)

    def next_steps(self, answer: Estimate, limit_bytes: float | None) -> list[str]:
        """What to do with a plan, a sentence each, and how to keep memory in reserve."""
        file, framework = self.output or "best.yaml", answer.scenario.stack.framework
        words = framework if framework in FRAMEWORKS else "FRAMEWORK"
        exported = [f"Add --export {words} to print the plan as the options of a framework."]
        written = "" if self.output else f"Add -o {file} to write this plan as a scenario. "
        limit = "" if limit_bytes is None else f" --memory-limit '{show(limit_bytes, 'B')}'"
        further = (
            f"flopcast estimate {file} shows where a step's time goes, and docs/faster.md what shortens each part. "
            f"flopcast search {file}{limit} shows other plans."
        )
        steps = [*(exported if self.export_to is None else []), written + further]
        if limit_bytes is None:
            full = answer.largest.total / answer.memory_available_bytes
            reserve = show(KEPT * answer.memory_available_bytes, "B")
            advice = f"and half of all predicted peaks are off by more than 4%. Add --memory-limit '{reserve}'"
            steps += (
                [f"The plan fills {full:.0%} of the memory, {advice} to keep a tenth of it free."]
                if full >= FULL
                else []
            )
        return steps

    def show(self, scenario: Scenario, data: dict[str, Any], view: Any) -> None:
        """Print the answer, as JSON or for eyes, then write the best plan's scenario where it was asked for."""

        exported = None if self.export_to is None else export_scenario(scenario, self.export_to)
        if self.as_json:
            opt.print_json(data if exported is None else {**data, "export": exported.to_dict()})
        else:
            opt.print_view(view)
        if self.output is not None:
            write_scenario(self.output, scenario)
        if self.output is not None and not self.as_json:
            typer.echo(f"\nThe best plan is in {self.output}")
        if exported is not None and not self.as_json:
            typer.echo()
            print_exported(exported)


def plan(
    *,
    model: Model,
    gpus: int | None = None,
    within: str | None = None,
    cluster: str | None = None,
    gpu: str | None = None,
    overrides: opt.Overrides = None,
    question: Annotated[partial[Pretraining], PRETRAINING],
    price: opt.PriceOption = None,
    then: PlanOptions,
) -> None:
    """Which plan is the best for a model on so many GPUs, how long its run takes and what it costs; on which GPUs.

    gpus : How many GPUs.
    within TIME : Time for the run (30d): the fewest GPUs that end it by then, or with --gpus the chance that they do.
    cluster : A cluster's or node's preset or YAML file, whose number of nodes is ignored; all GPUs with a list price if
        not given.
    gpu : Or the kind of GPU: h100, a100-80gb, 4090.
    """
    from sim.report.questions import in_time_sentence, planned_view, ranking_view, sentence_of

    question = partial(question, overrides=tuple(overrides or ()))
    found = ask_plan(model, gpus, within, gpu, cluster, question, price, then.export_to)
    if isinstance(found, Ranking):
        best = found.offers[0]
        heading = f"{show_count(best.run.tokens)} tokens of {model} on {gpus} GPUs, the cheapest first"
        then.show(best.answer.scenario, found.to_dict(), ranking_view(heading, found, then.verbose))
        return
    planned, deadline = (found, None) if isinstance(found, Planned) else (found.planned, found)
    steps = then.next_steps(planned.answer, question.keywords.get("memory_limit_bytes"))
    if planned.training is None:
        steps.insert(0, "Add --tokens 15T for the days and the cost of a run of so many tokens.")
    if deadline is not None:
        steps.append(
            f"Leave --gpus out for the fewest GPUs that end the run within {within}."
            if deadline.given
            else "Usual sizes were tried, of 1 to 8, 10, 12, 14, 16, 20 … nodes, then some between. --gpus takes any."
        )
    said = sentence_of(planned) if deadline is None or deadline.given else in_time_sentence(deadline)
    then.show(planned.answer.scenario, found.to_dict(), planned_view(planned, said, steps, then.verbose, deadline))


OPTIONS = {
    "model": "MODEL",
    "cluster": "--cluster",
    "cluster.num_nodes": "--gpus",
    "stack": "--framework",
    "training.global_batch_size": "--batch",
    "training.sequence_length": "--seq",
    "training.precision": "--precision",
    "training.tokens": "--tokens",
}
"""Fields that options of `plan` set, since defaults and the number of GPUs depend on them."""


def ask_plan(
    model: str,
    gpus: int | None,
    within: str | None,
    gpu: str | None,
    cluster: str | None,
    question: partial[Pretraining],
    price: str | None,
    export_to: str | None = None,
) -> Planned | InTime | Ranking:
    """The best plan and its run on the machine named; where none is named, on all GPUs that have a list price."""
    _check_plan(gpus, within, gpu, cluster, question)
    named = gpu is not None or cluster is not None
    _refuse_unnamed(named, price, question.keywords.get("profile"))
    asked = question(model, assumed=() if gpu is None else tuple(filter(None, [choice_among(gpu)])))
    asked = replace(asked, framework=asked.framework or export_to)
    terms, card = _terms(price), None if gpu is None else gpu_named(gpu)
    limit = None if within is None else parse(within, "s")
    if limit is not None:
        require_positive(within=limit)
    if limit is not None and gpus is None:
        with progress_bar("sizes searched") as progress:
            return in_time(asked, limit, card, cluster or "", terms=terms, export_to=export_to, progress=progress)
    assert gpus is not None
    if named:
        with progress_bar("plans priced") as progress:
            found = asked.answer(card, gpus, cluster or "", terms=terms, export_to=export_to, progress=progress)
        return found if limit is None else InTime(limit, found, None, given=True)
    if asked.tokens is None:
        assumed = (f"a run of {TOKENS / 1e12:g} trillion tokens (--tokens)",)
        asked = replace(asked, tokens=TOKENS, assumed=assumed)
    with progress_bar("machines searched") as progress:
        return rank(asked, [gpus], progress=progress, terms=terms, export_to=export_to)


def _check_plan(
    gpus: int | None, within: str | None, gpu: str | None, cluster: str | None, question: partial[Pretraining]
) -> None:
    """Refuse options of `plan` that lack another, or say the same as another."""
    if gpus is None and within is None:
        raise SpecError(
            "--gpus is missing: give a number, such as --gpus 512, or --within 30d for the fewest GPUs that end the "
            "run by then"
        )
    if within is not None and "tokens" not in question.keywords:
        raise SpecError(f"--within {within} needs to know how long the run is; add --tokens, such as --tokens 15T")
    if within is not None and gpu is None and cluster is None:
        raise SpecError(f"--within {within} needs a kind of GPU; add --gpu, such as --gpu h100, or --cluster")
    if cluster is not None and gpu is not None:
        raise SpecError(f"--cluster {cluster!r} names the machine already; leave --gpu out")
    opt.check_numbers(gpus=gpus)
    for each in question.keywords.get("overrides", ()):
        field = each.partition("=")[0].strip()
        if field in OPTIONS:
            raise SpecError(f"-s {each}: plan sets {field} by {OPTIONS[field]}; write it so")


def _refuse_unnamed(named: bool, price: str | None, profile: str | None) -> None:
    """Refuse what holds for one kind of GPU where several are compared."""
    for option, given in (("--price", price), ("--profile", profile)):
        if given is not None and not named:
            raise SpecError(f"{option} {given} is of one kind of GPU; name it with --gpu, or leave {option} out")


class _LoraCommand(TyperCommand):
    """A command whose `--lora` and `--qlora` may stand without a rank."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(each.partition("=")[0] == "--tokens" for each in args):
            raise SpecError(
                "finetune counts samples instead of --tokens: give --samples, and --seq for the tokens of each"
            )
        for option in ("--lora", "--qlora"):
            args = opt.with_value(args, option, str(RANK), str.isdecimal)
        return super().parse_args(ctx, args)


FINETUNE_COMMAND = _LoraCommand


def finetune(
    *,
    model: Model,
    question: Annotated[partial[FineTuning], TUNING],
    price: opt.PriceOption = None,
    gpus: int | None = None,
    gpu: str | None = None,
    then: PlanOptions,
) -> None:
    """Does a fine-tuning fit, or what would make it fit; hours and cost, on the GPUs named or those that suit best.

    gpus : How many GPUs; default: 1, 2, 4 and 8 are compared.
    gpu : The kind of GPU: rtx4090, a100-40gb or another; default: all with a list price.
    """
    from sim.report.questions import lacking_view, money, planned_view, ranking_view, sentence_of

    asked, found = ask_tuning(model, gpus, gpu, question, price)
    data = tuning_data(found)
    if isinstance(found, Unfit):
        lacking, remedies = found.lacking, found.remedies
        opt.print_answer(then.as_json, lambda: data, lambda: lacking_view(asked, found))
        best = f"; the cheapest change that makes it fit: {remedies[0][0]}" if remedies else ""
        raise InfeasiblePlan(f"the fine-tuning does not fit on {lacking.gpus} × {lacking.gpu}{best}")
    if isinstance(found, Ranking):
        view = ranking_view(f"{asked.model} on these GPUs, the cheapest first", found, then.verbose)
        then.show(found.offers[0].answer.scenario, data, view)
        return
    steps = then.next_steps(found.answer, asked.memory_limit_bytes)
    if (fused := with_fused_kernels(asked, found, _terms(price))) is not None:
        run = fused.run
        takes = f"{show_time(run.wall_s)} and {money(run.cost, run.currency)}"
        steps.insert(0, f"Add --framework {CHUNKED} if Liger has kernels for the model: the run then takes {takes}.")
    steps.append("Leave --gpu or --gpus out to see other machines.")
    times = "once" if asked.epochs == 1 else f"{asked.epochs:g} times"
    sentence = sentence_of(found, f"It fits: {asked.samples:,.0f} samples seen {times}")
    view = planned_view(found, sentence, steps, then.verbose)
    then.show(found.answer.scenario, data, view)


def tuning_data(found: Planned | Unfit | Ranking) -> dict[str, Any]:
    """The answer as plain data with stable keys, for JSON."""
    if isinstance(found, Planned):
        return found.offer() | {"answer": found.to_dict()}
    return found.to_dict()


def ask_tuning(
    model: str, gpus: int | None, gpu: str | None, question: partial[FineTuning], price: str | None
) -> tuple[FineTuning, Planned | Unfit | Ranking]:
    """A fine-tuning and its answer on the machine named, or on several."""
    if "samples" not in question.keywords:
        raise SpecError("on how many samples? Give --samples 50k")
    lora, qlora = (question.keywords.get(each) for each in ("rank", "qlora"))
    opt.check_numbers(gpus=gpus, lora=lora, qlora=qlora)
    if lora and qlora:
        raise SpecError(f"--lora {lora} and --qlora {qlora} both say what is trained; leave one out")
    if question.keywords["epochs"] <= 0:
        raise SpecError(f"--epochs {question.keywords['epochs']:g} must be above zero")
    _refuse_unnamed(gpu is not None, price, question.keywords.get("profile"))
    asked = question(model, assumed=() if gpu is None else tuple(filter(None, [choice_among(gpu)])))
    card, terms = None if gpu is None else gpu_named(gpu), _terms(price)
    if card is not None and gpus is not None:
        with spinner("looking for what fits"):
            return asked, tune(asked, card, gpus, terms)
    counts = COUNTS if gpus is None else (gpus,)
    with progress_bar("machines searched") as progress:
        return asked, rank(asked, counts, () if card is None else (card,), progress, terms=terms)
