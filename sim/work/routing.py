"""How tokens fall on experts: what the busiest GPU of an expert-parallel group gets.

All GPUs of the group wait for the busiest one at every exchange of tokens, so that its time is the layer's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from sim.arrays import Floats, Number
from sim.specs import ModelSpec, Scenario, TrainingSpec

SHUFFLES = 64
"""Layers whose popular experts lie anywhere that a mean is taken over."""


def busiest_share(model: ModelSpec, training: TrainingSpec | None, ep: Number, layers: int = 1) -> Number:
    """Tokens of the busiest of ep GPUs over an even share.

    training : whose fields say which experts tokens go to; None: all experts get the same.
    layers : layers whose tokens are added up, popular experts being others in each: one, for the time of a layer; all,
        for what a GPU keeps of them.
    """
    if training is None or training.routes_evenly:
        return 1.0
    if isinstance(ep, np.ndarray):
        known, places = np.unique(ep, return_inverse=True)
        each = np.array([_busiest(training, model.num_experts, int(size), layers) for size in known])
        answer: Floats = each[places].reshape(ep.shape)
        return answer
    return _busiest(training, model.num_experts, int(ep), layers)


def different(places: Number, copies: int, limit: tuple[int, int] = (1, 1)) -> Number:
    """Mean number of GPUs or domains that get at least one of a token's copies.

    limit : (groups of experts that its copies are of, all groups), dealt over the places in their order.
    """
    some, groups = limit
    if some >= groups:
        return places * _hit(places, copies)
    every = np.asarray(places, dtype=float)
    within = np.maximum(every * some / groups, 1.0)  # where a group spans a place or several
    answer = within * _hit(within, copies)
    for few in np.unique(every[every < groups]):  # where a place has several groups, one of them more at some places
        each, more = divmod(groups, int(few))
        held = sum(
            count * _reached(of, copies, some, groups) for of, count in ((each, int(few) - more), (each + 1, more))
        )
        answer = np.where(every == few, held, answer)
    return answer


def _hit(places: Number, copies: int) -> Number:
    """Chance that one of so many places gets a copy at least, where each copy goes to any."""
    chance: Number = 1.0 - (1.0 - 1.0 / places) ** copies
    return chance


@lru_cache(maxsize=4096)
def _reached(held: int, copies: int, some: int, groups: int) -> float:
    """Chance that a place which holds so many of the groups gets a copy of a token at least.

    Of `some` groups drawn from all the place has a hypergeometric number, and each copy goes to any of those drawn.
    """
    drawn = range(max(0, some - groups + held), min(some, held) + 1)
    ways = {count: math.comb(held, count) * math.comb(groups - held, some - count) for count in drawn}
    missed = sum(number * (1.0 - count / some) ** copies for count, number in ways.items())
    return 1.0 - missed / math.comb(groups, some)


def dropped_share(model: ModelSpec, training: TrainingSpec) -> float:
    """Share of the tokens' copies that find their expert full."""
    return max(0.0, 1.0 - float(_taken(training, model.num_experts).sum()))


def _taken(training: TrainingSpec, num_experts: int) -> Floats:
    """Share of every expert in all copies, most popular first unless their order is known, of those that it takes."""
    load, skew, capacity = training.expert_load, training.expert_skew, training.expert_capacity_factor
    popular = np.array(load) if load else np.arange(1.0, num_experts + 1.0) ** -skew
    shares: Floats = popular / popular.sum()
    return shares if capacity is None else np.minimum(shares, capacity / num_experts)


@lru_cache(maxsize=4096)
def _busiest(training: TrainingSpec, num_experts: int, ep: int, layers: int) -> float:
    if training.pad_to_capacity and training.expert_capacity_factor is not None:
        return training.expert_capacity_factor
    shares = _taken(training, num_experts)
    if training.expert_load or not training.expert_skew:
        return float(shares.reshape(ep, -1).sum(axis=1).max()) * ep
    rng = np.random.default_rng(0)
    tries = max(4, SHUFFLES // layers)
    dealt = np.array([rng.permutation(shares) for _ in range(tries * layers)]).reshape(tries, layers, ep, -1)
    return ep * float(dealt.sum(axis=3).mean(axis=1).max(axis=1).mean())


def passes_alone(
    schedule: str, pp: Number, num_chunks: Number, num_microbatches: Number, group: int | None = None
) -> Number:
    """Share of forwards and backwards beside which no other micro-batch is computed, averaged over ranks.

    Tokens travel beside another micro-batch's computation where a forward and a backward are run together. Interleaved,
    a rank's first 2 (p − r − 1) + (v − 1) g + 1 forwards are alone, and as many backwards behind the last forward [1]_;
    without a pipeline one of each is; 1F1B with one chunk a rank pairs nothing. DualPipe's ranks have 5/4 p of m
    micro-batches alone, on average [2]_.

    group : micro-batches that follow each other on a chunk. Default: pp.

    .. [1] NVIDIA/Megatron-LM:megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches; combined_1f1b.py.
    .. [2] deepseek-ai/DualPipe:dualpipe/dualpipe.py, steps 1 to 8.
    """
    if schedule in ("dualpipe", "dualpipe_v"):
        alone = 1.25 * pp / num_microbatches
    elif schedule in ("1f1b", "interleaved"):
        alone = ((num_chunks - 1) * (group or pp) + pp) / (num_chunks * num_microbatches)
        alone = np.where((np.asarray(pp) > 1) & (np.asarray(num_chunks) == 1), 1.0, alone)
    else:
        alone = 1.0
    return np.minimum(alone, 1.0)


def share_alone(scenario: Scenario) -> float:
    """`passes_alone` of a scenario: all, where whole layers run again, which leave no room for another micro-batch.

    NVIDIA/Megatron-LM:megatron/core/transformer/transformer_config.py, overlap_moe_expert_parallel_comm.
    """
    plan = scenario.plan
    sizes = plan.pp, plan.num_chunks, scenario.num_microbatches // scenario.flushes, plan.microbatch_group
    return 1.0 if plan.recompute == "full" else float(passes_alone(plan.schedule, *sizes))


def assumed(scenario: Scenario) -> Iterator[str]:
    """How unevenly tokens fall on experts, and who waits for them."""
    model, training, stack, ep = scenario.model, scenario.training, scenario.stack, scenario.plan.ep
    if not model.num_experts:
        for name in ("expert_skew", "expert_capacity_factor", "pad_to_capacity"):
            if getattr(training, name):
                yield f"training.{name} changes nothing: model {model.name!r} has no experts"
        return
    tokens = "all experts get equally many tokens"
    if not training.routes_evenly:
        busiest, dropped = busiest_share(model, training, ep), dropped_share(model, training)
        tokens = f"the busiest of {ep} GPUs gets {busiest:.2f} times the mean number of tokens"
        tokens += f"; {dropped:.1%} of the tokens are dropped" if dropped else ""
    travel = f"by {stack.expert_dispatcher} is not overlapped"
    if stack.overlap_experts:
        alone = share_alone(scenario)
        travel += ", as no other micro-batch is computed meanwhile"
        if alone < 1:
            travel = f"by {stack.expert_dispatcher} overlaps another micro-batch's compute in {1 - alone:.0%} of passes"
    known = stack.cuda_graphs == "full_iteration" or training.pad_to_capacity
    learns = "; the host waits for their number before it launches the multiplies"
    yield f"{tokens}; their dispatch {travel} (stack {stack.name}){'' if known else learns}"
    if training.routes_evenly and ep > 1:
        longer = "published runs of 128 experts on 8 GPUs took 9 to 24% longer"
        yield f"with real routing, {longer} (training.expert_skew=0.75)"
