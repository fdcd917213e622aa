"""Seconds of copies between a GPU and its host, and of an update on the host's processors: what offloading takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.arrays import Number
from sim.errors import SpecError
from sim.specs import NodeSpec, Profile, Scenario
from sim.units import show

#: Share of the host link's bandwidth that copies of pinned memory reach, where a profile has not measured them.
#: About 26 of 32 GB/s of PCIe Gen4 and 55 of 64 GB/s of Gen5 are usual; assumed, and stated with the answer.
COPY_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Host:
    """A GPU's part of its host. Bandwidths per direction; None: the node does not say. [bytes/s]

    to_host_bytes_per_s, to_device_bytes_per_s : that copies reach.
    memory_bytes_per_s : peak of the memory.
    """

    node: str
    to_host_bytes_per_s: float | None
    to_device_bytes_per_s: float | None
    memory_bytes_per_s: float | None

    @classmethod
    def of(cls, node: NodeSpec, profile: Profile | None) -> Host:
        """The host of a node; what a profile measured goes first, where there is one."""
        link, measured = node.host_link_bandwidth_bytes_per_s, None if profile is None else profile.host
        reached = None if link is None else COPY_SHARE * link
        return cls(
            node.name,
            (measured and measured.to_host_bytes_per_s) or reached,
            (measured and measured.to_device_bytes_per_s) or reached,
            node.host_memory_bandwidth_bytes_per_s,
        )

    def out_s(self, nbytes: Number) -> Number:
        """Time of a copy to the host.  [s]"""
        return nbytes / self._known(self.to_host_bytes_per_s, "host_link_bandwidth: 64 GB/s")

    def back_s(self, nbytes: Number) -> Number:
        """Time of a copy to the GPU.  [s]"""
        return nbytes / self._known(self.to_device_bytes_per_s, "host_link_bandwidth: 64 GB/s")

    def update_s(self, nbytes: Number, share: float) -> Number:
        """Time of an update that reads and writes so much of the host's memory, at a share of its bandwidth.  [s]"""
        return nbytes / (share * self._known(self.memory_bytes_per_s, "host_memory_bandwidth: 76.8 GB/s"))

    def _known(self, rate: float | None, example: str) -> float:
        if rate is None:
            field = example.partition(":")[0]
            raise SpecError(
                f"node {self.node!r} does not say its {field}, which offloading to the host needs; add it to "
                f"cluster.node, such as {example}, or offload nothing"
            )
        return rate


def exposed_copy(copy_s: Number, compute_s: Number) -> Number:
    """What copies beside computation add to it: what they take longer.  [s]

    Layers are copied while others compute, so all of a pass hides all of its copies. Copy engines take no SMs; that
    copies share PCIe with the network cards, and the memory's bandwidth with kernels, is left out.
    """
    return np.maximum(copy_s - compute_s, 0.0)


def assumed(scenario: Scenario) -> Iterator[str]:
    """What offloading takes for granted: rates of copies and of the CPU's update, and that copies slow nothing."""
    plan, stack, measured = scenario.plan, scenario.stack, scenario.profile.host
    host = Host.of(scenario.cluster.node, scenario.profile)
    rates = " and ".join(sorted({show(r, "B/s") for r in (host.to_host_bytes_per_s, host.to_device_bytes_per_s) if r}))
    if not (measured.to_host_bytes_per_s and measured.to_device_bytes_per_s):
        rates += f" ({COPY_SHARE:.0%} of the host link)"
    if plan.offloaded_layers:
        yield (
            f"activations of {plan.offloaded_layers} layers are kept in host memory; copies overlap compute at {rates} "
            "and slow neither kernels nor network"
        )
    if plan.optimizer_offload:
        yield (
            f"the CPU updates {plan.optimizer_offload:.0%} of the parameters at {stack.cpu_update_share:.0%} of the "
            f"host memory's bandwidth (stack {stack.name}); gradients and weights are copied at {rates}"
        )
