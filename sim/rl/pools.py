"""Pools of GPUs that write: what runs on them, replicas of how many, and those that have room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sim.costs.collectives import Fabric
from sim.errors import InfeasiblePlan, SpecError, nearest, require_positive
from sim.network.placement import Group
from sim.rl.inference import WIDTHS, Engine
from sim.rl.rollout import MEMORY_SHARE, RUNNING, SHARED_MEMORY_SHARE, RolloutPool
from sim.rl.samples import Samples
from sim.specs import Scenario

HOST_STEP_S = 4e-3
"""What GPUs wait for the host in a step of decoding: scheduling, drawing, log-probabilities, tokens through Ray. Set on
ten batches of vLLM's with two models that NeMo RL timed by phase (`flopcast_validation.rl_runs`); an engine alone that
serves one sequence waits for next to nothing (`tests/costs/test_decode.py`). [s]"""
WORKSPACE_BYTES = 4e9
"""Memory that an engine needs on a GPU beside weights and cache: activations, CUDA graphs, NCCL. Assumed. [bytes]"""


@dataclass(frozen=True, slots=True)
class Inference:
    """How rollouts are run.

    tp : GPUs of a rollout replica; default: the fastest of 1, 2, 4, ... that has room.
    weights : format of the rollouts' weights: bf16 or fp8.
    cache : format of the rollouts' keys and values: bf16 or fp8.
    memory_share : share of a GPU's memory that rollouts use; default: 0.9, or 0.6 when training shares the GPU.
    most_running : most sequences that a replica decodes at once.
    step_overhead_s : time that the GPUs wait for the host in every decoding step. [s]
    """

    tp: int | None = None
    weights: str = "bf16"
    cache: str = "bf16"
    memory_share: float | None = None
    most_running: int = RUNNING
    step_overhead_s: float = HOST_STEP_S

    def __post_init__(self) -> None:
        for name, value in (("weights", self.weights), ("cache", self.cache)):
            if value not in WIDTHS:
                raise SpecError(f"rollouts have no {name} in {value!r}{nearest(value, WIDTHS)}")
        if self.tp is not None:
            require_positive(rollout_tp=self.tp)
        require_positive(most_running=self.most_running)
        if self.memory_share is not None and not 0 < self.memory_share <= 1:
            raise SpecError(f"memory_share = {self.memory_share:g} must be above 0 and at most 1")


def engine_of(scenario: Scenario, inference: Inference, tp: int) -> Engine:
    """A replica of `tp` GPUs of the scenario's cluster.

    Engines leave NVLink's switches alone (sgl-project/sglang:python/sglang/srt/entrypoints/engine.py,
    _set_envs_and_config: NCCL_NVLS_ENABLE is 0 unless one asks for it).
    """
    cluster, profile = scenario.cluster, scenario.profile
    # Where matrix units know no 8 bits they multiply in 16.
    units = next((name for name in (inference.weights, "bf16", "fp16") if name in cluster.gpu.peak_flop_per_s), "fp32")
    return Engine(
        model=scenario.model,
        tp=tp,
        weight_format=inference.weights,
        cache_format=inference.cache,
        peak_flop_per_s=cluster.gpu.peak(units),
        bandwidth_bytes_per_s=cluster.gpu.memory_bandwidth_bytes_per_s,
        memory_share=profile.memory.efficiency,
        gemm=profile.gemm,
        fabric=Fabric.of(cluster, profile, nvls=False),
        group=Group(tp, min(tp, cluster.nvlink_domain_gpus), tp > cluster.nvlink_domain_gpus),
        step_overhead_s=inference.step_overhead_s,
    )


def pool_of(scenario: Scenario, inference: Inference, num_gpus: int, tp: int, colocated: bool) -> RolloutPool:
    """A pool of `num_gpus` as replicas of `tp`."""
    engine, gpu = engine_of(scenario, inference, tp), scenario.cluster.gpu
    share = inference.memory_share or (SHARED_MEMORY_SHARE if colocated else MEMORY_SHARE)
    free = share * gpu.memory_bytes - engine.weight_bytes - WORKSPACE_BYTES
    return RolloutPool(engine, gpu.name, num_gpus // tp, free, inference.most_running)


def _degrees(scenario: Scenario, inference: Inference, num_gpus: int) -> Iterator[int]:
    """Rollout tensor-parallel degrees that may be tried, those inside an NVLink domain first."""
    if inference.tp is not None and num_gpus % inference.tp:
        raise SpecError(
            f"rollout tp {inference.tp} does not divide the {num_gpus} rollout GPUs; take "
            f"{max(1, num_gpus // inference.tp) * inference.tp} GPUs, or another tp"
        )
    if inference.tp is not None:
        yield inference.tp
        return
    powers = (1 << power for power in range(num_gpus.bit_length()))
    yield from (tp for tp in powers if num_gpus % tp == 0 and scenario.model.num_heads % tp == 0)


def pools_with_room(
    scenario: Scenario, samples: Samples, inference: Inference, num_gpus: int, colocated: bool
) -> list[RolloutPool]:
    """Pools of every degree that has room; over more than a domain only where none inside one has."""
    found: list[RolloutPool] = []
    why = InfeasiblePlan("no rollout tp was tried")
    for tp in _degrees(scenario, inference, num_gpus):
        if found and tp > scenario.cluster.nvlink_domain_gpus:
            break
        pool = pool_of(scenario, inference, num_gpus, tp, colocated)
        try:
            pool.require_cache(samples)
            found.append(pool)
        except InfeasiblePlan as error:
            why = error
    if not found:
        raise why
    return found
