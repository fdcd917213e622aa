"""`flopcast plan` and `flopcast finetune`: on which GPUs and by which plan, how long and how dear, without a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from typer.core import TyperCommand

from sim.commands import options as opt
from sim.commands.files import Kept
from sim.commands.fills import COUNT, Fills, Opt
from sim.commands.progress import progress_bar, spinner
from sim.errors import InfeasiblePlan, SpecError, require_positive
from sim.reliability.cost import Price
from sim.scaling.finetuning import CHUNKED, COUNTS, FRAMEWORK, RANK, FineTuning, Unfit, tune, with_fused_kernels
from sim.scaling.offers import InTime, Ranking, in_time, rank
from sim.scaling.questions import TOKENS, Planned, Pretraining
from sim.scaling.run import Terms
from sim.specs.machines import choice_among, gpu_named
from sim.units import parse, parse_whole, show_count, show_time

HOW: dict[str, Opt | str] = {
    "length": Opt("--seq", read=lambda words, _: parse_whole(words, "sequence_length")),
    "memory_limit_bytes": Opt("--memory-limit", read=lambda words, _: opt.read_limit(words)),
}
"""Options of both questions that differ from their fields."""
PRETRAINING = Fills(
    Pretraining,
    *("model", "overrides", "assumed", "terms", "export_to"),
    tokens=COUNT,
    framework=Opt(show_default="megatron-lm"),
    **HOW,
)
ADAPTERS = "Train low-rank adapters{}, of rank {} if not given."
TUNING = Fills(
    FineTuning,
    *("model", "overrides", "assumed", "terms", "export_to"),
    samples=Opt(read=lambda words, _: parse_whole(words, "samples")),
    rank=Opt("--lora", show_default="all weights", help=ADAPTERS.format("", RANK), metavar="[RANK]"),
    qlora=Opt(
        show_default="weights in 16 bits",
        help=ADAPTERS.format(" beside weights in 4 bits (NF4)", RANK),
        metavar="[RANK]",
    ),
    offload="--offload",
    framework=Opt(show_default=FRAMEWORK),
    **HOW,
)


def _terms(price: str | None) -> Terms:
    """The terms of a run at the price given, or at the GPU's list price."""
    return Terms(price=None if price is None else Price.read(price))


def _assumed(gpu: str | None) -> tuple[str, ...]:
    """Which of several GPUs of that name is meant, where there are several."""
    return () if gpu is None else tuple(filter(None, [choice_among(gpu)]))


def _refuse_unnamed(named: bool, price: str | None, profile: str | None) -> None:
    """Refuse what holds for one kind of GPU where several are compared."""
    for option, given in (("--price", price), ("--profile", profile)):
        if given is not None and not named:
            raise SpecError(f"{option} {given} is of one kind of GPU; name it with --gpu, or leave {option} out")


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


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs of a pre-training, as far as they are given.

    gpus : How many GPUs.
    within TIME : Time for the run (30d): the fewest GPUs that end it by then, or with --gpus the chance that they do.
    cluster : A cluster's or node's preset or YAML file, whose number of nodes is ignored; all GPUs with a list price if
        not given.
    gpu : Or the kind of GPU: h100, a100-80gb, 4090.
    """

    gpus: int | None = None
    within: str | None = None
    cluster: str | None = None
    gpu: str | None = None
    price: str | None = None

    def check(self, question: partial[Pretraining]) -> None:
        """Refuse options of `plan` that lack another, or say the same as another."""
        if self.gpus is None and self.within is None:
            raise SpecError(
                "--gpus is missing: give a number, such as --gpus 512, or --within 30d for the fewest GPUs that end "
                "the run by then"
            )
        named, late = self.gpu is not None or self.cluster is not None, f"--within {self.within} needs"
        if self.within is not None and "tokens" not in question.keywords:
            raise SpecError(f"{late} to know how long the run is; add --tokens, such as --tokens 15T")
        if self.within is not None and not named:
            raise SpecError(f"{late} a kind of GPU; add --gpu, such as --gpu h100, or --cluster")
        if self.cluster is not None and self.gpu is not None:
            raise SpecError(f"--cluster {self.cluster!r} names the machine already; leave --gpu out")
        opt.check_numbers(gpus=self.gpus)
        _refuse_unnamed(named, self.price, question.keywords.get("profile"))
        for each in question.keywords.get("overrides", ()):
            field = each.partition("=")[0].strip()
            if field in OPTIONS:
                raise SpecError(f"-s {each}: plan sets {field} by {OPTIONS[field]}; write it so")

    def ask(
        self, model: str, question: partial[Pretraining], export_to: str | None = None
    ) -> Planned | InTime | Ranking:
        """The best plan and its run on the machine named; where none is named, on all GPUs that have a list price."""
        self.check(question)
        asked = question(model, assumed=_assumed(self.gpu), terms=_terms(self.price), export_to=export_to)
        asked = replace(asked, framework=asked.framework or export_to)
        machine = self.cluster if self.gpu is None else gpu_named(self.gpu)
        limit = None if self.within is None else parse(self.within, "s")
        if limit is not None:
            require_positive(within=limit)
        if limit is not None and self.gpus is None:
            assert machine is not None
            with progress_bar("sizes searched") as progress:
                return in_time(asked, limit, machine, progress)
        assert self.gpus is not None
        if machine is not None:
            with progress_bar("plans priced") as progress:
                found = asked.answer(machine, self.gpus, progress)
            return found if limit is None else InTime(limit, found, None, given=True)
        if asked.tokens is None:
            assumed = (f"a run of {TOKENS / 1e12:g} trillion tokens (--tokens)",)
            asked = replace(asked, tokens=TOKENS, assumed=assumed)
        with progress_bar("machines searched") as progress:
            return rank(asked, [self.gpus], progress=progress)


def plan(
    model: str,
    *,
    machine: Machine,
    overrides: Sequence[str] = (),
    question: Annotated[partial[Pretraining], PRETRAINING],
    kept: Kept,
    verbose: bool = False,
) -> opt.Answer:
    """Which plan is the best for a model on so many GPUs, how long its run takes and what it costs; on which GPUs."""
    from sim.report.questions import in_time_sentence, next_steps, planned_view, ranking_view, sentence_of

    found = machine.ask(model, partial(question, overrides=tuple(overrides)), kept.export_to)
    if isinstance(found, Ranking):
        best = found.offers[0]
        heading = f"{show_count(best.run.tokens)} tokens of {model} on {machine.gpus} GPUs, the cheapest first"
        return kept.answer(found.to_dict, ranking_view(heading, found, verbose), best.answer.scenario)
    planned, deadline = (found, None) if isinstance(found, Planned) else (found.planned, found)
    limit = question.keywords.get("memory_limit_bytes")
    steps = next_steps(planned.answer, limit, str(kept.output or ""), kept.export_to is not None)
    if planned.training is None:
        steps.insert(0, "Add --tokens 15T for the days and the cost of a run of so many tokens.")
    if deadline is not None:
        steps.append(
            f"Leave --gpus out for the fewest GPUs that end the run within {machine.within}."
            if deadline.given
            else "Usual sizes were tried, of 1 to 8, 10, 12, 14, 16, 20 … nodes, then some between. --gpus takes any."
        )
    said = sentence_of(planned) if deadline is None or deadline.given else in_time_sentence(deadline)
    view = planned_view(planned, said, steps, verbose, deadline)
    return kept.answer(found.to_dict, view, planned.answer.scenario)


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
    model: str,
    *,
    question: Annotated[partial[FineTuning], TUNING],
    price: str | None = None,
    gpus: int | None = None,
    gpu: str | None = None,
    kept: Kept,
    verbose: bool = False,
) -> opt.Answer:
    """Does a fine-tuning fit, or what would make it fit; hours and cost, on the GPUs named or those that suit best.

    gpus : How many GPUs; default: 1, 2, 4 and 8 are compared.
    gpu : The kind of GPU: rtx4090, a100-40gb or another; default: all with a list price.
    """
    from sim.report import questions as view

    asked, found = _tuned(model, gpus, gpu, question, price)
    if isinstance(found, Unfit):
        return opt.Answer(found.to_dict, lambda: [view.lacking_view(asked, found)], after=partial(_refuse, found))
    if isinstance(found, Ranking):
        shown = view.ranking_view(f"{asked.model} on these GPUs, the cheapest first", found, verbose)
        return kept.answer(found.to_dict, shown, found.offers[0].answer.scenario)
    limit = asked.memory_limit_bytes
    steps = view.next_steps(found.answer, limit, str(kept.output or ""), kept.export_to is not None)
    if (fused := with_fused_kernels(asked, found)) is not None:
        run = fused.run
        takes = f"{show_time(run.wall_s)} and {view.money(run.cost, run.currency)}"
        steps.insert(0, f"Add --framework {CHUNKED} if Liger has kernels for the model: the run then takes {takes}.")
    steps.append("Leave --gpu or --gpus out to see other machines.")
    times = "once" if asked.epochs == 1 else f"{asked.epochs:g} times"
    sentence = view.sentence_of(found, f"It fits: {asked.samples:,.0f} samples seen {times}")
    shown = view.planned_view(found, sentence, steps, verbose)
    return kept.answer(lambda: found.offer() | {"answer": found.to_dict()}, shown, found.answer.scenario)


def _refuse(found: Unfit) -> None:
    """Raise what the exit code tells of a fine-tuning that does not fit."""
    best = f"; the cheapest change that makes it fit: {found.remedies[0][0]}" if found.remedies else ""
    raise InfeasiblePlan(f"the fine-tuning does not fit on {found.lacking.gpus} × {found.lacking.gpu}{best}")


def _tuned(
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
    asked = question(model, assumed=_assumed(gpu), terms=_terms(price))
    card = None if gpu is None else gpu_named(gpu)
    if card is not None and gpus is not None:
        with spinner("looking for what fits"):
            return asked, tune(asked, card, gpus)
    counts = COUNTS if gpus is None else (gpus,)
    with progress_bar("machines searched") as progress:
        return asked, rank(asked, counts, () if card is None else (card,), progress)
