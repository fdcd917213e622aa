"""How plans are cut over GPUs, and where their groups lie: a table that columns of plans look up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from sim.arrays import Bools, Floats, Ints, Number
from sim.costs.spread import slowdown
from sim.network.placement import Degrees, Group, Hops, hops_of, place_group, send_share, stack_groups
from sim.pricing.cost_model import CostModel
from sim.specs import ParallelPlan

LAYOUT = ("tp", "cp", "pp", "dp", "ep")
"""What a layout's numbers are, in this order."""


@dataclass(frozen=True, eq=False)
class Layouts:
    """How plans of one model are cut over a machine's GPUs, and where their groups lie; arrays over layouts.

    They hash by identity, so that what they take can be cached.

    gpus : that a plan has.
    tp, cp, pp, ep, etp : degrees.
    tensor, context, experts, data, expert_data : groups over which a layer is cut, and that sum gradients of everything
        but experts, and of experts.
    shards, expert_shards : groups within which ZeRO shards everything but experts, and experts.
    between_shards : groups that hold the same shard; None where all shard together.
    send_share : share of a card's rate that the switches leave where all pipeline ranks send at once.
    hops : which sends of their pipelines leave an NVLink domain.
    """

    costs: CostModel
    gpus: Ints
    tp: Ints
    cp: Ints
    pp: Ints
    ep: Ints
    etp: Ints
    tensor: Group
    context: Group
    experts: Group
    data: Group
    expert_data: Group
    shards: Group
    expert_shards: Group
    between_shards: Group | None
    send_share: Floats
    hops: tuple[Hops, ...]

    def __len__(self) -> int:
        return len(self.tp)

    @cached_property
    def cuts(self) -> Floats:
        """All numbers that say how a layer is cut, and how fast its groups and sends are; (numbers, layouts)."""
        groups = (self.tensor, self.context, self.experts)
        lies = [getattr(group, field.name) for group in groups for field in fields(Group)]
        return np.array([self.tp, self.cp, self.ep, self.etp, self.send_share, *lies], dtype=float)

    def take(self, places: Ints) -> Layouts:
        """Return some of the layouts."""
        taken: dict[str, Any] = {"hops": tuple(self.hops[place] for place in places.tolist())}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Group):
                taken[each.name] = value.take(places)
            elif isinstance(value, np.ndarray):
                taken[each.name] = value[places]
        return replace(self, **taken)

    @cached_property
    def slowdown(self) -> Floats:
        """Share by which passes take longer since all GPUs wait for the slowest."""
        return slowdown(self.gpus, self.costs.cluster.gpu_spread, self.costs.profile.fitted_gpus)

    @property
    def replicas(self) -> tuple[Group, Group]:
        """Groups that hold the same and sum its gradients: of everything but experts, and of experts."""
        return self.data, self.expert_data

    @property
    def sharding(self) -> tuple[Group, Group]:
        """Groups within which ZeRO shards: everything but experts, and experts."""
        return self.shards, self.expert_shards

    def shard_of(self, params: Floats, layout: Any = slice(None)) -> Number:
        """Return what a GPU's shard has of the parameters (everything but experts, experts) that a GPU holds.

        layout : the layouts of the parameters, where these are not over all layouts.
        """
        sizes = (np.asarray(group.size)[layout] for group in self.sharding)
        return sum(each / size for each, size in zip(params, sizes, strict=True))

    def of_copies(self, copies: int) -> Layouts:
        """Return layouts whose groups sum gradients over several copies of the model, without sharding over these."""
        if copies == 1:
            return self

        def over(group: Group) -> Group:
            spans = group.num_domains * copies
            return Group(group.size * copies, group.per_domain, group.shares_network, spans, group.card_share)

        data, experts = over(self.data), over(self.expert_data)
        if self.between_shards is not None:
            return replace(self, data=data, expert_data=experts, between_shards=over(self.between_shards))
        return replace(self, data=data, expert_data=experts, shards=data, expert_shards=experts)

    @cached_property
    def without_sums_between(self) -> Layouts:
        """Layouts whose sharding groups do not sum gradients among each other."""
        return self if self.between_shards is None else replace(self, between_shards=None)

    @cached_property
    def kinds_of_hops(self) -> tuple[tuple[Hops, ...], Ints]:
        """The hops of the layouts without repetitions, and which of them each layout has."""
        kinds = {each: number for number, each in enumerate(dict.fromkeys(self.hops))}
        return tuple(kinds), np.array([kinds[each] for each in self.hops])

    def leaves(self, layout: Ints, sender: Ints, receiver: Ints) -> Bools:
        """Whether sends between ranks of plans with these layouts leave an NVLink domain."""
        kinds, of_layout = self.kinds_of_hops
        found = np.zeros(np.shape(sender), dtype=bool)
        for number, hops in enumerate(kinds):
            here = of_layout[layout] == number
            found[here] = hops.cross(sender[here], receiver[here])
        return found

    @cached_property
    def all_hops_leave(self) -> Bools:
        """Whether every send between ranks of their pipelines leaves its NVLink domain."""
        return np.array([each.all_leave for each in self.hops])


def place_layouts(
    costs: CostModel,
    degrees: Sequence[Sequence[int]] | Ints,
    plan: ParallelPlan,
    progress: Callable[[], object] | None = None,
) -> Layouts:
    """Place layouts (tp, cp, pp, dp, ep) on the cluster.

    plan : all layouts have its `sharding_group` and placement, and their experts are whole or cut over the
        tensor-parallel group as its are.
    progress : called before each group is placed, which takes long where switches are shared by very many GPUs.
    """
    numbers = np.asarray(degrees, dtype=np.int64)
    return _place(costs, numbers, plan.etp > 1, plan.sharding_group, plan.placement, progress)


@lru_cache(maxsize=1024)
def layout_of(costs: CostModel, degrees: tuple[int, ...], cut: bool, group_size: int | None, placement: str) -> Layouts:
    """Return the layout of one plan: the same one for plans that are cut alike."""
    return _place(costs, np.array([degrees]), cut, group_size, placement)


def _place(
    costs: CostModel,
    degrees: Ints,
    cut: bool,
    group_size: int | None,
    placement: str,
    progress: Callable[[], object] | None = None,
) -> Layouts:
    tp, cp, pp, dp, ep = np.ascontiguousarray(degrees.T)
    etp, cluster = tp if cut else np.ones_like(tp), costs.cluster
    plans = [Degrees._make([*each, placement]) for each in np.column_stack([degrees, etp]).tolist()]

    def told() -> Iterator[Degrees]:
        for plan in plans:
            if progress is not None:
                progress()
            yield plan

    def placed(kind: str, size: int | None = None) -> Group:
        return stack_groups([place_group(kind, plan, cluster, size) for plan in told()])

    layers = placed("tp"), placed("cp"), placed("ep")
    replicas = placed("shards"), placed("expert_shards")
    sharding, between = replicas, None
    if group_size is not None:
        sharding = placed("shards", group_size), placed("expert_shards", group_size)
        between = placed("between", group_size)
    share = np.array([send_share(plan, cluster) for plan in told()])
    hops = tuple(hops_of(plan, cluster) for plan in plans)
    return Layouts(costs, tp * cp * pp * dp, tp, cp, pp, ep, etp, *layers, *replicas, *sharding, between, share, hops)


def assumed(layouts: Layouts) -> Iterator[str]:
    """Which kinds of groups switches slow, and what they leave them."""
    shares = {
        "pipeline sends": layouts.send_share,
        "tensor-parallel": layouts.tensor.card_share,
        "context-parallel": layouts.context.card_share,
        "expert-parallel": layouts.experts.card_share,
        "replicas": layouts.data.card_share,
    }
    if np.max(layouts.ep) > 1:
        shares["replicas of experts"] = layouts.expert_data.card_share
    left = ", ".join(f"{name} {np.min(share):.0%}" for name, share in shares.items() if np.min(share) < 1)
    if left:
        yield f"when all groups communicate at once, switches leave this share of each network card: {left}"
