"""New weights on their way from the training pool to the rollouts, and GPUs that change from one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sim.costs.collectives import Fabric, all_gather
from sim.costs.host import Host
from sim.costs.inference import ACTIVATION_WIDTH, WIDTHS
from sim.errors import SpecError, nearest, require_positive
from sim.estimate import Estimate
from sim.network.placement import Group
from sim.rl.rollout import RolloutPool
from sim.specs import Scenario
from sim.work.adapters import adapters_of
from sim.work.inference import inference_params
from sim.work.sums import adapter_params, model_layers

Method = Literal["broadcast", "sharded", "storage"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """How weights are handed over.

    method : broadcast, from one training rank to all rollout GPUs at once (verl, NeMo-RL, OpenRLHF over NCCL); sharded,
        every training GPU sends what it has to those that need it (slime, RDMA); storage, written and read by each
        replica as a checkpoint (prime-rl, AReaL).
    overlap : the training pool goes on meanwhile, from a copy.
    storage_bytes_per_s : of the storage, all together; needed by that method. [bytes/s]
    """

    method: Method = "broadcast"
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
        return float(start + nbytes / card)
    if exchange.method == "sharded":
        crowded = fabric.network.in_training() * fabric.network_bytes_per_s
        sent = pool.replicas * nbytes / scenario.plan.num_gpus
        return float(start + max(sent, nbytes / pool.engine.tp) / crowded)
    assert exchange.storage_bytes_per_s is not None
    return nbytes * (1 + pool.replicas) / exchange.storage_bytes_per_s


def reshard_time(scenario: Scenario, pool: RolloutPool) -> float:
    """Weights from training shards to rollout shards on the same GPUs: each gathers its part of the model.  [s]"""
    plan, cluster = scenario.plan, scenario.cluster
    holders = plan.tp * plan.pp * (plan.num_replicas if plan.zero_stage == 3 else max(1, plan.ep // plan.tp))
    group = Group(holders, min(holders, cluster.nvlink_domain_gpus), True)
    return float(all_gather(synced_bytes(scenario, pool) / pool.engine.tp, group, Fabric.of(cluster, scenario.profile)))


def switch_time(scenario: Scenario, answer: Estimate) -> float:
    """Copies of the training job's weights and optimizer to the host before rollouts, and back behind them.  [s]

    Gradients and activations are freed, not copied.
    """
    host = Host.of(scenario.cluster.node, scenario.profile)
    nbytes = float(answer.largest.weights + answer.largest.optimizer)
    return float(host.out_s(nbytes) + host.back_s(nbytes))
