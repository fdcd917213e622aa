"""What a search left out, and how sure its best plan is, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sim.pricing.deal import dealt_layers
from sim.pricing.layouts import LAYOUT
from sim.schedules.registry import schedules
from sim.search.best_first import gap_of
from sim.search.candidate import ScheduleBest, StagesSearched
from sim.search.plans.layouts import FIELDS, ROOM, SCHEDULES, USUAL_DEPTHS
from sim.search.plans.space import Space
from sim.specs import Scenario
from sim.specs.framework_plans import framework_words, rules_of_scenario
from sim.units import listed, show, show_time, value_words

if TYPE_CHECKING:
    from sim.search.result import SearchResult

CLOSE = 0.03
"""Share of the memory below which the best plan is said to leave little of it free."""


def assumptions_of(result: SearchResult) -> tuple[str, ...]:
    """Return what a search left out, and how sure its best plan is."""
    space, scenario = result.space, result.space.scenario
    stated = [
        *proof_of(result),
        *_schedules(result.schedules, space),
        *_room(result.room, result.objective),
        framework_assumed(space.runs_on, scenario),
        *_stack(space),
        _fixed({**space.fixed, **result.ways_fixed}),
        *_plans(space),
        *memory_of(result),
        *_best(result),
    ]
    if result.objective == "days" and scenario.training.tokens is None:
        stated.append("training.tokens is not given, so days are ranked by step time")
    return tuple(stated)


def priced_schedules(space: Space) -> str:
    """Return the schedules that are priced and that the framework has: `1f1b or interleaved`."""
    return listed([name for name in SCHEDULES if space.has_schedule(name)] or SCHEDULES)


def proof_of(result: SearchResult) -> list[str]:
    """Return how sure it is that the best plan is the best, with layers dealt evenly and otherwise."""
    stages, gap, runs = result.stages, result.gap, result.found.runs
    ran = f"({runs:,} exact run{'s' * (runs != 1)})"
    plan = f"plan under {priced_schedules(result.space)}{'' if stages is None else stages.others}"
    if not runs:
        proven = f"no {plan} fits"
    elif gap is None:
        proven = f"a {plan} that was not priced may be better than the best {ran}"
    elif gap == 0.0:
        proven = f"no other {plan} can be better than the best {ran}"
    else:
        proven = f"another {plan} may be up to {gap:.2%} better than the best {ran}"
    return [proven, *([_stages(stages, result.best[0].worth(result.objective))] if result.best and stages else [])]


def _schedules(searched: Sequence[ScheduleBest], space: Space) -> list[str]:
    """Return which schedules were searched besides those that are priced, and which were not."""
    names = [each.schedule for each in searched]
    left = [each.name for each in schedules() if each.name not in (*names, *SCHEDULES) and not each.asynchronous]
    more = f"--schedules all also searches {len(left)} other schedules ({', '.join(left)})"
    if not names:
        return [more]
    proven, rest = ([each.schedule for each in searched if each.found.proven is sure] for sure in (True, False))
    stated = [f"a plan with {', '.join(rest)} may still be better: not all could be ruled out"] if rest else []
    if proven:
        stated.append(
            f"under {', '.join(proven)} the best plan of each schedule is proven, and later ones may be missing"
        )
    foreign = [each.schedule for each in searched if not space.has_schedule(each.schedule)]
    if foreign:
        words = framework_words(space.scenario.stack.framework)
        stated.append(f"{words} does not have {', '.join(foreign)}, so these are not among the best plans")
    if any(each.asynchronous for each in searched):
        stated.append("asynchronous schedules train another way (gradients come late): not among the best plans")
    if left:
        stated.append(more)
    return stated


def _room(room: Sequence[str], objective: str) -> list[str]:
    """Return what plans might do to fit, and what they might not."""
    if objective == "memory_headroom":
        return [
            "only recompute none, selective (the scenario's modules) and full were tried, with nothing in host memory"
        ]
    words = {
        "modules": "recomputing any set of modules",
        "block": "recomputing some layers of every stage",
        "offload": "states or activations in host memory",
    }
    tried = " or ".join(words[way] for way in room)
    left = [way for way in words if way not in room]
    more = f"; --room {','.join((*room, *left))} also tries {' and '.join(words[way] for way in left)}" if left else ""
    if not room:
        return [f"only recompute none, selective (the scenario's modules) and full were tried{more}"]
    return [f"a plan that does not fit was also tried with {tried}, and its fastest form that fits was kept{more}"]


def _stages(stages: StagesSearched, worth: float) -> str:
    """Return for how many plans other stages were tried, and whether a better one may exist."""
    varied = {"balanced layouts": stages.layouts, "chunks that hold different kinds of layers": stages.chunks}
    words, found = " and ".join(name for name, on in varied.items() if on), stages.found
    tried = f"{words} did not look faster for any of the {found.plans:,} plans with a pipeline, so none was run exactly"
    if found.runs:
        several = f"{found.runs:,} exact run{'s' * (found.runs > 1)}"
        tried = f"{words} were tried for {stages.tried:,} of the {found.plans:,} plans with a pipeline ({several})"
    if not gap_of(worth, found.bound):
        return f"{tried}. No other can be better than the best plan"
    if not stages.left:
        return (
            f"{tried}. Some layouts of these {stages.tried:,} plans were not tried and may be faster. "
            "All other plans are slower"
        )
    more = "; flopcast search --layouts tries more" if stages.likely else ""
    return f"{tried}. {stages.left:,} of these plans might still beat the best with layouts that were not tried{more}"


def framework_assumed(runs_on: str, scenario: Scenario) -> str:
    """Return whose plans were searched."""
    if runs_on:
        return f"only plans that {runs_on} can run were searched; --any-framework searches all"
    words = framework_words(scenario.stack.framework) or "this stack's framework"
    if rules_of_scenario(scenario):
        return f"plans were searched whether {words} can run them or not"
    return (
        f"which plans {words} can run is not known here, so all were searched, and it may be unable to run the "
        "best. -s plan.FIELD=VALUE keeps what it needs, such as plan.schedule=1f1b"
    )


def _stack(space: Space) -> list[str]:
    """Return which settings of the stack leave out plans that would use them."""
    scenario = space.scenario
    dealt = {**dict(scenario.plan), "ep": 1 + (scenario.model.num_experts > 0), "pp": 1, "recompute": "none"}
    return [
        f"{space.runs_on} cannot run {rule.refusal(scenario, dealt)}, so plans that would use it were left out; "
        f"{rule.nearest} searches them"
        for rule in space.rules
        if "." in rule.field and not rule.holds(scenario, dealt)
    ]


def _fixed(fixed: Mapping[str, Any]) -> str:
    """Return which fields of the plan were set, and which were searched."""
    free = [name for name in FIELDS if name not in fixed and name not in ROOM[1:]]
    searched = f"the search chose {', '.join(free)}, whatever the scenario's own plan says"
    if not fixed:
        return f"{searched}; -s plan.FIELD=VALUE keeps one"
    words = ", ".join(f"plan.{name} = {value_words(value)}" for name, value in fixed.items())
    return f"every plan has {words}, as set; {searched}"


def _plans(space: Space) -> list[str]:
    """Return which degrees were searched, and what of the scenario's own plan was not."""
    model, plan, length = space.scenario.model, space.scenario.plan, space.scenario.training.sequence_length
    contexts, experts = (sorted(set(space.layouts[:, LAYOUT.index(name)].tolist())) for name in ("cp", "ep"))
    stated = [
        f"context parallelism was tried with cp {listed(contexts)}, which leaves pieces of {length // contexts[-1]:,} "
        "tokens or more; -s plan.cp=[…] names others"
    ]
    if model.num_experts:
        stated.append(f"expert parallelism was tried with ep {listed(experts)}; -s plan.ep=[…] names others")
        if plan.etp > 1:
            stated.append("each expert is cut over its tensor-parallel group (etp = tp), as by the scenario's plan")
    stated += _uneven(space)
    if plan.sequence_slices > 1:
        stated.append("sequence slices of the scenario's plan are not searched")
    return stated


def _uneven(space: Space) -> list[str]:
    """A sentence if some pipelines do not divide the layers evenly, and what would divide them."""
    plan, dealt = space.scenario.plan, dealt_layers(space.scenario.model, space.scenario.plan)
    depths = sorted(set(space.layouts[:, LAYOUT.index("pp")].tolist()))
    uneven = [pp for pp in depths if dealt % pp]
    if not uneven:
        return []
    remedies = ""
    for counted in (("head_as_layer",), ("embedding_as_layer", "head_as_layer")):
        added = [name for name in counted if not getattr(plan, name)]
        more = dealt + len(added)
        if added and (divides := [pp for pp in USUAL_DEPTHS if more % pp == 0]):
            words = " ".join(f"--set plan.{name}=true" for name in added)
            remedies += f"; {words} makes {more}, which pp {listed(divides)} divides"
    return [
        f"pp {listed(uneven)} does not divide the {dealt} layers: some ranks hold one more (uneven_layers), in one "
        f"chunk{remedies}"
    ]


def memory_of(result: SearchResult) -> list[str]:
    """Return how much of a GPU's memory plans may take, where that is not what it is sold with."""
    gpu, limit = result.space.scenario.cluster.gpu, result.memory_limit_bytes
    if limit > gpu.usable_bytes:
        return [
            f"plans may take {show(limit, 'B')} of a GPU, but one {gpu.name} has only {show(gpu.usable_bytes, 'B')}: "
            "those that take more do not run there"
        ]
    if limit < gpu.usable_bytes:
        return [f"plans use at most {show(limit, 'B')} of a GPU (--memory-limit)"]
    if limit < gpu.memory_bytes:
        return [
            f"plans may use {show(limit, 'B')}, which the driver leaves of the {show(gpu.memory_bytes, 'B')} of a "
            f"{gpu.name}; --memory-limit sets another limit"
        ]
    return []


def _best(result: SearchResult) -> list[str]:
    """Return how near the best plan is to the end of the memory, and how sure its step time is.

    A limit below what the driver leaves of a GPU is a reserve that the user has already chosen.
    """
    if not result.best or result.objective == "memory_headroom":
        return []
    answer, limit = result.best[0].answer, result.memory_limit_bytes
    low, high = map(show_time, answer.step_time_interval_s)
    stated = [
        f"step times are estimates (the best plan's, 90 %: {low} to {high}): plans a few percent apart are worth a "
        "trial on the machine"
    ]
    free = limit - answer.largest.total
    if free < CLOSE * limit and limit >= answer.memory_available_bytes:
        stated.append(
            f"the best plan leaves {show(free, 'B')} of the memory free; a lower --memory-limit keeps a reserve"
        )
    return stated
