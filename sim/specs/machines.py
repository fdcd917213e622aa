"""Machines by the GPU in them: the card's name as people say it, the node that it comes in, its price."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from sim.errors import SpecError
from sim.specs.presets import PRICES, load_preset, preset_names, raw_preset
from sim.specs.yaml12 import load_yaml
from sim.units import parse

_MAKERS = re.compile(r"nvidia|geforce|tesla|amd|instinct|dgx")
_ANOTHER_CARD = {"ti", "pro"}
"""Parts of a preset's name without which it is another card's: an RTX 5060 is no RTX 5060 Ti."""
SLOTS = 10
"""Cards that one server takes where PCIe joins them, whatever its preset has."""


@cache
def price_list() -> dict[str, dict[str, Any]]:
    """GPUs that are rented by the hour, by preset: price [US dollars], node, cloud, page and date."""
    found: dict[str, dict[str, Any]] = load_yaml(PRICES)["gpus"]
    return found


def gpu_named(text: str) -> str:
    """The GPU preset that people mean by `h100`, `4090`, `RTX 4090` or `a100-80gb`; of several the first of `meant_by`.

    Raises SpecError: no such GPU, or cards of different kinds.
    """
    return meant_by(text)[0]


def meant_by(text: str) -> list[str]:
    """GPU presets that a name fits, the usual one first.

    Modules (SXM) come before cards, what is rented by the hour before what is not, and more memory before less.

    Raises SpecError: no such GPU, or cards of different kinds.
    """
    words = re.findall(r"[a-z0-9]+", _MAKERS.sub(" ", text.lower()))
    known = preset_names("gpus")
    said = "".join(words)
    cards = [name for name in known if all(part in said for part in _ANOTHER_CARD & {*name.split("-")})]
    found = [name for name in cards if words and all(_begins_within(name, word) for word in words)]
    if words and not found:  # by what its file calls it, which may have the maker that the file's name leaves out
        called = {name: str(raw_preset("gpus", name)["name"]).lower() for name in cards}
        found = [name for name in cards if all(_begins_within(called[name], word) for word in words)]
    kinds = {_kind(name) for name in found}
    if len(kinds) != 1:
        what = "names GPUs of several kinds" if kinds else "is no GPU that flopcast has"
        choices = ", ".join(found if kinds else known)
        raise SpecError(f"--gpu {text!r} {what}; choose from {choices}")

    def rank(name: str) -> tuple[bool, bool, float]:
        return "-sxm" not in name, name not in price_list(), -parse(str(load_preset("gpus", name)["memory"]), "bytes")

    return sorted(found, key=rank)


def choice_among(text: str) -> str:
    """What to say of a name that fits several GPUs; empty where it fits one."""
    taken, *others = meant_by(text)
    others = [] if text == taken else others
    return f"{text} is taken for {taken} (others: --gpu {' or '.join(others)})" if others else ""


def _begins_within(name: str, word: str) -> bool:
    """Whether a part of a preset's name begins with the word, which may run on over its hyphens (rtx4090).

    A number that the word ends with is whole: an A10 is no A100, an L4 no L40S. A letter more is the same kind of card
    (h100 for H100-SXM), unless it follows a number (l40 is not l40s).
    """
    parts = name.split("-")
    runs = ("".join(parts[place : last + 1]) for place in range(len(parts)) for last in range(place, len(parts)))
    return any(run.startswith(word) and not (word[-1].isdigit() and run[len(word) :][:1].isalnum()) for run in runs)


def _kind(name: str) -> str:
    parts = name.split("-")
    return "-".join(parts[:2]) if parts[0] == "rtx" else parts[0]


def node_of(gpu: str) -> str:
    """The node preset in which a GPU preset comes: where it is rented, else the first that has it.

    Raises SpecError: no node has it.
    """
    if gpu in price_list():
        return str(price_list()[gpu]["node"])
    for name in preset_names("nodes"):
        if raw_preset("nodes", name)["gpu"] == gpu:
            return name
    raise SpecError(f"no node preset has the GPU {gpu}; describe a cluster with one in a scenario file")


def machine_of(gpu: str, gpus: int) -> dict[str, Any]:
    """The section `cluster` of as many of a GPU's usual nodes as so many GPUs fill."""
    return nodes_for(node_of(gpu), gpus)


def nodes_for(node: str, gpus: int) -> dict[str, Any]:
    """The section `cluster` of as many nodes of a preset as so many GPUs fill; of a rack, where NVLink joins nodes.

    Up to ten cards that PCIe joins stand in one server.
    """
    described = load_preset("nodes", node)
    width = int(described["gpus_per_node"])
    if width < gpus <= SLOTS and described.get("nvlink_topology") == "pcie":
        return {"name": node, "node": {"preset": node, "gpus_per_node": gpus}, "num_nodes": 1}
    nodes = -(-gpus // width)
    for cluster in preset_names("clusters"):
        described = raw_preset("clusters", cluster)
        if described["node"] == node and "nvlink_domain_gpus" in described:
            return {"preset": cluster, "num_nodes": nodes}
    return {"name": node if nodes == 1 else f"{nodes} × {node}", "node": node, "num_nodes": nodes}
