"""The hardware that was measured: which node preset a machine is, by the name that its driver prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sim.errors import SpecError, nearest
from sim.specs import ClusterSpec, load_preset, preset_names
from sim.specs.loading import resolve
from sim.specs.yaml12 import load_yaml

#: GPUs of one NVLink domain where it is wider than a node: racks.
RACKS = {"gb200-tray": 72, "gb300-tray": 72, "vr200-tray": 72}
_FAMILY = re.compile(
    r"\b(GB\d{2,3}|[VABHP]\d{3}|MI\d{3}[AX]|H20|A10|A40|L4|L40S?|T4|RTX (?:A\d{4}|\d{4}(?: Ti)?|PRO \d{4}))\b",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"\b(\d{2,3})\s?GB\b", re.IGNORECASE)
#: Boards of the same chip with other links, clocks and peaks. Drivers say which, but for SXM.
_BOARD = re.compile(r"\b(PCIe|NVL|SXM\d?|Max Q|Server|Station)\b", re.IGNORECASE)


def measured_cluster(
    machine: dict[str, Any], node: str | None = None, network_bytes_per_s: float | None = None
) -> ClusterSpec:
    """The measured machine as a cluster of one node.

    The device's name in `machine` (`MeasurementSet.machine`) finds the node. Where the data do not name it, or several
    nodes have it, `node` does: a node preset, a cluster preset where NVLink is wider than a node, or a YAML file of
    either. `network_bytes_per_s` is what all network cards of a node carry together, per direction, where they are not
    the preset's [bytes/s]. A SpecError says that no preset or several have such a GPU, or that there is no such file.
    """
    is_named = node is not None
    if node is None:
        named = str(machine.get("node", ""))
        node = named if named in _known() or (_is_file(named) and Path(named).is_file()) else node_of(machine)
    if _is_file(node) or node in preset_names("clusters"):
        described = _of_file(node) if _is_file(node) else load_preset("clusters", node)
        data = {name: value for name, value in described.items() if name != "network"} | {"num_nodes": 1}
    elif node in preset_names("nodes"):
        data = {"name": node, "node": node, "num_nodes": 1}
        if node in RACKS:
            data["nvlink_domain_gpus"] = RACKS[node]
    else:
        other = "; for a machine that does not ship give the path of a YAML file that describes it"
        raise SpecError(f"no node preset is called {node!r}{nearest(node, _known())}{other}")
    cluster = ClusterSpec.read(resolve({**data, "name": node}, "cluster"), "node")
    if is_named:
        _check_device(machine, node, cluster.gpu.name)
    if network_bytes_per_s is None:
        return cluster
    return cluster.replace(inter_node_bandwidth_bytes_per_s=network_bytes_per_s / cluster.node.gpus_per_node)


def _check_device(machine: dict[str, Any], node: str, gpu: str) -> None:
    """Refuse measurements of one GPU that ships as those of a node of another."""
    device = str(machine.get("device", ""))
    if machine.get("device_kind") == "cpu" and not gpu.startswith("CPU"):
        raise SpecError(
            f"torch sees no GPU here but the CPU, {device!r}, and the node {node} has {gpu}; run this on the node, or "
            "leave --node out to measure this machine's cores"
        )
    fitting = [] if _is_called(device, gpu) else fitting_nodes(machine)
    if fitting:
        raise SpecError(
            f"the data are of {device!r} and the node {node} has {gpu}; leave --node out, or name a node that has the "
            f"device: {', '.join(fitting)}"
        )


def _is_file(node: str) -> bool:
    return node.endswith((".yaml", ".yml"))


def _of_file(path: str) -> dict[str, Any]:
    """The cluster that a file describes, alone or as a scenario's section, or a cluster of the node that it does."""
    said = load_yaml(path)
    is_node = isinstance(said, dict) and "gpus_per_node" in said
    return {"node": path} if is_node else dict(resolve(load_preset("clusters", path), "cluster"))


def _known() -> list[str]:
    return [*preset_names("nodes"), *preset_names("clusters")]


def node_of(machine: dict[str, Any]) -> str:
    """The node preset whose GPU has the device's name, as `nvidia-smi` or `rocm-smi` prints it."""
    if machine.get("device_kind") == "cpu":
        return "cpu-host"
    device = str(machine.get("device", ""))
    fitting = fitting_nodes(machine)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise SpecError(
            f"{len(fitting)} node presets have a GPU called {device!r}; name one (--node): {', '.join(fitting)}"
        )
    known = ", ".join(preset_names("nodes"))
    which = f"no node preset has a GPU called {device!r}" if device else "the data do not name the device"
    raise SpecError(
        f"{which}; give the node that was measured (--node), a file that describes it (docs/extending.md) or one of "
        f"{known}"
    )


def fitting_nodes(machine: dict[str, Any]) -> list[str]:
    """Node presets whose GPU has the device's name; with as many GPUs as the machine, if that is known."""
    device = str(machine.get("device", ""))
    gpus = {name: load_preset("nodes", name)["gpu"] for name in preset_names("nodes")}
    fitting = [name for name, gpu in gpus.items() if _is_called(device, str(load_preset("gpus", gpu)["name"]), name)]
    if len(fitting) > 1 and machine.get("num_gpus"):
        wide = [name for name in fitting if load_preset("nodes", name)["gpus_per_node"] == machine["num_gpus"]]
        fitting = wide or fitting
    return fitting


def _is_called(device: str, gpu: str, node: str = "") -> bool:
    """Whether a device's name is that of a GPU, or of the GPU of a node that its name tells of."""
    own = _FAMILY.search(node.replace("-", " "))
    if not device or _family_of(device) != (own[1].upper() if own else _family_of(gpu)):
        return False
    for pattern, unsaid in ((_BOARD, "SXM"), (_MEMORY, "")):
        found = [pattern.search(name.replace("-", " ")) for name in (device, gpu)]
        theirs, ours = (match[1] if match else unsaid for match in found)
        if theirs and ours and theirs.upper() != ours.upper() and not _alike(theirs, ours):
            return False
    return True


def _family_of(name: str) -> str:
    """The chip in a name; of one that makers do not name so, all of it but its maker, its board and its memory."""
    words = re.sub(r"[-_]", " ", name)
    found = _FAMILY.search(words)
    bare = re.sub(r"\bnvidia|\bamd", " ", _BOARD.sub(" ", _MEMORY.sub(" ", words)), flags=re.IGNORECASE)
    return found[1].upper() if found else " ".join(bare.upper().split())


def _alike(one: str, other: str) -> bool:
    """SXM of unnamed generation is any SXM; memories are named by size before and after reservations."""
    if one.isdigit() and other.isdigit():
        return abs(int(one) - int(other)) <= 0.1 * int(other)
    return one.upper().startswith("SXM") and other.upper().startswith("SXM") and "SXM" in (one.upper(), other.upper())
