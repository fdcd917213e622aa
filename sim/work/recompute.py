"""The part of a layer that runs again in the backward: what plans say of it, and which kernels it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from sim.arrays import Number
from sim.specs import ModelSpec, ParallelPlan, Scenario, StackSpec
from sim.specs.plan import DEFAULT_RECOMPUTE_MODULES, RECOMPUTE_MODULES, what_is_missing
from sim.work.operations import Cause, Kernel, Phase


class Recompute(NamedTuple):
    """The part of a layer that runs again in the backward.

    mode : none, selective, per_op or full.
    names : of what selective recomputation was asked for, as in `plan.recompute_modules`, in that table's order.
    group : layers that run again together, whole.
    kept : of their inputs, the share that is kept.
    share : of layers, the share that full recomputation runs again.
    """

    mode: str = "none"
    names: tuple[str, ...] = ()
    group: int = 1
    kept: float = 1.0
    share: float = 1.0

    @property
    def modules(self) -> frozenset[str]:
        """Modules of operations that selective recomputation runs again."""
        return frozenset(part for name in self.names for part in RECOMPUTE_MODULES[name])

    @property
    def mixed(self) -> tuple[tuple[Recompute, float], ...]:
        """Ways to recompute one layer that this mixes, each with its share of the layers."""
        return ((self, 1.0),) if self.share == 1.0 else ((WHOLE, self.share), (NOTHING, 1.0 - self.share))


NOTHING, WHOLE = Recompute(), Recompute("full")


def recompute_of(plan: ParallelPlan, model: ModelSpec) -> Recompute:
    """Return what a plan recomputes of a model.

    Of stages that hold a layer more than others it is the mean over all of them.
    """
    number, stages = plan.recompute_num_layers, plan.num_stages
    if plan.recompute == "selective":
        return Recompute("selective", own_modules(plan))
    if plan.recompute != "full":
        return Recompute(plan.recompute)
    if plan.recompute_method == "block":
        return Recompute("full", share=min(1.0, number * stages / model.num_layers))
    groups = -(-model.num_layers // (stages * number))
    kept = min(1.0, groups * stages / model.num_layers) if number > 1 else 1.0
    return Recompute("full", group=number, kept=kept)


def own_modules(plan: ParallelPlan) -> tuple[str, ...]:
    """Modules that selective recomputation of a plan runs again, in the order of RECOMPUTE_MODULES.

    The attention core where it names none.
    """
    names = plan.recompute_modules or DEFAULT_RECOMPUTE_MODULES
    return tuple(name for name in RECOMPUTE_MODULES if name in names)


def module_sets(model: ModelSpec, stack: StackSpec) -> tuple[tuple[str, ...], ...]:
    """Every set of modules that selective recomputation may run again, but for those that are in another of the set.

    Of modules that the model has and whose recomputation changes something: norms run inside the multiply that follows
    them, but for those of experts and of latent attention.
    """
    there = [name for name in RECOMPUTE_MODULES if not what_is_missing(model, name)]
    if not any(kind.attends for kind in model.layer_kinds):
        there = [name for name in there if name not in ("core_attn", "mla_up_proj")]
    if not model.key_value_rank and not model.num_experts:
        there.remove("layernorm")
    if "moe_router" in stack.cuda_graph_scope and "moe" in there:  # its graph is not run again
        there.remove("moe")
    sets = [each for many in range(1, len(there) + 1) for each in combinations(there, many)]
    return tuple(each for each in sets if not ("moe" in each and {"moe_act", "shared_experts"} & {*each}))


CHECKPOINT_LAUNCHES = 14.0
"""Launches in whose time the host saves and sets the states of random numbers around a module, or a layer, that runs
again, and sets up its autograd. Set on Megatron-Bridge's card on recomputing modules of Moonlight one at a time, where
the host sets the pace: 0.35 ms a layer for an activation (moe_act), 0.65 for attention's core, 0.88 for latent
attention's projections, most of which their kernels are not."""


def again(forward: Phase, recompute: Recompute, stack: StackSpec) -> Phase:
    """Return what of a layer's forward runs again in the backward; of layers treated differently, the mean."""
    setups = stack.counted_launches * CHECKPOINT_LAUNCHES
    if recompute.mode == "selective":
        # Modules run again one by one, and every norm by itself; CUDA graphs launch their own.
        launched, count = {item.module for item in forward.operations if not item.graphed}, 0
        for name in recompute.names:
            here = [part in launched for part in RECOMPUTE_MODULES[name]]
            count += sum(here) if name == "layernorm" else any(here)
        return replace(forward.of_modules(recompute.modules), setups=setups * count)
    if recompute.mode == "full":
        whole = replace(_until_saved(forward, stack), setups=setups / recompute.group)
        return whole.scaled(recompute.share) if recompute.share < 1.0 else whole
    return {"none": Phase(), "per_op": _per_op(forward)}[recompute.mode]


LAST_SUMS = ("residual", "add shared expert")
"""Operations at the end of a layer whose backward reads nothing of them."""


def _until_saved(forward: Phase, stack: StackSpec) -> Phase:
    """Return what of a layer runs before the last tensor is there that its backward reads.

    The way home, and the sums, follow it (pytorch/pytorch:torch/utils/checkpoint.py, _StopRecomputationError).
    """
    if not stack.checkpoints_stop_early:
        return forward
    kernels, sent = list(forward.operations), list(forward.collectives)
    while kernels and kernels[-1].name in LAST_SUMS:
        kernels.pop()
    if home := [place for place, each in enumerate(sent) if each.group == "ep"][1:]:
        del sent[home[-1]]
    return replace(forward, operations=tuple(kernels), collectives=tuple(sent))


PER_OP_SENT = ("reduce_scatter", "all_to_all")
"""Collectives whose results torchtitan's selective activation checkpointing saves, beside attention's and every other
multiply's; the rest runs again (pytorch/torchtitan:torchtitan/distributed/activation_checkpoint.py, _apply_op_sac, and
_op_sac_save_list of torchtitan/models/llama3/infra/parallelize.py)."""


def per_op_multiplies(kernels: Iterable[Kernel]) -> list[tuple[Kernel, tuple[int, ...]]]:
    """A layer's multiplies, each with the places of those of its matrices whose results torchtitan saves.

    Matrices take turns, in the order of the layer: of a Llama layer those of queries and values, and the gate, are
    saved; those of keys, of attention's output and of the MLP's other input run again. Routers (per_op_sac_force_
    recompute_mm_shapes_by_fqns) and grouped multiplies, which its list does not name, always do.
    """
    found, before = [], 0
    for item in kernels:
        if item.kind == "matmul" and item.cause is Cause.MATMUL:
            count = 0 if item.module in ("moe_router", "experts") else len(item.parts) or 1
            found.append((item, tuple(place for place in range(count) if (before + place) % 2 == 0)))
            before += count
    return found


def run_again_share(kernel: Kernel, saved: tuple[int, ...]) -> Number:
    """Return the share of a multiply's columns that runs again where the matrices at some places are saved."""
    parts = kernel.parts or (kernel.n,)
    return sum(part for place, part in enumerate(parts) if place not in saved) / sum(parts)


def _per_op(forward: Phase) -> Phase:
    """What torchtitan's selective activation checkpointing runs again, every cheap kernel among it."""
    shares = ((item, run_again_share(item, saved)) for item, saved in per_op_multiplies(forward.operations))
    multiplies = [
        item._replace(n=item.n * share, flop=item.flop * share, nbytes=item.nbytes * share, parts=())
        for item, share in shares
        if np.any(share)
    ]
    cheap = [item for item in forward.operations if item.kind == "memory" and item.cause is Cause.MEMORY_BOUND]
    sent = [item for item in forward.collectives if item.kind not in PER_OP_SENT and item.module != "core_attn"]
    return Phase((*multiplies, *cheap), tuple(sent))


def assumed(scenario: Scenario) -> Iterator[str]:
    """What a plan's recomputation does not save, or is taken for."""
    plan, model = scenario.plan, scenario.model
    if plan.recompute_modules == DEFAULT_RECOMPUTE_MODULES and scenario.stack.attention == "flash":
        yield "recompute: selective saves next to nothing here: flash attention keeps no scores; use none or full"
    if plan.recompute_method == "block" and model.num_layers % plan.num_stages:
        yield "recompute_method block recomputes the same share of every stage's layers; some stages hold one more"
    if plan.recompute_modules == ("layernorm",) and not (model.key_value_rank or model.num_experts):
        yield "recompute_modules: layernorm changes nothing here: every norm runs inside the multiply that follows it"
