"""Answers to questions in users' words, in a terminal: one plan and its run, or machines ranked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.facts import headline, plan_words, question_words
from sim.report.terminal import assumptions, indented, title
from sim.report.training import plan_words as plan_letters
from sim.scaling.finetuning import Offer, Remedy
from sim.scaling.questions import Planned
from sim.scaling.run import TrainingRun
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
    return f"{what or f'{show_count(run.tokens)} tokens'} take {show_time(run.wall_s)} and cost {money(run.cost, run)}."


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
    cost = f"90 %: {money(low.cost, run)} to {money(high.cost, run)}, at {hourly} a GPU-hour"
    return [
        ("Run", show_time(run.wall_s), f"90 %: {show_time(low.wall_s)} to {show_time(high.wall_s)}"),
        ("Cost", money(run.cost, run), cost),
    ]


def money(amount: float, run: TrainingRun) -> str:
    """An amount in a run's currency: 18.8 USD, 15.7 million USD."""
    return f"{show_count(amount) if amount >= 1e6 else significant(amount)} {run.currency}"


def lacking_view(offer: Offer, remedies: Sequence[Remedy], useless: Sequence[str]) -> Group:
    """That a fine-tuning does not fit, and what would make it fit: each was searched."""
    asked = offer.asked
    parts: list[RenderableType] = [
        title(f"{asked.model} on {offer.gpus} × {offer.gpu}", ": it does not fit", "bold red"),
        Text(f"{offer.lacking[:1].upper()}{offer.lacking[1:]}."),
    ]
    if remedies:
        table = plain_table("change", "time", "cost", "memory", "plan", left=_WORDS)
        for remedy in remedies:
            table.add_row(remedy.words, *_cells(remedy.offer))
        parts += ["", title("Any of these changes makes it fit"), table]
    if useless:
        parts += ["", Text(f"By itself this does not: {', '.join(useless)}.")]
    return Group(*parts)


def ranking_view(offers: Sequence[Offer], shown: Sequence[Offer], heading_words: str) -> Group:
    """Machines side by side, best first; those on which nothing fits in a line, and what the first one assumes."""
    table = plain_table("GPUs", "time", "at most", "cost", "plan", left=_WORDS, gap=1)
    for offer in shown[:ROWS]:
        time, cost, _, plan = _cells(offer)
        table.add_row(f"{offer.gpus} × {offer.gpu}", time, _at_most(offer), cost, plan)
    parts: list[RenderableType] = [title(heading_words), "", table]
    legend = "at most: the end of the time's 90 % interval. plan: tp·pp·dp, micro-batch, schedule and chunks"
    more = f" {len(shown) - ROWS} more machines are in --json." if len(shown) > ROWS else ""
    parts.append(Text(f"{legend}.{more}", style="dim"))
    fitting = [offer for offer in offers if offer.planned is not None]
    fastest = min(fitting, key=lambda offer: offer.hours)
    parts += ["", title("Fastest  ", _sentence(fastest)), title("Cheapest ", _sentence(fitting[0]))]
    lacking: dict[str, list[str]] = {}
    for offer in sorted(offers, key=lambda offer: offer.gpus):
        if offer.planned is None:
            lacking.setdefault(offer.gpu, []).append(str(offer.gpus))
    if lacking:
        words = "; ".join(f"{' or '.join(counts)} × {gpu}" for gpu, counts in lacking.items())
        parts.append(title("No fit   ", f"{words} (name one with --gpu and --gpus for what would help)"))
    first = shown[0].planned
    assert first is not None
    days = sorted(row["date"] for row in price_list().values())
    prices = (
        f"list prices of {days[0]} to {days[-1]}, from sim/presets/prices.yaml; --price overrides that of one --gpu"
    )
    return Group(*parts, *assumptions((prices, *first.answer.scenario.assumed)))


def _cells(offer: Offer) -> tuple[str, str, str, str]:
    assert offer.planned is not None
    assert offer.run is not None
    answer = offer.planned.answer
    cost = money(offer.cost, offer.run)
    plan = f"{plan_letters(answer.scenario.plan)} ZeRO {answer.scenario.plan.zero_stage}"
    return show_time(offer.run.wall_s), cost, f"{answer.largest.total / 1e9:.1f} GB", plan


def _at_most(offer: Offer) -> str:
    assert offer.planned is not None
    assert offer.planned.training is not None
    return show_time(offer.planned.training.high.wall_s)


def _sentence(offer: Offer) -> str:
    time, cost, _, _ = _cells(offer)
    return f"{time} for {cost} on {offer.gpus} × {offer.gpu}"
