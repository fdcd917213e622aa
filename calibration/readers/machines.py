"""The cluster of a measured run, from the names of its GPU and links."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flopcast_calibration.readers.csv_values import name_patterns
from sim.errors import SpecError
from sim.specs import load_preset

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
    known = name_patterns("gpus")
    found = next((entry for entry in known if _is_gpu(entry, gpu, memory)), None)
    if found is None:
        names = dict.fromkeys(name for entry in known for name in re.sub(r"\(.*?\)", "", entry["name"]).split("|"))
        raise SpecError(f"unknown GPU {gpu!r}; known: {', '.join(names)}")
    node, profile = found["node"], found["profile"]
    inferred: list[str] = []
    per_node = _gpus_per_node(row.get("gpus_per_node", ""))
    description: dict[str, Any] = {"preset": node}
    for words, changes in found.get("variants", {}).items():
        if words in gpu:
            description["gpu"] = changes
    if per_node:
        description["gpus_per_node"] = per_node
    width = per_node or int(load_preset("nodes", node)["gpus_per_node"])
    if not per_node:
        inferred.append(f"gpus_per_node {width}: as in node preset {node}")
    if memory == 1e8 and sum(entry["name"] == found["name"] for entry in known) > 1:
        inferred.append(f"node preset {node}: the row does not say which of the {gpu}'s variants")
    cluster: dict[str, Any] = {"name": gpu, "node": description, "num_nodes": max(1, -(-num_gpus // width))}
    if node in ("gb200-tray", "gb300-tray", "vr200-tray"):
        # Jobs of a multiple of 64 GPUs take 16 of a rack's 18 trays, so that their groups do not straddle racks.
        cluster["nvlink_domain_gpus"] = domain = 64 if num_gpus % 64 == 0 else 72
        cluster["num_nodes"] = -(-num_gpus // domain) * domain // 4
        if num_gpus > domain:
            inferred.append(f"{domain} GPUs a rack")
    _add_network(cluster, row.get("inter_node_link", ""), width, num_gpus > width, profile, inferred)
    return cluster, profile, inferred


def _add_network(
    cluster: dict[str, Any], link: str, width: int, several: bool, profile: str, inferred: list[str]
) -> None:
    """Lay the network between nodes of so many GPUs, as far as the row says, into the cluster.

    several : whether the job takes more than one node.
    """
    gbits, why = _network_gbits(link, width)
    if gbits:
        cluster["inter_node_bandwidth"] = f"{gbits:.6g} Gbit/s"
    for entry in name_patterns("links") if several or gbits else ():
        fits = entry["words"] in link and entry.get("profile", profile) == profile
        if fits and not (entry.get("norate") and gbits):
            cluster |= entry["set"]
            inferred += [f"{name} {value}: {entry['because']}" for name, value in entry["set"].items()]
    if several and "inter_node_bandwidth" not in cluster:
        inferred.append(f"network as in node preset {cluster['node']['preset']}: {why}")


def _is_gpu(entry: Mapping[str, Any], gpu: str, memory: float) -> bool:
    """Whether a GPU of this name and memory [GB] is the one of the entry."""
    least, below = entry.get("memory", (0, float("inf")))
    return re.search(entry["name"], gpu, re.IGNORECASE) is not None and least <= memory < below


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
