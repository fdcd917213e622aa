"""The hardware that was measured: which node preset a machine is."""

from __future__ import annotations

from typing import Any

from sim.errors import SpecError
from sim.specs import ClusterSpec, load_preset, preset_names
from sim.specs.loading import resolve


def measured_cluster(machine: dict[str, Any], node: str | None = None) -> ClusterSpec:
    """The measured machine as a cluster of one node.

    Parameters
    ----------
    machine : dict
        What a calibration wrote of it (`MeasurementSet.machine`); its device's name finds the node.
    node : str, optional
        Node preset, where the data do not name the device.

    Raises
    ------
    SpecError
        No preset has a GPU of that name.
    """
    if node is None:
        device = str(machine.get("device", ""))
        if machine.get("device_kind") == "cpu":
            node = "cpu-host"
        else:
            families = {
                name: load_preset("gpus", load_preset("nodes", name)["gpu"])["name"] for name in preset_names("nodes")
            }
            fitting = [name for name, gpu in families.items() if gpu in device or gpu.replace("-SXM4", "") in device]
            if not fitting:
                raise SpecError(
                    f"no node preset has a GPU called {device!r}; name the node that was measured "
                    f"(--node dgx-a100-80gb): {', '.join(preset_names('nodes'))}"
                )
            node = fitting[0]
    return ClusterSpec.read(resolve({"name": node, "node": node, "num_nodes": 1}, "cluster"), "node")
