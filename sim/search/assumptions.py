"""What a search did not look at, and how sure its best plan is; `SearchResult.assumptions` puts it in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.pricing.deal import dealt_layers
from sim.schedules.registry import schedules
from sim.search.candidate import Candidate, ScheduleBest, StagesSearched, gap_of
from sim.search.plans.columns import SCHEDULES
from sim.search.plans.layouts import LAYOUT, USUAL_DEPTHS
from sim.search.plans.space import Space
from sim.search.table import FIELDS, ROOM
from sim.specs import Scenario
from sim.specs.framework_plans import framework_words, rules_of_scenario
from sim.units import listed, show, show_time

CLOSE = 0.03
"""Share of the memory below which the best plan is said to leave little of it free."""


def priced_schedules(space: Space) -> str:
    """Return the schedules that are priced and that the framework has: `1f1b or interleaved`."""
    return listed([name for name in SCHEDULES if space.has_schedule(name)] or SCHEDULES)


def proof_assumed(space: Space, confirmed: int, gap: float | None, stages: StagesSearched | None) -> str:
    """Return how sure it is that the best plan is the best; the exact engine ran `confirmed`, to a `gap`."""
    plan = f"plan under {priced_schedules(space)}{'' if stages is None else stages.others}"
    if not confirmed:
        return f"no {plan} fits"
    runs = f"({confirmed:,} exact run{'s' * (confirmed != 1)})"
    if gap is None:
        return f"a {plan} that was not priced may be better than the best {runs}"
    if gap == 0.0:
        return f"no other {plan} can be better than the best {runs}"
    return f"another {plan} may be up to {gap:.2%} better than the best {runs}"


def schedules_assumed(searched: Sequence[ScheduleBest], space: Space) -> list[str]:
    """Return which schedules were searched besides those that are priced, and which were not."""
    names = [each.schedule for each in searched]
    left = [each.name for each in schedules() if each.name not in (*names, *SCHEDULES) and not each.asynchronous]
    more = f"--schedules all also searches {len(left)} other schedules ({', '.join(left)})"
    if not names:
        return [more]
    proven, rest = ([each.schedule for each in searched if each.proven is sure] for sure in (True, False))
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


def room_assumed(room: Sequence[str], objective: str) -> list[str]:
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


def stages_assumed(stages: StagesSearched, worth: float) -> str:
    """Return for how many plans other stages were tried, and how much better one that was not could be."""
    varied = {
        "balanced layouts": stages.layouts,
        "larger groups of micro-batches": stages.windows,
        "chunks that hold different kinds of layers": stages.chunks,
    }
    words = " and ".join(name for name, on in varied.items() if on)
    gap = gap_of(worth, stages.bound)
    runs = f"{stages.runs:,} exact run{'s' * (stages.runs != 1)}" if stages.runs else "none was worth an exact run"
    tried = f"{words} were tried for {stages.plans:,} of the {stages.of:,} plans with a pipeline ({runs})"
    if not gap:
        return f"{tried}; no other can be better than the best plan"
    return f"{tried}; another could be at most {gap:.0%} better than the best plan, by a loose bound"


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


def fixed_assumed(fixed: Mapping[str, Any]) -> str:
    """Return which fields of the plan were set, and which were searched."""
    free = [name for name in FIELDS if name not in fixed and name not in ROOM[1:]]
    searched = f"the search chose {', '.join(free)}, whatever the scenario's own plan says"
    if not fixed:
        return f"{searched}; -s plan.FIELD=VALUE or --fix FIELD keeps one"
    words = ", ".join(f"plan.{name} = {value_words(value)}" for name, value in fixed.items())
    return f"every plan has {words}, as set; {searched}"


def value_words(value: Any) -> str:
    """A value, or several of them, as a person writes it."""
    if isinstance(value, tuple):
        return " or ".join(map(value_words, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def plans_assumed(space: Space) -> list[str]:
    """Return which degrees were searched, and what of the scenario's own plan was not."""
    model, plan, length = space.scenario.model, space.scenario.plan, space.scenario.training.sequence_length
    contexts, experts = (sorted(set(space.layouts[:, LAYOUT.index(name)].tolist())) for name in ("cp", "ep"))
    stated = [
        f"context parallelism was tried with cp {listed(contexts)}, which leaves pieces of {length // contexts[-1]:,} "
        "tokens or more; --cp names others"
    ]
    if model.num_experts:
        stated.append(f"expert parallelism was tried with ep {listed(experts)}; --ep names others")
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
    remedies = []
    for counted in (("head_as_layer",), ("embedding_as_layer", "head_as_layer")):
        added = [name for name in counted if not getattr(plan, name)]
        divides = [pp for pp in USUAL_DEPTHS if added and (dealt + len(added)) % pp == 0]
        if divides:
            words = " ".join(f"--set plan.{name}=true" for name in added)
            remedies.append(f"; {words} makes {dealt + len(added)}, which pp {listed(divides)} divides")
    return [
        f"pp {listed(uneven)} does not divide the {dealt} layers: some ranks hold one more (uneven_layers), in one "
        f"chunk{''.join(remedies)}"
    ]


def best_assumed(best: Candidate, limit_bytes: float, objective: str) -> list[str]:
    """Return how near the best plan is to the end of the memory, and how sure its step time is."""
    if objective == "memory_headroom":
        return []
    low, high = best.answer.step_time_interval_s
    stated = [
        f"step times are estimates (the best plan's, 90 %: {show_time(low)} to {show_time(high)}): plans a few percent "
        "apart are worth a trial on the machine"
    ]
    free = limit_bytes - best.answer.largest.total
    if free < CLOSE * limit_bytes:
        stated.append(
            f"the best plan leaves {show(free, 'B')} of the memory free; a lower --memory-limit keeps a reserve"
        )
    return stated
