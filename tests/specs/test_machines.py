"""Machines by the GPU in them: cards by the names that people give them, and what they stand in."""

import pytest
from rows import rows

from sim.errors import SpecError
from sim.specs import ClusterSpec, preset_names
from sim.specs.loading import resolve
from sim.specs.machines import gpu_named, machine_of, node_of

NAMES = {
    "h100-sxm-80gb": "h100, NVIDIA H100", "rtx-4090-24gb": "rtx4090, 4090, GeForce RTX 4090", "h100-pcie-80gb": "h100-pcie",
    "a100-sxm-80gb": "a100, NVIDIA A100-SXM4-80GB, A100 80GB", "a100-sxm-40gb": "a100-40gb", "a100-pcie-80gb": "a100 pcie",
    "h200-sxm-141gb": "h200", "h200-nvl-141gb": "h200-nvl", "h100-nvl-94gb": "H100 NVL", "gh200-96gb": "gh200", "h20-96gb": "h20",
    "b200-sxm-180gb": "b200", "gb300-279gb": "gb300", "gb300-station-252gb": "DGX Station", "gb10-spark-128gb": "spark, DGX Spark",
    "rtx-5090-32gb": "5090, rtx5090", "rtx-5060-ti-16gb": "RTX 5060 Ti", "rtx-a6000-48gb": "a6000",
    "rtx-pro-6000-96gb": "pro 6000", "rtx-pro-6000-server-96gb": "RTX PRO 6000 Server", "l4-24gb": "l4", "l40-48gb": "l40",
    "a10-24gb": "a10", "a40-48gb": "a40", "t4-16gb": "t4, Tesla T4", "mi300x-192gb": "MI300X", "mi250x-64gb": "mi250x",
}  # fmt: skip
"""Cards, and what people and drivers call them."""


@rows("gpu", preset_names("gpus"))
def test_a_card_by_what_people_call_it(gpu):
    assert {gpu_named(said) for said in (gpu, *filter(None, NAMES.get(gpu, "").split(", ")))} == {gpu}
    assert {*NAMES} <= {*preset_names("gpus")}


@rows(
    ("said", "says"),
    [
        ("80gb", "GPUs of several kinds"),
        *((other, "no GPU that flopcast has") for other in ("t40", "a10g", "mi250", "RTX 5060", "RTX 6000", "l2")),
        ("", "no GPU"),
    ],
)
def test_what_is_no_card_names_those_that_are(said, says):
    with pytest.raises(SpecError, match=rf"{says}.* choose from .*h100-sxm-80gb"):
        gpu_named(said)


@rows("gpu", [gpu for gpu in preset_names("gpus") if gpu != "xeon-core"])
def test_so_many_gpus_are_whole_nodes_of_that_card(gpu):
    wanted = resolve({"gpu": gpu}, "cluster.node")["gpu"]["name"]
    for count in (1, 7, 64):
        machine = ClusterSpec.read(resolve(machine_of(gpu, count), "cluster"), gpu)
        assert machine.gpu.name == wanted
        assert count <= machine.num_gpus < count + machine.node.gpus_per_node
        assert machine.node.name == node_of(gpu)


@rows(
    ("gpu", "gpus", "nodes", "width"),
    [
        ("rtx-5090-32gb", 3, 1, 8),
        ("rtx-5090-32gb", 10, 1, 10),
        ("rtx-5090-32gb", 11, 2, 8),
        ("h100-nvl-94gb", 8, 4, 2),  # bridged pairs
        ("gb10-spark-128gb", 2, 2, 1),
        ("h100-sxm-80gb", 10, 2, 8),
    ],
)
def test_a_server_takes_up_to_ten_cards_that_pcie_joins(gpu, gpus, nodes, width):
    machine = ClusterSpec.read(resolve(machine_of(gpu, gpus), "cluster"), gpu)
    assert (machine.num_nodes, machine.node.gpus_per_node) == (nodes, width)
