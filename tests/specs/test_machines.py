"""Machines by the GPU in them: cards by the names that people give them, and what they stand in."""

import pytest
from rows import rows

from sim.errors import SpecError
from sim.specs import ClusterSpec, preset_names
from sim.specs.loading import resolve
from sim.specs.machines import gpu_named, machine_of, node_of


@rows(
    ("said", "gpu"),
    [
        ("h100", "h100-sxm-80gb"),
        ("NVIDIA H100", "h100-sxm-80gb"),
        ("rtx4090", "rtx-4090-24gb"),
        ("4090", "rtx-4090-24gb"),
        ("GeForce RTX 4090", "rtx-4090-24gb"),
        ("a100", "a100-sxm-80gb"),
        ("a100-40gb", "a100-sxm-40gb"),
        ("A100 80GB", "a100-sxm-80gb"),
        ("h200", "h200-sxm-141gb"),  # and not a GH200
        ("b200", "b200-sxm-180gb"),
        ("a6000", "rtx-a6000-48gb"),
        ("MI300X", "mi300x-192gb"),
        *((name, name) for name in preset_names("gpus")),
    ],
)
def test_a_card_by_what_people_call_it(said, gpu):
    assert gpu_named(said) == gpu


@rows(("said", "says"), [("80gb", "GPUs of several kinds"), ("t4", "no GPU that flopcast has"), ("", "no GPU")])
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
