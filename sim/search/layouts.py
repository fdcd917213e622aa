"""Which layouts (tp, cp, pp, dp, ep) keep the rules of the descriptions, and which rule leaves none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sim.arrays import Array, Bools
from sim.errors import InfeasiblePlan
from sim.pricing.deal import dealt_layers
from sim.pricing.layouts import LAYOUT
from sim.search.fields import Fields, values_of
from sim.specs import ParallelPlan, Scenario
from sim.units import listed, value_words

USUAL_DEPTHS = range(2, 17)
"""Pipeline ranks of which one ought to divide the layers: if none does, layers are dealt unevenly to all of them."""
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
    widths = [model.linear_num_key_heads, model.shared_expert_intermediate_size]
    widths += [model.intermediate_size] if model.has("dense") else []
    widths += [model.expert_intermediate_size] if scenario.plan.etp > 1 else []
    return [
        tp
        for tp in divisors(model.num_heads)
        if all(width % tp == 0 for width in widths) and (heads % tp == 0 if heads > tp else tp % heads == 0)
    ]


def pipeline_degrees(scenario: Scenario) -> list[int]:
    """Pipeline ranks to search: those that divide the layers, and others where few do or the plan deals unevenly."""
    dealt, plan = dealt_layers(scenario.model, scenario.plan), scenario.plan
    degrees = divisors(dealt)
    if plan.uneven_layers or not any(dealt % pp == 0 for pp in USUAL_DEPTHS):
        degrees = sorted({*degrees, plan.pp, *USUAL_DEPTHS})
    return [pp for pp in degrees if pp <= dealt]


def expert_degrees(scenario: Scenario) -> list[int]:
    """Expert-parallel degrees that deal the model's experts evenly; 1 where it has none."""
    return divisors(max(1, scenario.model.num_experts))


def find_layouts(
    scenario: Scenario,
    gpus: tuple[int, int],
    fixed: Fields | None = None,
    degrees: Mapping[str, Sequence[int]] | None = None,
) -> Array:
    """(tp, cp, pp, dp, ep) of every layout between two numbers of GPUs; those that differ in ep only are neighbours.

    fixed : fields that all plans have, degrees among them.
    degrees : of some axes, what is searched in place of the usual ones.

    Raises InfeasiblePlan: there is none; the message says which rule left nothing.
    """
    axes = _axes(scenario, fixed or {}, degrees or {})
    model, plan = scenario.model, scenario.plan
    layouts = np.stack(np.meshgrid(*axes.values(), indexing="ij"), axis=-1).reshape(-1, len(LAYOUT)).astype(np.int64)
    if scenario.stack.context_by_heads and any(kind.attends for kind in model.layer_kinds):
        tp, cp = layouts[:, 0], layouts[:, 1]
        layouts = _only(
            layouts,
            (cp == 1) | (model.num_heads % (tp * cp) == 0),
            lambda: (
                f"no plan with context-parallel degree {listed(axes['cp'])}: stack.context_by_heads deals "
                f"{model.num_heads} heads to tp · cp ranks; choose a degree that divides them"
            ),
        )
    sizes = layouts[:, :4].prod(axis=1)
    inside = (sizes >= gpus[0]) & (sizes <= min(gpus[1], scenario.cluster.num_gpus))
    sized = _only(layouts, inside, lambda: _no_layout(scenario, gpus, axes, layouts, fixed or {}))
    tp, cp, _, dp, _ = sized.T
    deals = tp * cp * dp % _parts_of_experts(sized, plan) == 0
    if model.num_experts:  # every GPU routes tokens of its own
        deals &= (tp == 1) | cuts_sequences(sized, scenario.training.sequence_length)
    chosen = _only(sized, deals, lambda: _no_experts(scenario, gpus, axes["ep"]))
    if (group := plan.sharding_group) is None:
        return chosen
    tp, cp, _, dp, _ = chosen.T
    return _only(
        chosen,
        (dp * cp % group == 0) & (tp * group % _parts_of_experts(chosen, plan) == 0),
        lambda: (
            f"no plan on {_range(gpus)} GPUs shards in groups of plan.sharding_group = {group}, which must divide "
            f"dp · cp, and ep{' · etp' * (plan.etp > 1)} divide tp · sharding_group; choose another group, or none "
            "(-s plan.sharding_group=)"
        ),
    )


def _only(layouts: Array, kept: Bools, why_none: Callable[[], str]) -> Array:
    """The layouts that are kept, of which there must be some."""
    if not kept.any():
        raise InfeasiblePlan(why_none())
    return np.asarray(layouts[kept])


def _axes(scenario: Scenario, fixed: Fields, degrees: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """The degrees of each axis of LAYOUT that are searched.

    Raises InfeasiblePlan: none of an axis is among those that are set.
    """
    model, length = scenario.model, scenario.training.sequence_length
    batch, dealt = scenario.training.global_batch_size, dealt_layers(model, scenario.plan)
    pieces = (2**power for power in range(1, (length // PIECE_TOKENS).bit_length()))
    contexts = sorted({1, scenario.plan.cp, *values_of(fixed, "cp"), *pieces})
    usual: dict[str, tuple[Sequence[int], str]] = {
        "tp": (tensor_degrees(scenario), f"the {model.num_heads} heads and the matrices"),
        "cp": ([cp for cp in contexts if cp > 0 and length % cp == 0], f"the sequence of {length:,} tokens"),
        "pp": (pipeline_degrees(scenario), f"the {dealt} layers"),
        "dp": (divisors(batch), f"the batch of {batch:,}"),
        "ep": (expert_degrees(scenario), f"the {model.num_experts} experts"),
    }
    axes = dict[str, Sequence[int]]()
    for name, (able, divided) in usual.items():
        there, wanted = degrees.get(name, able), values_of(fixed, name)
        axes[name] = [each for each in there if not wanted or each in wanted]
        if not axes[name]:
            few = f"{', '.join(map(str, there[:12]))}{' …' * (len(there) > 12)}"
            rule = f"it must divide {divided}; degrees that do: {few}"
            if name == "ep" and not model.num_experts:
                rule = f"model {model.name!r} has no experts; leave ep out"
            raise InfeasiblePlan(f"no plan has plan.{name} = {value_words(fixed[name])}: {rule}")
    return axes


def _parts_of_experts(layouts: Array, plan: ParallelPlan) -> Array:
    """GPUs over which each layout deals a layer's experts, or parts of them where a plan's are cut: ep · etp."""
    return np.asarray(layouts[:, 4] * layouts[:, 0] if plan.etp > 1 else layouts[:, 4])


def cuts_sequences(layouts: Array, length: int) -> Bools:
    """Which layouts may cut norms along the sequence of so many tokens."""
    tp, cp = layouts[:, 0], layouts[:, 1]
    return np.asarray((tp > 1) & (length % tp == 0) & ((cp == 1) | (length % (tp * cp) == 0)))


def _range(gpus: tuple[int, int]) -> str:
    return f"{gpus[0]:,}" if gpus[0] == gpus[1] else f"{gpus[0]:,} to {gpus[1]:,}"


def _no_experts(scenario: Scenario, gpus: tuple[int, int], degrees: Sequence[int]) -> str:
    """Which rules of a mixture of experts leave none of the layouts."""
    width = "cp · dp (experts are cut over tp)" if scenario.plan.etp > 1 else "tp · cp · dp"
    return (
        f"no plan on {_range(gpus)} GPUs deals the experts: plan.ep = {listed(degrees)} must divide {width}. With tp "
        f"above 1, that must cut the {scenario.training.sequence_length:,} tokens of a sequence, too. Choose others "
        "(-s plan.ep=[…]; all are searched without it) or other sizes (--gpus)"
    )


def _no_layout(
    scenario: Scenario, gpus: tuple[int, int], axes: Mapping[str, Sequence[int]], layouts: Array, fixed: Fields
) -> str:
    """Why no tp · cp · pp · dp is in the range, which sizes would be, and which batch would let it be.

    layouts : of any size.
    """
    batch, owned, wanted = scenario.training.global_batch_size, scenario.cluster.num_gpus, _range(gpus)
    if gpus[0] > owned:
        return (
            f"no plan on {wanted} GPUs: cluster {scenario.cluster.name!r} has {owned:,}; "
            "raise cluster.num_nodes or lower --gpus"
        )
    sizes = layouts[:, :4].prod(axis=1)
    possible = np.unique(sizes[sizes <= owned])
    near = [f"{int(each):,}" for each in (*possible[possible < gpus[0]][-1:], *possible[possible > gpus[1]][:1])]
    named = " and ".join(f"{name} {listed(axes[name])}" for name in LAYOUT[:4] if name in fixed)
    cut = "" if list(axes["cp"]) == [1] else f" · cp ({listed(axes['cp'])})"
    # Replicas that would fill the range, the fewest first: a batch must be a multiple of them.
    models = np.unique(layouts[:, :3].prod(axis=1))
    replicas = -(-gpus[0] // models)
    replicas = replicas[replicas * models <= min(gpus[1], owned)]
    other = f". Or take a batch that is a multiple of {int(replicas.min()):,}" if len(replicas) else ""
    return (
        f"no plan on {wanted} GPUs{f' with {named}' if named else ''}: no product tp{cut} · pp · dp is {wanted}. "
        f"tp must divide the heads ({', '.join(map(str, axes['tp']))}), pp the "
        f"{dealt_layers(scenario.model, scenario.plan)} layers, and dp the batch of {batch:,}. The nearest numbers "
        f"that can be made are {' and '.join(near) or 'none'}{other}"
    )
