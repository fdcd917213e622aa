"""Plans in words: what some plans share, the columns in which they differ, what sets an answer apart from the best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from sim.estimate import Estimate
from sim.report.facts import layout_legend, plan_words
from sim.report.terminal import grouped, shared_line
from sim.search import SearchResult
from sim.search.candidate import shown
from sim.search.explain import loss_of
from sim.specs import ModelSpec, ParallelPlan, Scenario
from sim.units import show, show_time, significant

COLUMNS = {
    "tp": "tp",
    "cp": "cp",
    "pp": "pp",
    "dp": "dp",
    "ep": "ep",
    "num_chunks": "chunks",
    "microbatch_size": "micro-batch",
    "schedule": "schedule",
    "microbatch_group": "group",
    "recompute": "recompute",
    "sequence_parallel": "seq. par.",
    "zero_stage": "ZeRO",
    "optimizer_offload": "optimizer on host",
    "offloaded_layers": "layers on host",
}
"""Fields of a plan that a search decides, and what they are called in tables."""
HEADINGS = {"num_gpus": "GPUs", **COLUMNS, "pipeline_layout": "layers"}
SHORT = {"microbatch_size": "mbs", "sequence_parallel": "sp", "optimizer_offload": "opt.host",
         "offloaded_layers": "host layers", "sequence_slices": "slices"}  # fmt: skip
"""Names with few letters, for narrow columns."""


def fields_for(model: ModelSpec) -> list[str]:
    """COLUMNS that say something of the model's plans: expert parallelism only where there are experts."""
    return [name for name in COLUMNS if name != "ep" or model.num_experts]


def tells(plans: Sequence[ParallelPlan], name: str) -> bool:
    """Whether a field is worth a word: a schedule if all have it, groups and host memory only where they are said."""
    if name == "schedule":
        return len({plan.schedule for plan in plans}) == 1
    silent = ("microbatch_group", "optimizer_offload", "offloaded_layers")
    return name not in silent or any(getattr(plan, name) for plan in plans)


def label(name: str) -> str:
    """What a field of a plan or stack is called in tables."""
    return COLUMNS.get(name, name.replace("_", " "))


def heading(name: str) -> str:
    """The heading of a field's column, in few letters."""
    return SHORT.get(name) or HEADINGS[name]


def cell(value: object) -> str:
    """A value of a plan's field in words."""
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def field(plan: ParallelPlan, name: str) -> str:
    """A field of a plan, or its `num_gpus`, in words."""
    if name == "num_gpus":
        return f"{plan.num_gpus:,}"
    if name == "microbatch_group" and plan.microbatch_group is None:
        return "pp"
    return f"{plan.optimizer_offload:.0%}" if name == "optimizer_offload" else cell(shown(plan, name))


def gpus(number: int) -> str:
    """`1 GPU`, `1,024 GPUs`."""
    return f"{number:,} GPU{'s' * (number != 1)}"


def differing(plans: Iterable[ParallelPlan], names: Iterable[str]) -> list[str]:
    """Fields in which some plans differ; not schedules that chunks tell: interleaved with several, else 1f1b."""
    plans = list(plans)
    found = [name for name in names if len({shown(plan, name) for plan in plans}) > 1]
    told = all(plan.schedule == ("interleaved" if plan.num_chunks > 1 else "1f1b") for plan in plans)
    return [name for name in found if not (name == "schedule" and told)]


def shared_words(plans: Sequence[ParallelPlan], names: Iterable[str]) -> list[str]:
    """The fields among `names` in which all plans agree, with their values."""
    names = list(names)
    differ = differing(plans, names)
    return [f"{COLUMNS[name]} {field(plans[0], name)}" for name in names if name not in differ and tells(plans, name)]


def shared_fields(plans: Sequence[ParallelPlan], model: ModelSpec) -> Text:
    """The line above a table of plans: what all of them have, their GPUs too."""
    gpus_of_all = [] if differing(plans, ["num_gpus"]) else [gpus(plans[0].num_gpus)]
    return shared_line([*shared_words(plans, fields_for(model)), *gpus_of_all])


def field_columns(plans: Sequence[ParallelPlan], names: Iterable[str]) -> dict[str, list[str]]:
    """Columns of the fields among `names` in which plans differ; modules that run again stand below each other."""
    differ = differing(plans, names)
    return {heading(name): [field(plan, name).replace("+", "\n") for plan in plans] for name in differ}


def plan_line(answer: Estimate, other: Estimate | None = None) -> str:
    """A plan in one line, with its GPUs if another has a different number."""
    line = plan_words(answer)
    return line if other is None or other.num_gpus == answer.num_gpus else f"{gpus(answer.num_gpus)}: {line}"


def differences(one: Estimate, other: Estimate) -> str:
    """Fields of the plan in which two answers differ: `tp 8 → 4, pp 64 → 32`; and their GPUs, if they do."""
    old, new = one.scenario.plan.model_dump(mode="json"), other.scenario.plan.model_dump(mode="json")
    found = [f"GPUs {one.num_gpus:,} → {other.num_gpus:,}"] if one.num_gpus != other.num_gpus else []
    found += [
        f"{label(name)} {cell(old[name]) or '–'} → {cell(new[name]) or '–'}" for name in old if old[name] != new[name]
    ]
    return ", ".join(found) or "the same plan"


def layout_lines(result: SearchResult) -> list[str]:
    """Which of the best plans have layouts of their own."""
    plans = [each.scenario.plan for each in result.best]
    numbers = grouped((plan.pipeline_layout, str(n)) for n, plan in enumerate(plans, start=1) if plan.pipeline_layout)
    lines = [f"Layers of row {', '.join(which)}: {layout}" for layout, which in numbers.items()]
    return [*lines, f"({layout_legend(''.join(numbers))})"] if lines else []


def answer_columns(objective: str, answers: Sequence[Estimate], losses: Sequence[str] = ()) -> dict[str, list[str]]:
    """Columns of every table of plans by heading: step time, what the objective counts, losses, MFU, memory."""
    counted = [amount(objective, answer) for answer in answers]
    columns = {"step": [show_time(answer.step_time_s) for answer in answers]}
    if counted and counted[0].heading != "step":  # which has a column anyway
        columns |= {counted[0].heading: [each.text for each in counted]}
    columns |= {"loss": [*losses]} if losses else {}
    columns["MFU"] = [f"{answer.mfu:.1%}" for answer in answers]
    return columns | {"memory": [show(answer.largest.total, "B") for answer in answers]}


def best_columns(result: SearchResult) -> dict[str, list[str]]:
    """Columns of the best plans of a search by heading: fields in which they differ, and what each takes."""
    plans, answers = [each.scenario.plan for each in result.best], [each.answer for each in result.best]
    first = result.best[0].worth(result.objective)
    losses = ["", *(f"{each.worth(result.objective) / first - 1:+.1%}" for each in result.best[1:])]
    layers = ["uneven" if plan.pipeline_layout else "even" for plan in plans]
    return {
        **field_columns(plans, ("num_gpus", *fields_for(result.space.scenario.model))),
        **({"layers": layers} if len({*layers}) > 1 else {}),
        **answer_columns(result.objective, answers, losses),
    }


class Amount(NamedTuple):
    """How much of what an objective makes smallest an answer takes.

    heading, axis : of a column of a table, and of an axis of a figure, which has the unit of the value.
    """

    heading: str
    axis: str
    value: float
    text: str


def amount(objective: str, answer: Estimate) -> Amount:
    """What an objective counts: of the whole run where its tokens are known, else of a step."""
    days = None if answer.training_time_s is None else answer.training_time_s / 86400
    if objective == "days" and days is not None:
        return Amount("days", "time of the run [days]", days, significant(days))
    if objective == "cost" and days is not None:
        cost = days * answer.num_gpus
        return Amount("GPU-days", "cost [GPU-days of the run]", cost, significant(cost))
    if objective == "cost":
        cost = answer.step_time_s * answer.num_gpus
        return Amount("GPU-s/step", "cost [GPU-seconds a step]", cost, significant(cost))
    return Amount("step", "best step time [s]", answer.step_time_s, show_time(answer.step_time_s))


def run_cost(scenario: Scenario) -> tuple[float, str]:
    """(what GPUs times step time are multiplied by, the unit of that): of the whole run where its tokens are known."""
    training = scenario.training
    if training.tokens is None:
        return 1.0, "GPU-seconds a step"
    return training.tokens / training.tokens_per_step / 86400, "GPU-days of the run"


def largest(causes: Mapping[str, float], least: float, most: int = 3) -> str:
    """The largest seconds by cause in words, either sign."""
    ranked = sorted(causes.items(), key=lambda item: -abs(item[1]))[:most]
    seen = [f"{cause.replace('_', ' ')} {signed(amount)}" for cause, amount in ranked if abs(amount) >= least]
    return ", ".join(seen)


def signed(amount: float) -> str:
    """`+1.2 s` or `-300 ms`."""
    return f"{'-' if amount < 0 else '+'}{show_time(abs(amount))}"


def lost(result: SearchResult, answer: Estimate) -> str:
    """What an answer loses against the best, by the objective."""
    by = "" if result.objective == "step_time" else f" by {result.objective}"
    return f"{loss_of(result, answer):+.1%}{by}"


def ordinal(number: int) -> str:
    """`1st`, `22nd`, `713th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
