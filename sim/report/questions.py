"""Answers to questions in users' words, in a terminal: one plan and its run, or machines ranked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.facts import headline, plan_words, question_words
from sim.report.terminal import assumptions, indented, title
from sim.report.training import plan_words as plan_letters
from sim.scaling.finetuning import FineTuning, Lacking, Offer
from sim.scaling.questions import Planned
from sim.specs.machines import price_list
from sim.table import facts_table, plain_table
from sim.units import show, show_count, show_time, significant

ROWS = 10
"""Machines that a ranking shows."""
_LEFT_OUT = ("Training", "Whole job")
"""Facts of a headline that the run's own say better, or that nobody asks first."""
_WORDS = ("change", "GPUs", "plan")
"""Columns of words in the tables below."""
_LOSSES = 3
"""Causes of a step's time that are named."""


def sentence_of(planned: Planned, what: str = "") -> str:
    """The answer in one sentence: how long `what` takes, and what it costs; without a run, how fast training is."""
    if planned.training is None:
        return f"Training runs at {show(planned.answer.tokens_per_s, 'tokens/s')}."
    run = planned.training.run
    what = what or f"{show_count(run.tokens)} tokens"
    if not _price_known(planned):
        return f"{what} take {show_time(run.wall_s)}; the GPU's price is not known (--price)."
    return f"{what} take {show_time(run.wall_s)} and cost {money(run.cost, run.currency)}."


def _price_known(planned: Planned) -> bool:
    """Whether a price was given, or is listed for the GPU."""
    return not any("an assumption, as no list price" in each for each in planned.assumptions)


def planned_view(planned: Planned, sentence: str, then: Sequence[str]) -> Group:
    """A plan, what its run takes, where a step's time goes, what to do next, and what was assumed.

    Parameters
    ----------
    sentence : str
        The answer in short.
    then : sequence of str
        What to do next, a sentence each.
    """
    answer, table = planned.answer, facts_table()
    for name, value, note in _run_facts(planned):
        table.add_row(name, Text(value, style="bold green"), note)
    for fact in headline(answer, {"model": "Per GPU"}):
        if fact.name not in _LEFT_OUT:
            table.add_row(fact.name, fact.value, fact.note)
    shares = answer.breakdown.shares()
    losses = sorted((cause for cause in shares if cause != "flop_at_peak"), key=lambda cause: -shares[cause])[:_LOSSES]
    table.add_row(
        "Lost", "", ", ".join(f"{cause.replace('_', ' ')} {shares[cause]:.0%}" for cause in losses) + " of a step"
    )
    asked = Text(sentence, style="bold").append(f"\n{question_words(answer)}\n", style="not bold")
    return Group(
        asked.append(plan_words(answer), style="not bold dim"), "", indented(table),
        "", title("Next"), indented(Text("\n".join(then))), *assumptions((answer.interval_basis, *planned.assumptions)),
    )  # fmt: skip


def _run_facts(planned: Planned) -> list[tuple[str, str, str]]:
    """How long a run takes and what it costs, with their 90 % intervals."""
    if planned.training is None:
        return []
    run, low, high = planned.training.run, planned.training.low, planned.training.high
    hourly = significant(run.cost / run.gpu_hours)
    said = "" if _price_known(planned) else ", an assumption: name yours by --price"
    cost = f"90 %: {money(low.cost, run.currency)} to {money(high.cost, run.currency)}, at {hourly} a GPU-hour{said}"
    return [
        ("Run", show_time(run.wall_s), f"90 %: {show_time(low.wall_s)} to {show_time(high.wall_s)}"),
        ("Cost", money(run.cost, run.currency), cost),
    ]


def money(amount: float, currency: str) -> str:
    """An amount as people say it: 18.8 USD, 15.7 million USD."""
    return f"{show_count(amount) if amount >= 1e6 else significant(amount)} {currency}"


def lacking_view(
    asked: FineTuning, lacking: Lacking, remedies: Sequence[tuple[str, Offer]], useless: Sequence[str]
) -> Group:
    """That a fine-tuning does not fit, and what would make it fit: each was searched."""
    parts: list[RenderableType] = [
        title(f"{asked.model} on {lacking.gpus} × {lacking.gpu}", ": it does not fit", "bold red"),
        Text(f"{lacking.why[:1].upper()}{lacking.why[1:]}."),
    ]
    if remedies:
        table = plain_table("change", "time", "cost", "memory", "plan", left=_WORDS, gap=1)
        for words, offer in remedies:
            memory = f"{offer.planned.answer.largest.total / 1e9:.1f} GB"
            table.add_row(words, show_time(offer.wall_s), _cost(offer), memory, _plan(offer))
        parts += ["", title("Any of these changes makes it fit"), table]
    if useless:
        parts += ["", Text(f"By itself this does not: {', '.join(useless)}.")]
    return Group(*parts)


def ranking_view(heading: str, shown: Sequence[Offer], offers: Sequence[Offer], lacking: Sequence[Lacking]) -> Group:
    """Machines side by side, best first; those on which nothing fits in a line, and what the first one assumes."""
    table = plain_table("GPUs", "time", "at most", "cost", "plan", left=_WORDS, gap=1)
    for offer in shown[:ROWS]:
        most = show_time(offer.training.high.wall_s)
        table.add_row(_machine(offer), show_time(offer.wall_s), most, _cost(offer), _plan(offer))
    legend = "at most: the end of the time's 90 % interval. plan: tp·pp·dp, micro-batch, schedule and chunks"
    more = f" {len(shown) - ROWS} more machines are in --json." if len(shown) > ROWS else ""
    parts: list[RenderableType] = [title(heading), "", table, Text(f"{legend}.{more}", style="dim"), ""]
    for name, offer in (("Fastest ", min(offers, key=lambda each: each.wall_s)), ("Cheapest", offers[0])):
        parts.append(title(f"{name} ", f"{show_time(offer.wall_s)} for {_cost(offer)} on {_machine(offer)}"))
    counts: dict[str, list[str]] = {}
    for each in lacking:
        counts.setdefault(each.gpu, []).append(str(each.gpus))
    if counts:
        words = "; ".join(f"{' or '.join(some)} × {gpu}" for gpu, some in counts.items())
        parts.append(title("No fit   ", f"{words} (name one with --gpu and --gpus for what would help)"))
    days = sorted(row["date"] for row in price_list().values())
    prices = (
        f"list prices of {days[0]} to {days[-1]}, from sim/presets/prices.yaml; --price overrides that of one --gpu"
    )
    return Group(*parts, *assumptions((prices, *shown[0].planned.answer.scenario.assumed)))


def _machine(offer: Offer) -> str:
    return f"{offer.gpus} × {offer.gpu}"


def _cost(offer: Offer) -> str:
    return money(offer.cost, offer.training.run.currency)


def _plan(offer: Offer) -> str:
    plan = offer.planned.answer.scenario.plan
    return f"{plan_letters(plan)} ZeRO {plan.zero_stage}"
