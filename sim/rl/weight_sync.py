"""New weights on their way from the training pool to the rollouts, and GPUs that change from one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sim.costs.collectives import Fabric
from sim.costs.host import Host
from sim.costs.inference import ACTIVATION_WIDTH, WIDTHS
from sim.errors import SpecError, nearest, require_positive
from sim.estimate import Estimate
from sim.rl.rollout import RolloutPool
from sim.specs import Scenario
from sim.work.adapters import adapters_of
from sim.work.inference import inference_params
from sim.work.sums import adapter_params, model_layers

REFIT_S = 5.0
"""What a framework takes for new weights besides sending them: they are named as the engine has them, caches are
emptied and captured anew. Set on fifteen steps that NeMo RL timed by phase. [s]"""
REFIT_BYTES_PER_S = 50e9
"""Weights of a whole model that go from training to the engine on the same GPUs, tensor by tensor; from the same runs.
[bytes/s]"""

Method = Literal["broadcast", "sharded", "storage"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """How weights are handed over.

    method : how weights reach the rollouts: sharded, broadcast or storage. Sharded: every training GPU sends what it
        has to those that need it (slime, RDMA; NeMo RL takes as long). Broadcast: from one training rank to all rollout
        GPUs at once (verl, OpenRLHF over NCCL). Storage: written and read by each replica as a checkpoint
        (prime-rl, AReaL).
    overlap : training goes on while weights are sent, from a copy.
    storage_bytes_per_s : bandwidth of the storage, which the method storage needs. [bytes/s]
    """

    method: Method = "sharded"
    overlap: bool = False
    storage_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise SpecError(f"weights go by no {self.method!r}{nearest(self.method, get_args(Method))}")
        if self.method == "storage" and self.storage_bytes_per_s is None:
            raise SpecError("weights that go through storage need its bandwidth; give one, such as '20 GB/s'")
        if self.storage_bytes_per_s is not None:
            require_positive(storage_bytes_per_s=self.storage_bytes_per_s)


def synced_bytes(scenario: Scenario, pool: RolloutPool) -> float:
    """Weights of the model in the rollouts' format; of a frozen model its adapters in 16 bits. [bytes]"""
    adapters = adapters_of(scenario.training)
    if adapters is None:
        return WIDTHS[pool.engine.weight_format] * inference_params(pool.engine.model)
    layers = model_layers(scenario.model, adapters=adapters)
    return ACTIVATION_WIDTH * sum(count * float(adapter_params(layer)[0]) for count, _, layer in layers)


def sync_time(scenario: Scenario, pool: RolloutPool, exchange: Exchange) -> float:
    """Time from the update to the last replica with new weights.  [s]

    A broadcast passes whole weights through the one card of its root, in pieces that all others hand on, whatever their
    number; what the root gathers of other training ranks comes in by the same card at the same time. Shards leave by
    all training GPUs' cards and come in by each rollout GPU's own, its part of the model only.
    """
    nbytes, fabric = synced_bytes(scenario, pool), Fabric.of(scenario.cluster, scenario.profile)
    card = fabric.network.efficiency * fabric.network_bytes_per_s
    start = fabric.network.base_latency_s + fabric.network.hop_latency_s
    if exchange.method == "broadcast":
        return REFIT_S + float(start + nbytes / card)
    if exchange.method == "sharded":
        crowded = fabric.network.in_training() * fabric.network_bytes_per_s
        sent = pool.replicas * nbytes / scenario.plan.num_gpus
        return REFIT_S + float(start + max(sent, nbytes / pool.engine.tp) / crowded)
    assert exchange.storage_bytes_per_s is not None
    return REFIT_S + nbytes * (1 + pool.replicas) / exchange.storage_bytes_per_s


def reshard_time(scenario: Scenario, pool: RolloutPool) -> float:
    """Weights from training shards to rollout shards on the same GPUs.  [s]"""
    return REFIT_S + synced_bytes(scenario, pool) / REFIT_BYTES_PER_S


def switch_time(scenario: Scenario, answer: Estimate) -> float:
    """Copies of the training job's weights and optimizer to the host before rollouts, and back behind them.  [s]

    Gradients and activations are freed, not copied.
    """
    host = Host.of(scenario.cluster.node, scenario.profile)
    nbytes = float(answer.largest.weights + answer.largest.optimizer)
    return float(host.out_s(nbytes) + host.back_s(nbytes))
