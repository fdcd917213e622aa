"""Answers to questions in users' words, in a terminal: one plan and its run, or machines ranked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sim.estimate import Estimate
from sim.foreign.exporters import FRAMEWORKS
from sim.report.facts import headline, plan_words, question_words, short_plan, tokens_words
from sim.report.terminal import assumptions, grouped, indented, remarks, sentence, title
from sim.report.text import sure_and_limit
from sim.scaling.finetuning import CHUNKED, FineTuning, Unfit
from sim.scaling.offers import InTime, Ranking
from sim.scaling.questions import Planned
from sim.scaling.run import rented_gpus
from sim.specs.machines import price_list
from sim.table import facts_table, plain_table
from sim.units import show, show_count, show_short, show_time, significant

FULL, KEPT = 0.95, 0.9
"""Share of the memory above which a plan is advised to keep a reserve, and the share that the reserve leaves."""
ROWS = 10
"""Machines that a ranking shows."""
_LEFT_OUT = ("Training", "Whole job")
"""Facts of a headline that the run's own say better, or that nobody asks first."""
_WORDS = ("change", "GPUs", "plan")
"""Columns of words in the tables below."""
_PLAN = "plan: tp·pp·dp, micro-batch size, and what differs from defaults"


def sentence_of(planned: Planned, what: str = "") -> str:
    """The answer in one sentence: how long `what` takes, and what it costs; without a run, how fast training is."""
    if planned.training is None:
        return f"Training runs at {tokens_words(planned.answer.tokens_per_s)}."
    run = planned.training.run
    what = what or f"{show_count(run.tokens)} tokens"
    if not _price_known(planned):
        hourly = significant(run.cost / run.gpu_hours)
        return f"{what} take {show_time(run.wall_s)}. A price of {hourly} a GPU-hour is assumed; give yours by --price."
    return f"{what} take {show_time(run.wall_s)} and cost {money(run.cost, run.currency)}."


def _price_known(planned: Planned) -> bool:
    """Whether a price was given, or is listed for the GPU."""
    return not any("an assumption, as no list price" in each for each in planned.assumptions)


def in_time_sentence(found: InTime) -> str:
    """How many GPUs end a run in time, in one sentence."""
    run = found.planned.run
    gpu, most = found.planned.answer.scenario.cluster.gpu.name, show_time(found.within_s)
    return (
        f"{found.gpus:,} × {gpu} are the fewest found that are expected to train {show_count(run.tokens)} tokens "
        f"within {most}: in {show_time(run.wall_s)}, for {money(run.cost, run.currency)}."
    )


def planned_view(
    planned: Planned, sentence: str, then: Sequence[str], verbose: bool = False, deadline: InTime | None = None
) -> Group:
    """A plan, what its run takes, where a step's time goes, what to do next, and what was assumed.

    sentence : The answer in short.
    then : What to do next, a sentence each.
    deadline : what the number of GPUs was found for; None where it was given.
    """
    answer, of_run = planned.answer, (*_run_facts(planned), *_deadline_facts(deadline))
    others = [fact[:3] for fact in headline(answer, {"model": "Per GPU"}) if fact.name not in _LEFT_OUT]
    first = [(name, Text(value, style="bold green"), note) for name, value, note in of_run]
    table = facts_table([*first, ("Batch", *_batch_facts(planned)), *others])
    asked = Text(sentence, style="bold").append(f"\n{question_words(answer)}\n", style="not bold")
    return Group(
        asked.append(plan_words(answer), style="not bold dim"), "", sure_and_limit(answer), "", indented(table),
        "", title("Next"), indented(Text("\n".join(then))),
        *assumptions((answer.interval_basis, *planned.assumptions), verbose=verbose),
    )  # fmt: skip


def next_steps(answer: Estimate, limit_bytes: float | None, output: str, exported: bool) -> list[str]:
    """What to do with a plan, a sentence each, and how to keep memory in reserve.

    limit_bytes : what a plan may use of the memory, if that was given. [bytes]
    output, exported : the file that the plan is written to, if any, and whether it is written for a framework.
    """
    file, framework = output or "best.yaml", answer.scenario.stack.framework
    words = framework if framework in FRAMEWORKS else "FRAMEWORK"
    written = "" if output else f"Add -o {file} to write this plan as a scenario. "
    limit = "" if limit_bytes is None else f" --memory-limit '{show(limit_bytes, 'B')}'"
    further = (
        f"flopcast estimate {file} shows where a step's time goes, and docs/faster.md what shortens each part. "
        f"flopcast search {file}{limit} shows other plans."
    )
    steps = [] if exported else [f"Add --export {words} to print the plan as the options of a framework."]
    steps.append(written + further)
    full = answer.largest.total / answer.memory_available_bytes
    if limit_bytes is None and full >= FULL:
        reserve = show(KEPT * answer.memory_available_bytes, "B")
        advice = f"and half of all predicted peaks are off by more than 4%. Add --memory-limit '{reserve}'"
        steps.append(f"The plan fills {full:.0%} of the memory, {advice} to keep a tenth of it free.")
    return steps


def _run_facts(planned: Planned) -> list[tuple[str, str, str]]:
    """How long a run takes and what it costs, with their 90 % intervals."""
    if planned.training is None:
        return []
    run, low, high = planned.training.run, planned.training.low, planned.training.high
    hourly = significant(run.cost / run.gpu_hours)
    said = "" if _price_known(planned) else " (assumed)"
    cost = f"90 %: {money(low.cost, run.currency)} to {money(high.cost, run.currency)}, at {hourly} a GPU-hour{said}"
    if (rented := rented_gpus(run.num_gpus, planned.answer.scenario.cluster.node)) > run.num_gpus:
        cost += f" of {rented:,} GPUs: nodes are rented whole"
    return [
        ("Run", show_time(run.wall_s), f"90 %: {show_time(low.wall_s)} to {show_time(high.wall_s)}"),
        ("Cost", money(run.cost, run.currency), cost),
    ]


def _deadline_facts(found: InTime | None) -> list[tuple[str, str, str]]:
    """How likely a run ends in time, and on how many GPUs nearly surely."""
    if found is None:
        return []
    more = ". No larger size that was tried has a chance of 95% or more"
    if found.given or found.certain is found.planned:
        more = ""
    elif found.certain is not None:
        run = found.certain.run
        takes = f"{show_time(run.wall_s)}, {money(run.cost, run.currency)}"
        more = f". For a chance of 95% or more rent {run.num_gpus:,} GPUs ({takes})"
    said = f"chance to end within {show_time(found.within_s)}, with spares for failed nodes{more}"
    return [("In time", f"{found.chance:.0%}", said)]


def _batch_facts(planned: Planned) -> tuple[str, str]:
    """The batch in tokens and sequences, and what is not counted of it."""
    training = planned.answer.scenario.training
    note = f"{training.global_batch_size:,} sequences of {training.sequence_length:,}"
    if planned.training is not None and not training.adapter_rank:
        note += ". Larger batches may need more tokens for the same loss, which only flopcast shortest counts"
    return f"{show_count(training.tokens_per_step)} tokens", note


def money(amount: float, currency: str) -> str:
    """An amount as people say it: 18.8 USD, 15.7 million USD."""
    return f"{show_count(amount) if amount >= 1e6 else significant(amount)} {currency}"


def lacking_view(asked: FineTuning, unfit: Unfit) -> Group:
    """A fine-tuning that does not fit, and what would make it fit. Each remedy was searched."""
    lacking, remedies, useless = unfit.lacking, unfit.remedies, unfit.useless
    parts: list[RenderableType] = [
        title(f"{asked.model} on {lacking.gpus} × {lacking.gpu}", ": it does not fit", "bold red"),
        Text(sentence(lacking.why)),
    ]
    if remedies:
        table = plain_table("change", "time", "cost", "memory", "plan", left=_WORDS, gap=1, wrap=("change", "plan"))
        for words, offer in remedies:
            memory = f"{offer.answer.largest.total / 1e9:.1f} GB"
            table.add_row(words, show_time(offer.run.wall_s), _cost(offer), memory, _plan(offer))
        parts += ["", title("Any of these changes makes it fit"), table, Text(_PLAN, style="dim")]
    if useless:
        parts += ["", Text(f"None of these changes is enough alone: {', '.join(useless)}.")]
    if any(CHUNKED in words for words, _ in remedies):
        parts += ["", Text(f"{CHUNKED}: fused kernels of Liger, whose loss never holds all logits at once.")]
    if asked.offload or "--offload" in useless:
        parts.append(Text("Weights in host memory (DeepSpeed's offload_param) are not modelled."))
    return Group(*parts)


def ranking_view(heading: str, ranking: Ranking, verbose: bool = False) -> Group:
    """Machines side by side, best first; those on which nothing fits in a line, and what the first one assumes."""
    shown = ranking.offers
    table = plain_table("GPUs", "time", "at most", "cost", "plan", left=_WORDS, gap=1, wrap=("plan",))
    for offer in shown[:ROWS]:
        takes, most = (show_time(each.wall_s) for each in (offer.run, offer.ends.high))
        table.add_row(_machine(offer), takes, most, _cost(offer), _plan(offer))
    legend = f"at most: end of the 90 % interval; {_PLAN}"
    left = len(shown) - ROWS
    more = f"; {left} more machine{'s' * (left > 1)}: --json" if left > 0 else ""
    parts: list[RenderableType] = [title(heading), "", table, Text(f"{legend}{more}", style="dim"), ""]
    found = {"Fastest": min(shown, key=lambda each: each.rank[::-1]), "Cheapest": shown[0]}
    words = {
        name: f"{show_time(offer.run.wall_s)} for {_cost(offer)} on {_machine(offer)}" for name, offer in found.items()
    }
    if counts := grouped((each.gpu, str(each.gpus)) for each in ranking.lacking):
        lacking = "; ".join(f"{' or '.join(some)} × {gpu}" for gpu, some in counts.items())
        words["No fit"] = f"{lacking} (--gpu and --gpus with one of these show what would help)"
    days = sorted(row["date"] for row in price_list().values())
    prices = f"list prices of {days[0]} to {days[-1]} (--price with --gpu gives your own)"
    return Group(*parts, remarks(words), *assumptions((prices, *shown[0].answer.scenario.assumed), verbose=verbose))


def _machine(offer: Planned) -> str:
    return f"{offer.answer.num_gpus} × {offer.machine}"


def _cost(offer: Planned) -> str:
    run = offer.run
    return f"{show_short(run.cost) if run.cost >= 1e6 else significant(run.cost)} {run.currency}"


def _plan(offer: Planned) -> str:
    """A plan in a few words, with what it does to fit."""
    plan = offer.answer.scenario.plan
    parts = {
        short_plan(plan): True,
        f"cp {plan.cp}": plan.cp > 1,
        f"ep {plan.ep}": plan.ep > 1,
        f"ZeRO {plan.zero_stage}": True,
        f"recompute {plan.recompute_words}": plan.recompute != "none",
        f"{plan.optimizer_offload:.0%} of the optimizer on the host": plan.optimizer_offload > 0,
        f"{plan.offloaded_layers} layers' activations on the host": plan.offloaded_layers > 0,
    }
    return ", ".join(part for part, there in parts.items() if there)
