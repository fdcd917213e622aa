"""The order of a schedule of a given size: generated, validated, and folded where it repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.errors import ScheduleError
from sim.schedules.actions import PAIRED, F, Row
from sim.schedules.order import Fold, Order, make_order
from sim.schedules.registry import OPTIONS, Schedule, get_schedule, microbatch_remedy, schedules

MOST_ACTIONS = 4_000_000
"""A step of more that does not repeat is refused rather than run for minutes in gigabytes."""
PLACING = 4
"""Times as long as playing an action takes, to find where it costs least by what things take."""
STREAM = 3
"""Batches of an asynchronous order that are shown or played where nothing else is said."""
STEADY = 4
"""Rounds of micro-batches that are played of workers that take turns before the steady state is looked for."""


def build_order(
    name: str, num_ranks: int, num_chunks: int, num_microbatches: int, *, fold: bool = False, **options: Any
) -> Order:
    """Generate and validate the order of all ranks.

    Parameters
    ----------
    name : str
        Of a registered schedule, or the path of a text file with a grid.
    fold : bool
        Leave repetitions out where the schedule has them; the engines know how to time what is left.
    **options
        Of OPTIONS, those that the schedule takes; None is as if not given.

    Raises
    ------
    ScheduleError
        An unknown name, sizes the schedule cannot take, or an order that breaks a rule.
    """
    given = {option: options[option] for option in sorted(options) if options[option] is not None}
    return _build(get_schedule(name), num_ranks, num_chunks, num_microbatches, fold=fold, **given)


@lru_cache(maxsize=128)
def _build(
    chosen: Schedule,
    num_ranks: int,
    num_chunks: int,
    num_microbatches: int,
    *,
    fold: bool,
    keep: int | None = None,
    **options: Any,
) -> Order:
    """`build_order`, remembered; with `keep` micro-batches, about, in the arrays of a folded order."""
    name = chosen.name
    given = dict(options)
    again = tuple(given.items())
    per_flush = given.pop("per_flush", None)
    _check(chosen, num_ranks, num_chunks, per_flush or num_microbatches, given)
    if per_flush == num_microbatches:
        per_flush = None
    if per_flush is not None:
        chosen = _with_flushes(chosen, num_microbatches, per_flush)

    unit, num_stages = given.get("slices", 1), given.get("stages", num_ranks * num_chunks)
    if chosen.asynchronous:
        return _stream(chosen, num_ranks, num_microbatches, fold, keep, given)

    def rows(microbatches: int) -> list[Row]:
        return chosen.rows(num_ranks, num_chunks, microbatches, **given)

    def make(microbatches: int) -> Order:
        number, repeats = 2 * num_stages * microbatches * unit, microbatches < num_microbatches
        _check_length((num_ranks, num_chunks, num_microbatches), number, repeats, bool(given.get("times")))
        flush = None if per_flush is None else per_flush * unit
        stages, copies = num_stages * chosen.copies, chosen.copies
        return make_order(name, rows(microbatches), stages, microbatches * unit, copies=copies, per_flush=flush)

    sizes = {option: value for option, value in given.items() if option != "candidate"}
    period = 0 if chosen.period is None else chosen.period(num_ranks, num_chunks, **sizes)
    if not (fold and period):
        return make(num_microbatches)
    rebuild = partial(_rebuilt, name, num_ranks, num_chunks, num_microbatches, again)
    return folded(make, rows, period, num_microbatches, keep or played_first(period, num_ranks), rebuild, unit)


def played_first(period: int, num_ranks: int) -> int:
    """How many micro-batches, about, are played before the steady state is looked for: of 844 layouts of published
    runs, all but 21 have reached it by then.
    """
    return 2 * max(period, num_ranks) + 3 * period


def folded(
    make: Callable[[int], Order],
    rows: Callable[[int], list[Row]],
    period: int,
    num_microbatches: int,
    keep: int,
    rebuild: Callable[[int], Order],
    unit: int = 1,
    endless: bool = False,
) -> Order:
    """The order with about `keep` micro-batches in its arrays or more, and the rest folded.

    make, rows : the order, and the rows, of so many micro-batches.
    period : micro-batches after which it repeats; without end, those of a batch.
    """
    while True:
        keep += (num_microbatches - keep) % period
        if keep >= num_microbatches and not endless:
            return make(num_microbatches)
        order = make(keep)
        found = find_fold(order, rows(keep - period), period * unit)
        if found is not None:  # else not yet, or not with these times
            times = 0 if endless else (num_microbatches - keep) // period
            fold = Fold(period, times, *found, keep, rebuild, endless)
            return replace(order, fold=fold, num_microbatches=num_microbatches * unit)
        keep *= 2


def find_fold(order: Order, fewer: Sequence[Row], period: int) -> tuple[Array, Array, int, int] | None:
    """(cuts, lengths, blocks seen, depth) of a fold of this order, as in `Fold`; None where nothing repeats yet.

    fewer : rows of the same schedule with `period` micro-batches less.
    """
    cuts, lengths = np.zeros(order.num_ranks, dtype=np.int64), np.zeros(order.num_ranks, dtype=np.int64)
    seen, ends = [], False
    for rank, short in enumerate(fewer):
        long = order.row(rank)
        block = len(long) - len(short)
        differs = (short != long[: len(short)]).any(axis=1)
        at = int(differs.argmax()) if differs.any() else len(short)
        later = long[at + block :] - short[at:]
        if block <= 0 or (later[:, :2] != 0).any() or (later[:, 2] != period).any():
            return None
        cuts[rank], lengths[rank] = at + block, block
        seen.append(_repeats(long[: at + block], block, period))
        ends = ends or _ends_before(at + block, long)
    return _aligned(order, order.first[:-1] + cuts - lengths * ends, lengths, min(seen) - ends)


def _aligned(order: Order, cuts: Array, lengths: Array, seen: int) -> tuple[Array, Array, int, int] | None:
    """The fold with cuts moved back by whole blocks until no block needs what comes after it."""
    rank, needs = order.rank, [order.needs] if order.pair_needs is None else [order.needs, order.pair_needs]
    places = [np.flatnonzero(need >= 0) for need in needs]
    place = np.concatenate(places)
    needed = np.concatenate([need[here] for need, here in zip(needs, places, strict=True)])
    home, there = rank[place], rank[needed]
    for left in range(seen, 0, -1):
        ahead, behind = place - cuts[home], cuts[there] - 1 - needed  # not negative: after the cut; before it
        in_block = (ahead < 0) & (ahead >= -lengths[home])
        early = in_block & (behind < 0)
        if not early.any():
            back = np.maximum(behind, 0) // lengths[there]
            after = (ahead >= 0) & (behind >= 0)
            return cuts, lengths, left, int(max(back[in_block].max(initial=0), back[after].max(initial=-1) + 1, 1))
        cuts[np.unique(home[early])] -= lengths[np.unique(home[early])]
    return None


def _ends_before(cut: int, row: Row) -> bool:
    """Whether something of a row is over before the cut: all of it, or the gradients of one of its stages.

    The step ends with what follows the cut, reductions of gradients beside it.
    """
    code, gradients = row[:, 0] * 2 * PAIRED + row[:, 1], row[:, 1] != F
    whole = np.bincount(code[gradients])
    left = np.bincount(code[cut:][gradients[cut:]], minlength=len(whole))
    return cut == len(row) or bool(((whole > 0) & (left == 0)).any())


def _repeats(row: Row, block: int, period: int) -> int:
    """How many blocks at the end of a row are each the one before, `period` micro-batches on."""
    step = row[block:] - row[:-block]
    same = (step[:, 0] == 0) & (step[:, 1] == 0) & (step[:, 2] == period)
    tail = len(same) if same.all() else int(same[::-1].argmin())
    return tail // block + 1


def _with_flushes(chosen: Schedule, num_microbatches: int, per_flush: int) -> Schedule:
    """The schedule again and again, `per_flush` micro-batches each time, until a step's are done."""
    if chosen.asynchronous or num_microbatches % per_flush:
        why = "never drains" if chosen.asynchronous else f"has {num_microbatches} micro-batches, no multiple of it"
        raise ScheduleError(f"plan.microbatches_per_flush = {per_flush}: schedule {chosen.name!r} {why}; leave it out")

    def rows(num_ranks: int, num_chunks: int, microbatches: int, **given: Any) -> list[Row]:
        units = per_flush * given.get("slices", 1)
        once = chosen.rows(num_ranks, num_chunks, per_flush, **given)
        return [
            np.concatenate([row + np.array([0, 0, units * i]) for i in range(microbatches // per_flush)])
            for row in once
        ]

    return replace(chosen, rows=rows, period=lambda *_, **__: per_flush)


def _check_length(size: tuple[int, int, int], num_actions: int, repeats: bool, placed: bool) -> None:
    """Raise where an order of this size, or what of it repeats, has more actions than are played one by one."""
    most, done = (MOST_ACTIONS // PLACING, "placed by what they take") if placed else (MOST_ACTIONS, "played")
    if num_actions <= most:
        return
    are = "do not repeat before" if repeats else "make"
    raise ScheduleError(
        f"{size[0]} ranks · {size[1]} chunks · {size[2]:,} micro-batches {are} {num_actions:,} actions, more than the "
        f"{most:,} that are {done} one by one; use a larger plan.microbatch_size or plan.dp, or a smaller "
        "training.global_batch_size"
    )


def _rebuilt(
    name: str, num_ranks: int, num_chunks: int, num_microbatches: int, options: tuple[tuple[str, Any], ...], keep: int
) -> Order:
    """A folded order with about `keep` micro-batches in its arrays: what an order takes along to other processes."""
    return _build.__wrapped__(
        get_schedule(name), num_ranks, num_chunks, num_microbatches, fold=True, keep=keep, **dict(options)
    )


def _stream(
    chosen: Schedule, num_ranks: int, num_microbatches: int, fold: bool, keep: int | None, given: dict[str, Any]
) -> Order:
    """Some batches of an asynchronous order; folded, a step is the last of them."""
    again = partial(_rebuilt, chosen.name, num_ranks, 1, num_microbatches, tuple(given.items()))
    batches = given.pop("batches", STREAM)

    def rows(microbatches: int) -> list[Row]:
        return chosen.rows(num_ranks, 1, num_microbatches, **given, batches=microbatches // num_microbatches)

    def make(microbatches: int) -> Order:
        return make_order(chosen.name, rows(microbatches), num_ranks, microbatches)

    if not fold:
        return make(num_microbatches * batches)
    keep = keep or num_microbatches * (batches + 1)
    return folded(make, rows, num_microbatches, num_microbatches, keep, again, endless=True)


def _check(chosen: Schedule, num_ranks: int, num_chunks: int, num_microbatches: int, given: dict[str, Any]) -> None:
    """Raise where the schedule does not take these sizes or options."""
    name = chosen.name
    if min(num_ranks, num_chunks, num_microbatches) < 1:
        raise ScheduleError(
            "a schedule needs at least one rank, chunk and micro-batch, "
            f"not {num_ranks}, {num_chunks}, {num_microbatches}"
        )
    if num_chunks > 1 and chosen.chunks == "one":
        able = ", ".join(item.name for item in schedules() if item.chunks in ("many", num_chunks))
        copies = f" of each of its {chosen.copies} copies of the model" if chosen.copies > 1 else ""
        raise ScheduleError(
            f"schedule {name!r} holds one chunk a rank{copies}, not num_chunks = {num_chunks}; "
            f"set plan.num_chunks to 1, or plan.schedule to one that holds {num_chunks} ({able})"
        )
    if isinstance(chosen.chunks, int) and num_chunks != chosen.chunks:
        raise ScheduleError(
            f"schedule {name!r} holds {chosen.chunks} chunks a rank, not {num_chunks}; "
            f"set plan.num_chunks to {chosen.chunks}{' and plan.pp to 2 or more' if num_ranks == 1 else ''}"
        )
    for option in given:
        if option not in chosen.options:
            able = ", ".join(item.name for item in schedules() if option in item.options)
            field = OPTIONS.get(option, option)
            raise ScheduleError(f"schedule {name!r} takes no {field}; {able or 'none'} would; leave {field} out")
    stages = given.get("stages", num_ranks * num_chunks)
    least, most = max(num_ranks, num_ranks * (num_chunks - 1) + 1), num_ranks * num_chunks
    if not least <= stages <= most:
        raise ScheduleError(
            f"{stages} stages, dealt in turn to {num_ranks} ranks, do not make {num_chunks} chunks on the first and "
            f"one or more on all. Let the stages be {least} to {most}, or change the ranks or the chunks"
        )
    problem = chosen.requirement(num_ranks, num_chunks, num_microbatches)
    if problem:
        raise ScheduleError(f"schedule {name!r}: {problem}")
    if num_microbatches % chosen.copies:
        wanted = -(-num_microbatches // chosen.copies) * chosen.copies
        raise ScheduleError(
            f"schedule {name!r} deals micro-batches to {chosen.copies} pipelines, so {num_microbatches} must be a "
            f"multiple of {chosen.copies}; nearest: {wanted}; {microbatch_remedy(wanted)}"
        )
