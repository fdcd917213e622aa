"""Which layouts (tp, cp, pp, dp, ep) keep the rules of the descriptions, how each runs, and fields as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from math import gcd
from typing import Any

import numpy as np

from sim.arrays import Array, Bools, Ints
from sim.errors import InfeasiblePlan, SpecError
from sim.pricing.deal import dealt_layers, stages_alike
from sim.pricing.layouts import LAYOUT
from sim.schedules import Schedule, get_schedule
from sim.specs import ParallelPlan, Scenario
from sim.specs.plan import LAYERED, RECOMPUTE_MODULES
from sim.work.recompute import own_modules

SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Schedules that the closed form describes; the column `schedule` holds places in this tuple."""
RECOMPUTES = ("none", "selective", "per_op", "full")
NUMBERS = (*LAYOUT, "num_chunks", "microbatch_size")
CHOICES = ("recompute", "sequence_parallel", "zero_stage")
ROOM = ("recompute_modules", "recompute_method", "recompute_num_layers", "optimizer_offload", "offloaded_layers")
"""Fields of a plan that a search varies where a plan would not fit else (`sim.search.room`)."""
FIELDS = (*NUMBERS, "schedule", *CHOICES, *ROOM)
"""Fields of a plan that a search varies."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The numbers of many plans, one row a plan.

    layout : which of the space's layouts (tp, cp, pp, dp, ep) each row has.
    schedule : place in SCHEDULES.
    """

    tp: Ints
    cp: Ints
    pp: Ints
    dp: Ints
    ep: Ints
    num_chunks: Ints
    microbatch_size: Ints
    schedule: Ints
    layout: Ints

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Ints | slice) -> Columns:
        """Some of the rows."""
        return Columns(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def num_gpus(self) -> Ints:
        """GPUs of each plan."""
        return np.asarray(self.tp * self.cp * self.pp * self.dp)


@dataclass(frozen=True, slots=True)
class Category:
    """What does not broadcast: the choices that many rows share, by the names of the plan's fields."""

    recompute: str
    sequence_parallel: bool
    zero_stage: int
    recompute_modules: tuple[str, ...] = ()
    recompute_method: str = "uniform"
    recompute_num_layers: int = 1
    optimizer_offload: float = 0.0
    offloaded_layers: int = 0

    @classmethod
    def of(cls, own: ParallelPlan, recompute: str, sequence_parallel: bool, zero_stage: int, **more: Any) -> Category:
        """A category in which selective recomputation runs the modules of the scenario's own plan again."""
        modules = own_modules(own) if recompute == "selective" else ()
        return cls(recompute, sequence_parallel, zero_stage, modules, **more)

    @property
    def runs_again(self) -> frozenset[str]:
        """Modules of operations that run again; for whole layers, a name that no module has."""
        if self.recompute in ("full", "per_op"):
            return frozenset({self.recompute})
        return frozenset(part for name in self.recompute_modules for part in RECOMPUTE_MODULES[name])

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of its plans, those of CHOICES and ROOM."""
        return {name: getattr(self, name) for name in (*CHOICES, *ROOM)}

    def without_room(self) -> Category:
        """The category that recomputes nothing and keeps nothing in host memory."""
        return Category("none", self.sequence_parallel, self.zero_stage)


def completed_plan(old: ParallelPlan, num_layers: int, named: Mapping[str, Any]) -> ParallelPlan:
    """The plan on as many GPUs with these fields, and with what must follow: dp, chunks, sequence parallelism, ep.

    num_layers : of the model.
    named : fields of the plan and their values.

    Raises FlopcastError: the rule that they break.
    """
    wanted: dict[str, Any] = dict(named)
    if "recompute_modules" in wanted:
        wanted.setdefault("recompute", "selective")
    elif {"recompute_method", "recompute_num_layers"} & {*wanted}:
        wanted.setdefault("recompute", "full")
    if wanted.get("recompute", old.recompute) != old.recompute:
        old = old.replace(recompute=wanted["recompute"])
    pp, tp = wanted.get("pp", old.pp), wanted.get("tp", old.tp)
    if "schedule" in wanted:
        wanted.setdefault("num_chunks", _chunks_for(wanted["schedule"], old.num_chunks, -(-num_layers // pp)))
    elif "num_chunks" in wanted or pp == 1:
        chunks = wanted.setdefault("num_chunks", 1)
        if (chunks > 1) != (old.schedule == "interleaved"):
            wanted["schedule"] = "interleaved" if chunks > 1 else "1f1b"
    if tp == 1:
        wanted.setdefault("sequence_parallel", False)
    if "dp" not in wanted:
        degree, size = tp * wanted.get("cp", old.cp) * pp, old.num_gpus
        if size % degree:
            raise SpecError(f"tp · cp · pp = {degree} does not divide {size:,} GPUs")
        wanted["dp"] = size // degree
    width = tp * wanted.get("cp", old.cp) * wanted["dp"]
    etp = wanted.setdefault("etp", tp if old.etp > 1 else 1)
    wanted.setdefault("ep", gcd(old.ep, width // etp))
    return ParallelPlan.read({**old.model_dump(), **wanted}, "plan")


def _chunks_for(schedule: str, given: int, most: int) -> int:
    """Chunks a rank for a schedule that takes so many."""
    taken = get_schedule(schedule).chunks
    if isinstance(taken, int):
        return taken
    return most if schedule == "modular" else 1 if taken == "one" else max(2, given)


USUAL_DEPTHS = range(2, 17)
"""Pipeline ranks of which one ought to divide the layers: if none does, layers are dealt unevenly to all of them."""
MOST_UNEVEN_CHUNKS = 4
"""Chunks a rank that are tried where the ranks do not divide the layers, under schedules that take any number."""
PIECE_TOKENS = 8192
"""The shortest pieces of a sequence for which context parallelism is searched unasked: those of Llama 3, which cuts
131,072 tokens in 16 and leaves 8,192 whole (arXiv:2407.21783, table 4). Of shorter ones no measured run was at hand."""


def divisors(number: int) -> list[int]:
    """All divisors, in order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def tensor_degrees(scenario: Scenario) -> list[int]:
    """Tensor-parallel degrees that cut the model's heads and matrices evenly."""
    model = scenario.model
    heads = model.num_kv_heads
    widths = [model.shared_expert_intermediate_size]
    if model.has("dense"):
        widths.append(model.intermediate_size)
    return [
        tp
        for tp in divisors(model.num_heads)
        if (model.linear_num_key_heads % tp == 0)
        and all(width % tp == 0 for width in widths)
        and not (scenario.plan.etp > 1 and model.expert_intermediate_size % tp)
        and (heads % tp == 0 if heads > tp else tp % heads == 0)
    ]


def pipeline_degrees(scenario: Scenario) -> list[int]:
    """Pipeline ranks to search: those that divide the layers, and others where few do or the plan deals unevenly."""
    dealt, plan = dealt_layers(scenario.model, scenario.plan), scenario.plan
    degrees = divisors(dealt)
    if plan.uneven_layers or not any(dealt % pp == 0 for pp in USUAL_DEPTHS):
        degrees = sorted({*degrees, plan.pp, *(pp for pp in USUAL_DEPTHS if pp <= dealt)})
    return [pp for pp in degrees if pp <= dealt]


def context_degrees(length: int, *own: int) -> tuple[int, ...]:
    """Context-parallel degrees to search unasked: powers of two that leave pieces of PIECE_TOKENS, and a plan's own."""
    return tuple(sorted({1, *own, *(2**power for power in range(1, (length // PIECE_TOKENS).bit_length()))}))


def expert_degrees(scenario: Scenario) -> tuple[int, ...]:
    """Expert-parallel degrees that deal the model's experts evenly; 1 where it has none."""
    return tuple(divisors(max(1, scenario.model.num_experts)))


def find_layouts(
    scenario: Scenario,
    gpus: tuple[int, int],
    context: tuple[int, ...],
    experts: tuple[int, ...] | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> Array:
    """(tp, cp, pp, dp, ep) of every layout between two numbers of GPUs; those that differ in ep only are neighbours.

    experts : expert-parallel degrees. Default: every one that deals the experts evenly.
    fixed : fields that plans will have, for the sizes that the error names.

    Raises InfeasiblePlan: there is none; the message says which rule left nothing.
    """
    length = scenario.training.sequence_length
    degrees = tuple(cp for cp in context if cp > 0 and length % cp == 0)
    if not degrees:
        raise InfeasiblePlan(
            f"no plan with context-parallel degree {' or '.join(map(str, context))}: it must divide the sequence of "
            f"{length:,} tokens; degrees that do: {', '.join(map(str, divisors(length)[:8]))} …"
        )
    dealt = _degrees_of_experts(scenario, experts)
    pipelines, replicas = pipeline_degrees(scenario), divisors(scenario.training.global_batch_size)
    axes = (tensor_degrees(scenario), degrees, pipelines, replicas, dealt)
    layouts = np.array(list(product(*axes)), dtype=np.int64).reshape(-1, 5)
    layouts = _only(
        layouts,
        _deals_heads(scenario, layouts),
        lambda: (
            f"no plan with context-parallel degree {' or '.join(map(str, degrees))}: stack.context_by_heads deals "
            f"{scenario.model.num_heads} heads to tp · cp ranks; choose a degree that divides them"
        ),
    )
    sizes = layouts[:, :4].prod(axis=1)
    inside = (sizes >= gpus[0]) & (sizes <= min(gpus[1], scenario.cluster.num_gpus))
    sized = _only(layouts, inside, lambda: _no_layout(scenario, gpus, axes, *_kept(layouts, fixed or {})))
    tp, cp, _, dp, _ = sized.T
    apart = not scenario.model.num_experts or _routes_apart(scenario, sized)
    divide = tp * cp * dp % parts_of_experts(sized, scenario.plan) == 0
    chosen = _only(sized, apart & divide, lambda: _no_experts(scenario, gpus, sized, dealt))
    return _only(
        chosen,
        shards_evenly(chosen, scenario.plan),
        lambda: (
            f"no plan on {_range(gpus)} GPUs shards in groups of plan.sharding_group = "
            f"{scenario.plan.sharding_group}, which must divide dp · cp, and ep{' · etp' * (scenario.plan.etp > 1)} "
            "divide tp · sharding_group; choose another group, or none (-s plan.sharding_group=)"
        ),
    )


def _only(layouts: Array, kept: Bools, why_none: Callable[[], str]) -> Array:
    """The layouts that are kept, of which there must be some."""
    if not kept.any():
        raise InfeasiblePlan(why_none())
    return np.asarray(layouts[kept])


def shards_evenly(layouts: Array, plan: ParallelPlan) -> Array:
    """Layouts whose replicas can shard in groups as large as a plan's, each with all experts of a layer."""
    size = plan.sharding_group
    if size is None:
        return np.ones(len(layouts), dtype=bool)
    tp, cp, _, dp, _ = layouts.T
    return np.asarray((dp * cp % size == 0) & (tp * size % parts_of_experts(layouts, plan) == 0))


def parts_of_experts(layouts: Array, plan: ParallelPlan) -> Array:
    """GPUs over which each layout deals a layer's experts, or parts of them where a plan's are cut: ep · etp."""
    tp, _, _, _, ep = layouts.T
    return np.asarray(ep * tp if plan.etp > 1 else ep)


def _degrees_of_experts(scenario: Scenario, experts: tuple[int, ...] | None) -> tuple[int, ...]:
    """Expert-parallel degrees that deal the experts evenly: those asked for, or all if none was."""
    model, able = scenario.model, expert_degrees(scenario)
    wanted = able if experts is None else tuple(ep for ep in able if ep in experts)
    if wanted:
        return wanted
    asked = " or ".join(map(str, experts or ()))
    if not model.num_experts:
        raise InfeasiblePlan(
            f"no plan with expert-parallel degree {asked}: model {model.name!r} has no experts; leave ep out"
        )
    raise InfeasiblePlan(
        f"no plan with expert-parallel degree {asked}: plan.ep must divide model.num_experts = {model.num_experts}; "
        f"degrees that do: {', '.join(map(str, able))}"
    )


def _deals_heads(scenario: Scenario, layouts: Array) -> Array:
    """Layouts whose ranks have as many heads each, where context parallelism deals them."""
    tp, cp = layouts[:, 0], layouts[:, 1]
    if not (scenario.stack.context_by_heads and any(kind.attends for kind in scenario.model.layer_kinds)):
        return np.ones(len(layouts), dtype=bool)
    return np.asarray((cp == 1) | (scenario.model.num_heads % (tp * cp) == 0))


def _routes_apart(scenario: Scenario, layouts: Array) -> Array:
    """Layouts in which every GPU can route tokens of its own, as experts want it."""
    apart: Array = (layouts[:, 0] == 1) | cuts_sequences(layouts, scenario.training.sequence_length)
    return apart


def _range(gpus: tuple[int, int]) -> str:
    return f"{gpus[0]:,}" if gpus[0] == gpus[1] else f"{gpus[0]:,} to {gpus[1]:,}"


def _no_experts(scenario: Scenario, gpus: tuple[int, int], layouts: Array, degrees: tuple[int, ...]) -> str:
    """Which rules of a mixture of experts leave none of these layouts."""
    length = scenario.training.sequence_length
    rules, sizes = [], "other sizes (--gpus)"
    if degrees[0] > 1:
        width = "cp · dp (experts are cut over tp)" if scenario.plan.etp > 1 else "tp · cp · dp"
        rules.append(f"plan.ep = {' or '.join(map(str, degrees))} must divide {width}")
        sizes = f"other degrees (-s plan.ep=[…]; all are searched without it) or {sizes}"
    if not _routes_apart(scenario, layouts).all():
        rules.append(f"tp above 1 must cut the sequence of {length:,} tokens")
    return f"no plan on {_range(gpus)} GPUs deals the experts: {', and '.join(rules)}; choose {sizes}"


def unlike_chunks(scenario: Scenario, pp: int) -> tuple[int, ...]:
    """Numbers of chunks above one whose stages have as many layers each, but not of the same kinds."""
    model, plan = scenario.model, scenario.plan
    dealt = dealt_layers(model, plan)
    several = divisors(dealt // pp)[1:] if dealt % pp == 0 else ()
    return tuple(each for each in several if not stages_alike(model, plan, pp, each))


def shapes(scenario: Scenario, schedules: Sequence[str], slices: int, pp: int, per_replica: int) -> Array:
    """(micro-batch size, place of the schedule, chunks) of every way to run so many sequences through `pp` ranks.

    Of several schedules, those with a closed form, each GPipe shape stands before the 1F1B shape of the same numbers.
    """
    able = [get_schedule(name) for name in schedules]
    uneven = range(1, MOST_UNEVEN_CHUNKS + 1) if len(able) == 1 else (1,)  # which the closed form prices in one chunk
    chunks = [_chunks_under(scenario, chosen, slices, pp, uneven) for chosen in able]
    rows = [
        (size, place, each)
        for size in divisors(per_replica)
        for place, chosen in enumerate(able)
        for each in chunks[place]
        if per_replica // size % chosen.copies == 0 and chosen.requirement(pp, each, per_replica // size) is None
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _chunks_under(scenario: Scenario, chosen: Schedule, slices: int, pp: int, uneven: Sequence[int]) -> list[int]:
    """Numbers of chunks under a schedule that keep the rules of ParallelPlan and Scenario.

    uneven : those that are tried where the ranks do not divide the layers.
    """
    model, dealt = scenario.model, dealt_layers(scenario.model, scenario.plan)
    numbers = divisors(dealt // pp) if dealt % pp == 0 else [each for each in uneven if dealt // (pp * each) >= 1]
    numbers = [each for each in numbers if each == 1 or stages_alike(model, scenario.plan, pp, each)]
    if chosen.name == "modular":
        numbers = [each for each in numbers if pp * each == model.num_layers]
    if chosen.chunks != "many":
        numbers = [each for each in numbers if each == (1 if chosen.chunks == "one" else chosen.chunks)]
    # Without a pipeline slices keep less; all other orders but those in layers are that of 1F1B, or keep more.
    if pp > 1 or slices > 1:
        return numbers
    return [each for each in numbers if (chosen.name in LAYERED if each > 1 else chosen.name == "1f1b")]


def cuts_sequences(layouts: Array, length: int) -> Array:
    """Which layouts may cut norms along the sequence of so many tokens."""
    tp, cp = layouts[:, 0], layouts[:, 1]
    whole: Array = (tp > 1) & (length % tp == 0) & ((cp == 1) | (length % (tp * cp) == 0))
    return whole


def _kept(layouts: Array, fixed: Mapping[str, Any]) -> tuple[Array, str]:
    """(layouts that have the degrees that are set, those degrees in words); all where none has them."""
    degrees = {name: np.atleast_1d(fixed[name]) for name in ("tp", "cp", "pp", "dp") if name in fixed}
    kept = np.ones(len(layouts), dtype=bool)
    for name, values in degrees.items():
        kept &= np.isin(layouts[:, LAYOUT.index(name)], values)
    if not kept.any():
        return layouts, ""
    words = (f"{name} {' or '.join(map(str, values.tolist()))}" for name, values in degrees.items())
    return layouts[kept], " and ".join(words)


def _no_layout(
    scenario: Scenario, gpus: tuple[int, int], axes: tuple[Sequence[int], ...], layouts: Array, named: str
) -> str:
    """Why no tp · cp · pp · dp is in the range, which sizes would be, and which batch would let it be.

    layouts, named : of any size; the degrees that are set, in words.
    """
    tensor, context, *_ = axes
    batch, owned = scenario.training.global_batch_size, scenario.cluster.num_gpus
    wanted, dealt = _range(gpus), dealt_layers(scenario.model, scenario.plan)
    if gpus[0] > owned:
        return (
            f"no plan on {wanted} GPUs: cluster {scenario.cluster.name!r} has {owned:,}; "
            "raise cluster.num_nodes or lower --gpus"
        )
    sizes = layouts[:, :4].prod(axis=1)
    possible = np.unique(sizes[sizes <= owned])
    below, above = possible[possible < gpus[0]], possible[possible > gpus[1]]
    near = [f"{int(each):,}" for each in (*below[-1:], *above[:1])]
    cut = "" if context == (1,) else f" · cp ({' or '.join(map(str, context))})"
    # Replicas that would fill the range, the fewest first: a batch must be a multiple of them.
    models = np.unique(layouts[:, :3].prod(axis=1))
    replicas = -(-gpus[0] // models)
    replicas = replicas[replicas * models <= min(gpus[1], owned)]
    other = f". Or take a batch that is a multiple of {int(replicas.min()):,}" if len(replicas) else ""
    return (
        f"no plan on {wanted} GPUs{f' with {named}' if named else ''}: no product tp{cut} · pp · dp is {wanted}. "
        f"tp must divide the heads ({', '.join(map(str, tensor))}), pp the {dealt} layers, and dp the batch of "
        f"{batch:,}. The nearest numbers that can be made are {' and '.join(near) or 'none'}{other}"
    )
