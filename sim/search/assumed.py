"""What a search left out, and how sure its best plan is, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sim.pricing.deal import dealt_layers
from sim.pricing.layouts import LAYOUT
from sim.schedules.registry import schedules
from sim.search.best_first import gap_of
from sim.search.candidate import ScheduleBest, StagesSearched
from sim.search.fields import FIELDS, ROOM, SCHEDULES, Fields
from sim.search.layouts import USUAL_DEPTHS
from sim.search.space import Space
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
        _room(result.room),
        framework_assumed(space.runs_on, scenario),
        *_stack(space),
        _fixed(space.fixed),
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
    even = "" if result.space.runs_on or (result.space.columns.pp == 1).all() else " with layers dealt evenly"
    plan = f"plan under {priced_schedules(result.space)}{even if stages is None else stages.others}"
    if not runs:
        proven = f"no {plan} fits"
    elif not gap:
        proven = f"no other {plan} can be better than the best {ran}"
    else:
        proven = f"another {plan} may be up to {gap:.2%} better than the best {ran}"
    return [proven, *([_stages(stages, result.best[0].worth(result.objective))] if result.best and stages else [])]


def _schedules(searched: Sequence[ScheduleBest], space: Space) -> Iterator[str]:
    """Yield which schedules were searched besides those that are priced, and which were not."""
    names = [each.schedule for each in searched]
    proven, rest = ([each.schedule for each in searched if each.found.proven is sure] for sure in (True, False))
    if rest:
        yield f"a plan with {', '.join(rest)} may still be better: not all could be ruled out"
    if proven:
        yield f"under {', '.join(proven)} the best plan of each schedule is proven, and later ones may be missing"
    if foreign := [name for name in names if not space.has_schedule(name)]:
        words = framework_words(space.scenario.stack.framework)
        yield f"{words} does not have {', '.join(foreign)}, so these are not among the best plans"
    left = [each.name for each in schedules() if each.name not in (*names, *SCHEDULES) and not each.asynchronous]
    if left:
        yield f"--schedules all also searches {len(left)} other schedules ({', '.join(left)})"


def _room(room: Sequence[str]) -> str:
    """Return what plans might do to fit, and what they might not."""
    words = {
        "modules": "recomputing any set of modules",
        "block": "recomputing some layers of every stage",
        "offload": "states or activations in host memory",
    }
    left = [way for way in words if way not in room]
    more = f"; --room {','.join((*room, *left))} also tries {' and '.join(words[way] for way in left)}" if left else ""
    if not room:
        return f"only recompute none, selective (the scenario's modules) and full were tried{more}"
    tried = " or ".join(words[way] for way in room)
    return f"a plan that does not fit was also tried with {tried}, and its fastest form that fits was kept{more}"


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


def _fixed(fixed: Fields) -> str:
    """Return which fields of the plan were set, and which were searched."""
    free = [name for name in FIELDS if name not in fixed and name not in ROOM[1:]]
    searched = f"the search chose {', '.join(free)}, whatever the scenario's own plan says"
    if not fixed:
        return f"{searched}; -s plan.FIELD=VALUE keeps one"
    words = ", ".join(f"plan.{name} = {value_words(value)}" for name, value in fixed.items())
    return f"every plan has {words}, as set; {searched}"


def _plans(space: Space) -> Iterator[str]:
    """Yield which degrees were searched, and what of the scenario's own plan was not."""
    model, plan, length = space.scenario.model, space.scenario.plan, space.scenario.training.sequence_length
    degrees = {name: sorted(set(space.layouts[:, LAYOUT.index(name)].tolist())) for name in ("cp", "ep", "pp")}
    yield (
        f"context parallelism was tried with cp {listed(degrees['cp'])}, which leaves pieces of "
        f"{length // degrees['cp'][-1]:,} tokens or more; -s plan.cp=[…] names others"
    )
    if model.num_experts:
        yield f"expert parallelism was tried with ep {listed(degrees['ep'])}; -s plan.ep=[…] names others"
        if plan.etp > 1:
            yield "each expert is cut over its tensor-parallel group (etp = tp), as by the scenario's plan"
    dealt = dealt_layers(model, plan)
    if uneven := [pp for pp in degrees["pp"] if dealt % pp]:
        remedies = ""
        for counted in (("head_as_layer",), ("embedding_as_layer", "head_as_layer")):
            added = [name for name in counted if not getattr(plan, name)]
            divides = [pp for pp in USUAL_DEPTHS if (dealt + len(added)) % pp == 0]
            if added and divides:
                words = " ".join(f"--set plan.{name}=true" for name in added)
                remedies += f"; {words} makes {dealt + len(added)}, which pp {listed(divides)} divides"
        yield (
            f"pp {listed(uneven)} does not divide the {dealt} layers: some ranks hold one more (uneven_layers), in one "
            f"chunk{remedies}"
        )
    if plan.sequence_slices > 1:
        yield "sequence slices of the scenario's plan are not searched"


def memory_of(result: SearchResult) -> list[str]:
    """Return how much of a GPU's memory plans may take, where that is not what it is sold with."""
    gpu, limit = result.space.scenario.cluster.gpu, result.memory_limit_bytes
    taken, usable = show(limit, "B"), show(gpu.usable_bytes, "B")
    if limit > gpu.usable_bytes:
        return [f"plans may take {taken} of a GPU, but one {gpu.name} has only {usable}: larger ones do not run there"]
    if limit < gpu.usable_bytes:
        return [f"plans use at most {taken} of a GPU (--memory-limit)"]
    if limit < gpu.memory_bytes:
        sold = f"{show(gpu.memory_bytes, 'B')} of a {gpu.name}"
        return [f"plans may use {taken}, which the driver leaves of the {sold}; --memory-limit sets another limit"]
    return []


def _best(result: SearchResult) -> Iterator[str]:
    """Yield how near the best plan is to the end of the memory, and how sure its step time is.

    A limit below what the driver leaves of a GPU is a reserve that the user has already chosen.
    """
    for answer in (each.answer for each in result.best[:1]):
        low, high = map(show_time, answer.step_time_interval_s)
        yield (
            f"step times are estimates (the best plan's, 90 %: {low} to {high}): plans a few percent apart are worth a "
            "trial on the machine"
        )
        limit = result.memory_limit_bytes
        free = limit - answer.largest.total
        if free < CLOSE * limit and limit >= answer.memory_available_bytes:
            yield f"the best plan leaves {show(free, 'B')} of the memory free; a lower --memory-limit keeps a reserve"
