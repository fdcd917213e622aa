"""What every report says of an answer, as plain data: question, plan, headline, where the time goes, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sim.breakdown import CAUSES
from sim.estimate import Estimate
from sim.specs import ParallelPlan, Profile
from sim.specs.loading import profile_of_gpu
from sim.units import between, show, show_count, show_time

COMMUNICATION = tuple(f"{kind}_comm" for kind in ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline",
                                                  "data_parallel"))  # fmt: skip
"""Causes that are communication which lengthens the step."""


class Kind(NamedTuple):
    """Causes of a step, of `sim.breakdown.CAUSES`, that share a name and a colour (of Okabe and Ito's)."""

    label: str
    colour: str
    causes: tuple[str, ...]


GROUPS = {
    "useful": Kind("at peak rate", "#009E73", ("flop_at_peak",)),
    "kernels": Kind(
        "kernels below peak",
        "#E69F00",
        ("matmul_inefficiency", "attention_overhead", "memory_bound", "host_wait", "beside_expert_comm"),
    ),
    "recompute": Kind("computed again", "#CC79A7", ("recompute",)),
    "network": Kind("communication that nothing hides", "#0072B2", COMMUNICATION),
    "waiting": Kind("waiting", "#8C8C8C", ("pipeline_bubble", "stage_imbalance", "stragglers")),
    "optimizer": Kind("update", "#D55E00", ("optimizer",)),
    "offload": Kind("offloading to the host", "#882255", ("offload",)),
}
GROUP_OF = {cause: name for name, group in GROUPS.items() for cause in group.causes}
MEMORY = {
    "weights": "weights",
    "gradients": "grads",
    "optimizer": "optim.",
    "activations": "activ.",
    "logits": "logits",
    "other": "other",
}
"""What memory holds, with names of few letters; what is small stands together in the last."""
SMALLEST = 5e-4
"""Share of a step below which a cause is left out of lists."""


GRADE_WORDS = {
    "measured here": "this model was measured on as many GPUs",
    "like measured runs": "many published runs have this GPU, precision and sharding",
    "extrapolated": "few published runs are like this one",
    "unknown": "little is known about such runs",
}
"""Grades of `sim.uncertainty.GRADES` as reasons."""
TELLING = 0.97
"""Share of the MFU below which the one that counts causal attention half is named, too."""


class Fact(NamedTuple):
    """A line of the headline."""

    name: str
    value: str
    note: str = ""
    wrong: bool = False


def plan_degrees(plan: ParallelPlan, chunks: bool = False) -> str:
    """The degrees that every plan has, and those of experts where there are any: `tp 2 · pp 8 · dp 16 · ep 32`."""
    several = f" × {plan.num_chunks} chunks" if chunks and plan.num_chunks > 1 else ""
    experts = "".join(f" · {name} {getattr(plan, name)}" for name in ("ep", "etp") if getattr(plan, name) > 1)
    return f"tp {plan.tp} · pp {plan.pp}{several} · dp {plan.dp}{experts}"


def short_plan(plan: ParallelPlan) -> str:
    """A plan in a few characters: 8·16·24 1 1f1b; a schedule is said of pipelines."""
    schedule = f" {plan.schedule}{f'×{plan.num_chunks}' if plan.num_chunks > 1 else ''}" if plan.pp > 1 else ""
    return f"{plan.tp}·{plan.pp}·{plan.dp} {plan.microbatch_size}{schedule}"


def microbatch_words(answer: Estimate) -> str:
    """Micro-batches of a step, and sequences in each."""
    count = answer.num_microbatches
    return f"{count:,} micro-batch{'es' if count > 1 else ''} of {answer.scenario.plan.microbatch_size}"


def question_words(answer: Estimate) -> str:
    """The model and the machine."""
    scenario = answer.scenario
    active = f" ({show_count(answer.active_params)} active)" if scenario.model.num_experts else ""
    return (
        f"{scenario.model.name}, {show_count(answer.params)} parameters{active} on {answer.num_gpus:,} × "
        f"{scenario.cluster.gpu.name} ({scenario.cluster.name})"
    )


def plan_words(answer: Estimate) -> str:
    """The plan with everything in it that is not a default."""
    plan, recomputed = answer.scenario.plan, answer.scenario.plan.recompute_words
    if plan.recompute == "full" and plan.recompute_method != "uniform":  # so many layers of every stage of so many
        recomputed += f" of {-(-answer.scenario.model.num_layers // plan.num_stages)}"
    parts = {
        f"tp {plan.tp}": True,
        f"cp {plan.cp}": plan.cp > 1,
        f"pp {plan.pp}{f' × {plan.num_chunks} chunks' if plan.num_chunks > 1 else ''}": True,
        f"dp {plan.dp}": True,
        f"ep {plan.ep}": bool(answer.scenario.model.num_experts),
        f"etp {plan.etp}": plan.etp > 1,
        microbatch_words(answer): True,
        plan.schedule: True,
        f"{answer.scenario.flushes} flushes": answer.scenario.flushes > 1,
        f"recompute {recomputed}": True,
        "sequence parallel": plan.sequence_parallel,
        f"ZeRO {plan.zero_stage}": plan.zero_stage > 0,
        f"{plan.sequence_slices} slices": plan.sequence_slices > 1,
        f"groups of {plan.microbatch_group}": plan.microbatch_group is not None,
        f"{plan.optimizer_offload:.0%} of the optimizer on the host": plan.optimizer_offload > 0,
        f"{plan.offloaded_layers} layers on the host": plan.offloaded_layers > 0,
        f"layout {plan.pipeline_layout} ({layout_legend(plan.pipeline_layout)})": bool(plan.pipeline_layout),
    }
    return " · ".join(part for part, told in parts.items() if told)


_BLOCKS = {"E": "embedding", "t": "layer", "m": "multi-token prediction", "L": "head"}


def layout_legend(layouts: str) -> str:
    """What the signs in pipeline layouts stand for."""
    letters = [f"{letter} {block}" for letter, block in _BLOCKS.items() if letter in layouts]
    return ", ".join([*letters, "| ends a stage"])


def grade_words(answer: Estimate) -> str:
    """Why the step time is as well known as it is, and what would make it better known."""
    provenance, why = answer.scenario.profile.provenance, GRADE_WORDS[answer.grade]
    if answer.grade == "unknown" and provenance.of_datasheet:
        gpu = answer.scenario.cluster.gpu
        shipped = profile_of_gpu(gpu)
        why = f"nothing was measured on {gpu.name}"
        if not shipped.provenance.of_datasheet:
            why = f"the datasheet's profile is not measured, and profile={shipped.name} of this GPU is"
    if answer.grade == "like measured runs" and provenance.measured:
        one = len(provenance.measured) == 1
        why = "one other run of yours was measured" if one else "other runs of yours were measured"
    advice, measure = answer.would_raise, "flopcast anchor"
    helps = advice and (measure not in advice or answer.interval.narrowed is not None)  # else measuring hardly does
    return f"{why}; {advice} would help" if helps else why


def factors(answer: Estimate) -> str:
    """The interval of the step time as factors of it."""
    return f"{answer.interval} times the step time"


def limit_words(answer: Estimate, most: int = 3) -> str:
    """What takes most of a step beside arithmetic at peak rate."""
    shares = answer.breakdown.shares()
    causes = sorted((cause for cause in shares if cause != "flop_at_peak"), key=lambda cause: -shares[cause])[:most]
    first, *others = (f"{cause.replace('_', ' ')} ({shares[cause]:.0%}" for cause in causes)
    return ", ".join([f"{first} of the step)", *(f"{other})" for other in others)])


def tokens_words(tokens_per_s: float) -> str:
    """A rate in three digits: 60,200 tokens/s, 1.23 million tokens/s."""
    return f"{show_count(float(f'{tokens_per_s:.3g}'))} tokens/s"


def headline(answer: Estimate, per_gpu: Mapping[str, str]) -> list[Fact]:
    """The numbers people ask for first.

    per_gpu : Names of the rates of a GPU, of its model and hardware FLOPs, in the order in which they stand; that of
        the hardware only where it recomputes.
    """
    recompute = answer.scenario.plan.recompute != "none"
    low, high = answer.step_time_interval_s
    tokens = answer.scenario.training.tokens
    halved = answer.mfu_causal  # said where the masked half of attention counts for much
    causal = f"{halved:.1%} with causal attention halved" if halved < TELLING * answer.mfu else "attention whole"
    mark = ";" if halved < TELLING * answer.mfu else ","
    rates = {"model": (answer.model_flop_per_s_per_gpu, f"{answer.mfu:.1%} of peak (MFU{mark} {causal})")}
    if recompute:
        rates["hardware"] = (answer.hardware_flop_per_s_per_gpu, f"{answer.hfu:.1%} of peak (HFU)")
    total = answer.total_flop_per_s
    limits = between(*(show(total * answer.step_time_s / step_s, "FLOP/s") for step_s in (high, low)))
    facts = [
        Fact("Step time", show_time(answer.step_time_s), f"90 %: {show_time(low)} to {show_time(high)}"),
        Fact("Tokens", tokens_words(answer.tokens_per_s)),
        Fact("Whole job", show(total, "FLOP/s"), f"90 %: {limits}{', recompute counted' * recompute}"),
        *(Fact(name, show(rates[of][0], "FLOP/s"), rates[of][1]) for of, name in per_gpu.items() if of in rates),
    ]
    if answer.training_time_s is not None and tokens is not None:
        facts.append(Fact("Training", show_time(answer.training_time_s), f"for {show_count(tokens)} tokens"))
    fits = "fits" if answer.fits else "does not fit"
    available = answer.memory_available_bytes
    note = f"of {show(available, 'B')} ({available / 2**30:.1f} GiB), fullest rank: {fits}"
    return [*facts, Fact("Memory", show(answer.largest.total, "B"), note, wrong=not answer.fits)]


class Fall(NamedTuple):
    """A row of the way from peak to what is achieved: a bar, whose `begin` is also the share of peak left below it."""

    cause: str
    meaning: str
    group: str
    seconds: float
    begin: float
    width: float


def falls_of(answer: Estimate) -> list[Fall]:
    """Causes as they take peak away, in the breakdown's order; the last row is what is left."""
    shares, seconds, rows, left = answer.breakdown.shares(), answer.breakdown.seconds, list[Fall](), 1.0
    last = "flop_at_peak"
    for cause in (*(each for each in CAUSES if each != last), last):
        left = 0.0 if cause == last else max(left - shares[cause], 0.0)
        if cause == last or shares[cause] >= SMALLEST:
            rows.append(Fall(cause, CAUSES[cause], GROUP_OF[cause], seconds[cause], left, shares[cause]))
    return rows


def memory_rows(answer: Estimate) -> list[tuple[int, dict[str, float]]]:
    """Memory of one GPU by purpose, and in all: of every rank of a short pipeline; of a long one of the ends, the
    fullest and their neighbours. [bytes]"""
    last, rows = len(answer.memory) - 1, []
    shown = list(range(last + 1))
    if last >= 8:
        shown = sorted({0, 1, answer.memory.index(answer.largest), last // 2, last - 1, last})
    for rank in shown:
        use = answer.memory[rank].to_dict()
        parts = {name: use[name] for name in MEMORY if name in use}
        rows.append((rank, {**parts, "other": use["total"] - sum(parts.values()), "total": use["total"]}))
    return rows


def profile_origin(profile: Profile) -> list[tuple[str, str]]:
    """Where a profile's values come from."""
    origin = profile.provenance
    rows = {
        "Profile": f"{profile.name}, made for {profile.gpu}",
        "How": origin.method,
        "Fitted on": "; ".join(origin.fitted_on),
        "Not measured": "; ".join(origin.not_measured),
        "Date": origin.date,
    }
    return [(label, value) for label, value in rows.items() if value]
