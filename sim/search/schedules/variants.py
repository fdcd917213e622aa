"""The plans of one schedule: every layout, micro-batch and number of chunks that it takes, in every category."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Array, Bools, Ints, Number
from sim.errors import ScheduleError
from sim.pricing.cells import Way, find_cells, price_cells
from sim.pricing.cost_model import cost_model
from sim.pricing.deal import RankKinds, counts_of, dealt_layers, layers_before, stages_alike
from sim.pricing.layouts import place_layouts
from sim.pricing.plans import Plans
from sim.schedules import Schedule, get_schedule
from sim.schedules.actions import U, W
from sim.schedules.registry import is_file
from sim.search.plans.columns import OVERLAPS, RECOMPUTES, SCHEDULES, Columns, stack_of
from sim.search.plans.layouts import LAYOUT, divisors
from sim.search.plans.space import Space, base_plan, recompute_fields, sharding_fields
from sim.specs import Scenario
from sim.specs.plan import LAYERED
from sim.specs.stack import sends_overlap
from sim.work.recompute import searched_word
from sim.work.stages import EMBEDDING, FIRST_KIND, ModelPart
from sim.work.sums import layer_params

SLICES = (2, 4, 8)
"""Parts of a sequence that are tried under a schedule that cuts sequences."""


MOST_UNEVEN_CHUNKS = 4
"""Chunks a rank that are tried where the ranks do not divide the layers."""


@dataclass(frozen=True)
class Variant:
    """Plans of a space's layouts and categories under one schedule, with one number of sequence slices."""

    space: Space
    schedule: Schedule
    slices: int = 1

    @cached_property
    def columns(self) -> Columns:
        """Layout × micro-batch × chunks, row by row."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        rows, which = [], []
        batch = self.space.scenario.training.global_batch_size
        for layout, (pp, dp) in enumerate(self.space.layouts[:, 2:4].tolist()):
            if (pp, dp) not in found:
                found[pp, dp] = list(self._shapes(pp, batch // dp))
            rows += found[pp, dp]
            which += [layout] * len(found[pp, dp])
        size, chunks = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        layout_of = np.array(which, dtype=np.int64)
        tp, cp, pp, dp, ep = self.space.layouts[layout_of].T
        # The schedule is the variant's: nobody asks these columns for it, which know only those that are priced.
        return Columns(tp, cp, pp, dp, ep, chunks, size, np.full(len(size), SCHEDULES.index("1f1b")), layout_of)

    def _shapes(self, pp: int, per_replica: int) -> Iterator[tuple[int, int]]:
        """(micro-batch size, chunks) that the schedule takes on `pp` ranks."""
        chosen = self.schedule
        for size in divisors(per_replica):
            count = per_replica // size
            for chunks in self._chunks(pp):
                if count % chosen.copies == 0 and chosen.requirement(pp, chunks, count) is None:
                    yield size, chunks

    def _chunks(self, pp: int) -> list[int]:
        """Numbers of chunks that keep the rules of ParallelPlan and Scenario."""
        scenario, chosen = self.space.scenario, self.schedule
        model, dealt = scenario.model, dealt_layers(scenario.model, scenario.plan)
        whole = dealt % pp == 0
        numbers = divisors(dealt // pp) if whole else list(range(1, MOST_UNEVEN_CHUNKS + 1))
        numbers = [each for each in numbers if dealt // (pp * each) >= 1]
        numbers = [each for each in numbers if each == 1 or stages_alike(model, scenario.plan, pp, each)]
        if chosen.name == "modular":
            numbers = [each for each in numbers if pp * each == model.num_layers]
        if chosen.chunks != "many":
            numbers = [each for each in numbers if each == (1 if chosen.chunks == "one" else chosen.chunks)]
        if pp > 1:
            return numbers
        # Without a pipeline slices keep less; all other orders but those in layers are that of 1F1B, or keep more.
        if self.slices > 1:
            return numbers
        return [each for each in numbers if (chosen.name in LAYERED if each > 1 else chosen.name == "1f1b")]

    @cached_property
    def plans(self) -> tuple[Array, Array]:
        """(row, category) of every plan."""
        space = self.space
        rows = [flag[self.columns.layout] for flag in space.allowed]
        kept = {each: rows[each.sequence_parallel] for each in space.categories}
        if space.rules or space.fixed:
            name = self.schedule.name
            kept = {each: row & space.keeps_under(name, each, self.columns) for each, row in kept.items()}
        each = [np.flatnonzero(row) for row in kept.values()]
        number = np.repeat(np.arange(len(each)), [len(found) for found in each])
        return np.concatenate(each), number

    @property
    def num_microbatches(self) -> Array:
        """Of every row."""
        columns = self.columns
        return np.asarray(self.space.scenario.training.global_batch_size // (columns.dp * columns.microbatch_size))

    @cached_property
    def batch(self) -> Plans:
        """All plans as columns of what they cost."""
        space, columns = self.space, self.columns
        row, category = self.plans

        def of_category(values: list[Any]) -> Any:
            return np.array(values)[category]

        overlaps = [[each.overlaps[place] for each in space.categories] for place in range(len(OVERLAPS))]
        sends = [sends_overlap(each, columns.num_chunks) & np.ones(len(columns), dtype=bool) for each in overlaps[0]]
        pairs = [
            (each.overlaps[OVERLAPS.index("overlap_tp_backward")], each.sequence_parallel) for each in space.categories
        ]
        ways = tuple(product(sorted(set(pairs)), RECOMPUTES))
        layouts = place_layouts(cost_model(space.scenario), space.layouts, space.scenario.plan)
        of_layers = tuple(Way(kind[0], kind[1], searched_word(mode, space.scenario.plan)) for kind, mode in ways)
        cells, cell = find_cells(layouts, columns.layout, columns.microbatch_size, of_layers, self.slices)
        return Plans(
            layouts,
            price_cells(cells),
            base_plan(space.scenario),
            self.schedule.name,
            layout=columns.layout[row],
            cell=cell[row],
            way=of_category(
                [ways.index((pair, each.recompute)) for pair, each in zip(pairs, space.categories, strict=True)]
            ),
            zero_stage=of_category([each.zero_stage for each in space.categories]),
            num_chunks=columns.num_chunks[row],
            num_microbatches=self.num_microbatches[row],
            overlap_p2p=np.array(sends)[category, row],
            overlap_grad_reduce=of_category(overlaps[1]),
            overlap_param_gather=of_category(overlaps[2]),
        )

    @cached_property
    def splits(self) -> bool:
        """Whether weight gradients are actions of their own."""
        chosen = self.schedule
        chunks = chosen.chunks if isinstance(chosen.chunks, int) else 1 if chosen.chunks == "one" else 2
        options = {"slices": self.slices} if "slices" in chosen.options else {}
        rows = [
            *chosen.rows(4, chunks, 8, **options),
            *(row for each in chosen.candidates for row in each(4, chunks, 8)),
        ]
        return any(bool((row[:, 1] == W).any()) for row in rows)

    @cached_property
    def alone(self) -> Bools:
        """Of every layout, whether embedding and head share a stage, and a tied table with it.

        A head on a rank of several stages has a copy of its own, as where there are several ranks.
        """
        return np.asarray((self.batch.layouts.pp == 1) & (self.schedule.chunks == "one"))

    @cached_property
    def least_layers(self) -> Ints:
        """Of every layout, layers that a rank of a model without copies holds at least, before embedding and head."""
        columns = self.columns
        stages, dealt = columns.pp * columns.num_chunks, self.dealt
        layers = np.full(len(self.space.layouts), dealt)
        np.minimum.at(layers, columns.layout, columns.num_chunks * (dealt // stages))
        return layers

    @property
    def dealt(self) -> int:
        """Layers that are dealt to stages."""
        return dealt_layers(self.space.scenario.model, self.space.scenario.plan)

    def rank_kinds(self, share: float, ends: Sequence[tuple[int, int]]) -> RankKinds:
        """Ranks, one with each number of embeddings and heads, of every layout, with so large a share of the layers
        dealt to one of a model without copies.

        Of kinds of layers those with the fewest parameters that they can have, and first of all one of these.
        """
        found = [self._rank(share, *each) for each in ends]
        counts = counts_of([part for part, _ in found], (len(self.space.layouts),))
        first = np.array([block for _, block in found])[:, np.newaxis]
        return RankKinds(counts, first, np.ones_like(first))

    def _rank(self, share: float, embeddings: int, heads: int) -> tuple[ModelPart, int]:
        """What such a rank holds, and its first block."""
        model, plan = self.space.scenario.model, self.space.scenario.plan
        layers = share * self.least_layers
        layers = layers - embeddings * plan.embedding_as_layer - heads * plan.head_as_layer
        mtps = heads * model.num_mtp_layers
        shared = np.minimum(embeddings, heads) * self.alone * (int(model.tied_embeddings) + mtps)
        shared = shared + (~self.alone) * max(0, mtps - 1 + model.tied_embeddings * (mtps > 0)) * heads
        held, smallest = self._least_kinds(layers, share, bool(embeddings))
        return ModelPart(held, embeddings, heads, mtps, shared), EMBEDDING if embeddings else smallest

    def _least_kinds(self, layers: Number, share: float, first: bool) -> tuple[tuple[Number, ...], int]:
        """So many layers of the kinds with the fewest parameters that a rank can have, and the least of these.

        One without the first stage of any copy has none of its layers.
        """
        model, plan = self.space.scenario.model, self.space.scenario.plan
        if len(model.layer_kinds) == 1:
            return (layers,), FIRST_KIND
        columns, at_first = self.columns, np.zeros(len(self.space.layouts), dtype=np.int64)
        if not first:
            at_first += model.num_layers
            of_stage = self.dealt // (columns.pp * columns.num_chunks) - plan.embedding_as_layer
            np.minimum.at(at_first, columns.layout, np.clip(of_stage, 0, model.num_layers))
        before = layers_before(model)
        able = np.ceil(share) * (before[:, -1:] - before[:, at_first])
        sizes = [layer_params(model, kind) for kind in model.layer_kinds]
        order, rest, held = np.argsort(sizes), np.asarray(layers), [layers] * len(sizes)
        for kind in order.tolist():
            held[kind] = np.minimum(able[kind], rest)
            rest = rest - held[kind]
        there = [kind for kind in order.tolist() if (able[kind] > 0).any()]
        return tuple(held), FIRST_KIND + there[0]

    def scenario_of(self, row: int, category: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        columns, chosen = self.columns, self.space.categories[category]
        names = (*LAYOUT, "num_chunks", "microbatch_size")
        plan = base_plan(self.space.scenario).replace(
            **{name: int(getattr(columns, name)[row]) for name in names},
            schedule=self.schedule.name,
            uneven_layers=self.dealt % int(columns.pp[row] * columns.num_chunks[row]) != 0,
            sequence_slices=self.slices,
            **recompute_fields(chosen.recompute, self.space.scenario.plan),
            sequence_parallel=chosen.sequence_parallel,
            **sharding_fields(chosen.zero_stage, self.space.scenario.plan),
        )
        given = self.space.scenario
        return given.replace(plan=plan, stack=stack_of(given.stack, chosen.overlaps))


def variants_of(space: Space, name: str) -> list[Variant]:
    """A schedule in all the ways that are searched and have plans.

    Raises
    ------
    ScheduleError
        There is no such schedule, or it is a grid with updates in it, whose steps have no end.
    """
    chosen = get_schedule(name)
    if is_file(name) and any((row[:, 1] == U).any() for row in chosen.rows(1, 1, 1)):
        raise ScheduleError(
            f"schedule {name!r} has weight updates in its grid; a search takes grids of one step: leave them out, or "
            "estimate plans of it one by one"
        )
    length = space.scenario.training.sequence_length
    slices = [each for each in SLICES if length % each == 0] if "slices" in chosen.options else [1]
    variants = [Variant(space, chosen, each) for each in slices]
    return [each for each in variants if len(each.plans[0])]
