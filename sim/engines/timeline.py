"""When everything happened in one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.engines.program import Program
from sim.schedules.registry import is_staggered

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Timeline:
    """One training step.

    start, end : of every action, as in `program.order`; None where an engine gives totals only. [s]
    pipeline_end : when each rank's last action, send included, has ended; counted from its own first action where
        ranks do not wait for each other between steps. [s]
    exposed_reduce : gradient reduction of each rank that no backward hid. [s]
    exposed_gather : weight gather of each rank that no forward hid. [s]
    step_time : when the slowest rank has updated. [s]
    """

    program: Program
    engine: str
    start: Array | None
    end: Array | None
    pipeline_end: Array
    exposed_reduce: Array
    exposed_gather: Array
    step_time: float


def finish_step(program: Program, engine: str, start: Array | None, end: Array | None, pipeline_end: Array) -> Timeline:
    """What follows the pipeline: gradient reduction, tied embedding, update, weight gather.

    Parameters
    ----------
    pipeline_end : array over ranks
        [s]

    Notes
    -----
    Each rank reduces as soon as it is done; the update waits for all of them, because the gradient norm and the
    overflow check need every gradient. Overlapped, the reduction hides behind the last micro-batch's backward, except
    for the last bucket and for what it takes from the kernels beside it.
    """
    costs = program.costs
    if start is not None:
        pipeline_end = pipeline_end - step_begin(program, start)
    if program.hide_grad_reduce:
        hideable = np.minimum(costs.reduce - costs.reduce_tail, reduction_window(program))
        # What the last chunk reduces can only hide behind that chunk's own last backward.
        chunks = program.order.num_stages // program.order.num_ranks
        hideable = np.minimum(hideable, costs.reduce * (1 - 1 / chunks) + last_backward(program))
        exposed = costs.reduce - costs.hidden_share * np.minimum(hideable, costs.reduce)
    else:
        exposed = costs.reduce
    exposed_gather = costs.gather
    if program.hide_gather:
        exposed_gather = costs.gather - costs.hidden_share * np.minimum(costs.gather, gather_window(program))
    done = pipeline_end + exposed
    # First and last rank reduce the tied embedding once both have their own gradients.
    tied = max(done[0], done[-1]) + costs.tied_embedding if costs.tied_embedding else 0.0
    ready = float(max(done.max(), tied))
    step_time = ready + float((costs.optimizer + exposed_gather).max()) + costs.step_setup
    return Timeline(program, engine, start, end, pipeline_end, exposed, exposed_gather, step_time)


def step_begin(program: Program, start: Array) -> Array:
    """When each rank's step begins: with all others at 0, or, where none waits for the others, its first action. [s]"""
    begin = np.zeros(program.order.num_ranks)
    if is_staggered(program.order.schedule):
        begin[:] = np.inf
        np.minimum.at(begin, program.order.rank, start)
    return begin


def reduction_window(program: Program) -> Array:
    """Backward seconds during which a rank's gradients become final, from the order alone: the window of an overlap.

    The gradients of a stage are final layer by layer during the backward of the last micro-batch on it, and stay so
    through all that its rank does afterwards.
    """
    order = program.order
    window = np.zeros(order.num_ranks)
    for rank in range(order.num_ranks):
        mine = np.flatnonzero(order.rank == rank)
        grads = mine[order.kind[mine] != 0]
        stages = order.stage[grads]
        # From the end on: the first stage whose last gradient action starts the window.
        last = {int(stage): int(place) for stage, place in zip(stages, grads, strict=True)}
        opens = min(last.values())
        window[rank] = program.compute[opens : mine[-1] + 1].sum()
    return window


def last_backward(program: Program) -> Array:
    """Compute of the last action on each rank. [s]"""
    ends = np.concatenate([np.flatnonzero(np.diff(program.order.rank)), [len(program.order) - 1]])
    return np.asarray(program.compute[ends])


def gather_window(program: Program) -> Array:
    """Forward seconds of a rank before it needs the last of its gathered weights: the window of an overlapped gather.

    Weights arrive layer by layer during the first micro-batch's forward on each stage the rank holds.
    """
    order = program.order
    window = np.zeros(order.num_ranks)
    for rank in range(order.num_ranks):
        mine = np.flatnonzero(order.rank == rank)
        _, first_visits = np.unique(order.stage[mine], return_index=True)
        window[rank] = program.compute[mine[: first_visits.max() + 1]].sum()
    return window
