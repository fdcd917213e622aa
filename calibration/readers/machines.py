"""The cluster of a measured run, from the names of its GPU and links."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError

#: (pattern of the GPU's name, memory in GB that tells variants apart, node preset, profile)
_GPUS: tuple[tuple[str, tuple[float, float], str, str], ...] = (
    (r"V100-SXM2", (0, 20), "dgx-1v-16gb", "v100"),
    (r"V100-SXM3", (0, 1e9), "dgx-2h", "v100"),
    (r"V100", (0, 1e9), "dgx-1v", "v100"),
    (r"A100(?!\d)", (0, 60), "dgx-a100-40gb", "a100"),
    (r"A100(?!\d)", (60, 1e9), "dgx-a100-80gb", "a100"),
    (r"Ampere", (0, 1e9), "dgx-a100-80gb", "a100"),  # as papers that may not say more call an A100
    (r"A800", (0, 1e9), "hgx-a800", "a100"),
    (r"H800", (0, 1e9), "hgx-h800", "h100"),
    (r"GH200|H200", (0, 1e9), "dgx-h200", "h200"),
    (r"H100", (0, 1e9), "dgx-h100", "h100"),
    (r"GB300", (0, 1e9), "gb300-tray", "b300"),
    (r"GB200", (0, 1e9), "gb200-tray", "b200"),
    (r"B300", (0, 1e9), "dgx-b300", "b300"),
    (r"B200", (0, 1e9), "dgx-b200", "b200"),
)

OMNI_PATH = 0.14
"""Of four 100 Gbit/s cards a node, what all-reduces of 4 GB reach on 4 and 16 nodes of Jean Zay (10.6, 6.9 and 5.1 of
50 GB/s; their geometric mean).

bigscience-workshop/bigscience:experiments/bandwidth."""

MOST_PER_NODE = 1024
"""GPUs of a node beyond which the number is a slip of the pen."""


def cluster_of(row: Mapping[str, str], num_gpus: int) -> tuple[dict[str, Any], str, list[str]]:
    """Cluster description, name of the GPU's profile, and what was inferred.

    The network is the row's own where it gives rates; else the node preset's.

    Raises
    ------
    SpecError
        The GPU is not one of those that flopcast knows.
    """
    gpu = row.get("gpu", "")
    said = re.search(r"(\d+)\s*GB", gpu)
    memory = float(said.group(1)) if said else _float(row.get("gpu_mem_gb", ""), 0.0) or 1e8
    found = next(
        (entry for entry in _GPUS if re.search(entry[0], gpu, re.IGNORECASE) and entry[1][0] <= memory < entry[1][1]),
        None,
    )
    if found is None:
        names = dict.fromkeys(name for entry in _GPUS for name in re.sub(r"\(.*?\)", "", entry[0]).split("|"))
        raise SpecError(f"unknown GPU {gpu!r}; known: {', '.join(names)}")
    _, _, node, profile = found
    inferred: list[str] = []
    per_node = _gpus_per_node(row.get("gpus_per_node", ""))
    description: dict[str, Any] = {"preset": node}
    gpu_changes: dict[str, Any] = {}
    if "H100-94GB" in gpu:
        gpu_changes = {"preset": "h100-sxm-80gb", "memory": "94 GiB"}
    if "H100-96GB" in gpu:
        gpu_changes = {"preset": "h100-sxm-80gb", "memory": "96 GiB", "memory_bandwidth": "2.4 TB/s"}
    if gpu_changes:
        description["gpu"] = gpu_changes
    if per_node:
        description["gpus_per_node"] = per_node
    width = per_node or {"gb200-tray": 4, "gb300-tray": 4, "dgx-2h": 16}.get(node, 8)
    if not per_node:
        inferred.append(f"gpus_per_node {width}: as in node preset {node}")
    if memory == 1e8 and sum(entry[0] == found[0] for entry in _GPUS) > 1:
        inferred.append(f"node preset {node}: the row does not say which of the {gpu}'s variants")
    cluster: dict[str, Any] = {"name": gpu, "node": description, "num_nodes": max(1, -(-num_gpus // width))}
    if node in ("gb200-tray", "gb300-tray"):
        # Jobs of a multiple of 64 GPUs take 16 of a rack's 18 trays, so that their groups do not straddle racks.
        cluster["nvlink_domain_gpus"] = domain = 64 if num_gpus % 64 == 0 else 72
        cluster["num_nodes"] = -(-num_gpus // domain) * domain // 4
        if num_gpus > domain:
            inferred.append(f"{domain} GPUs a rack")
    gbits, why = _network_gbits(row.get("inter_node_link", ""), width)
    if not gbits and num_gpus > width and "RoCE" in row.get("inter_node_link", "") and profile == "a100":
        gbits = 100.0  # chosen over 200 by the zero-bubble runs across nodes, whose source names no rate
        inferred.append("network of 100 Gbit/s a GPU: what RoCE clouds with A100 have, where the row gives no rate")
    if "Omni-Path" in row.get("inter_node_link", ""):
        cluster["network_efficiency"] = OMNI_PATH
        inferred.append(f"the network reaches {OMNI_PATH:.0%} of its cards: all-reduces measured over Omni-Path")
    if gbits:
        cluster["inter_node_bandwidth"] = f"{gbits:.6g} Gbit/s"
    elif num_gpus > width:
        inferred.append(f"network as in node preset {node}: {why}")
    return cluster, profile, inferred


def _gpus_per_node(text: str) -> int:
    """GPUs of a node, 0 where the row does not say."""
    value = _float(text, 0.0 if not text else -1.0)
    if text and not (1 <= value <= MOST_PER_NODE and value == int(value)):
        raise SpecError(f"gpus_per_node = {text!r} is not a whole number from 1 to {MOST_PER_NODE}")
    return int(value)


def _float(text: str, default: float) -> float:
    try:
        return float(text)
    except ValueError:
        return default


def _network_gbits(text: str, per_node: int) -> tuple[float | None, str]:
    """Network rate per GPU and direction from words such as "8x HDR 200 Gb/s InfiniBand". [Gbit/s]"""
    if not text:
        return None, "the row gives none"
    compute = re.search(r"Compute:\s*(.*?)(?:,\s*Management|$)", text)
    words = compute.group(1) if compute else text
    per_node_rate = re.search(r"(\d+(?:\.\d+)?)\s*(G|T)b/s(?:\s+\w+)? per node", words)
    if per_node_rate and float(per_node_rate[1]):
        return float(per_node_rate[1]) * (1000 if per_node_rate[2] == "T" else 1) / per_node, ""
    best = 0.0
    for count, rate in re.findall(r"(\d+)x[^,]*?(?<![\d.])(\d+(?:\.\d+)?)\s*Gb/[sS]", words):
        best = max(best, float(count) * float(rate) / per_node)
    return (best, "") if best else (None, f"no rate in {text!r}")
