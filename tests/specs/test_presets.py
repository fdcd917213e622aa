"""Shipped presets and scenarios: each loads, each value has a source, the numbers are the papers'; cards by what people call them."""

from pathlib import Path

import pytest
from rows import rows

from sim.errors import SpecError
from sim.specs import (
    ClusterSpec,
    GpuSpec,
    ModelSpec,
    NodeSpec,
    Profile,
    StackSpec,
    load_preset,
    load_scenario,
    preset_names,
    preset_source,
    presets,
)
from sim.specs.loading import profile_of_gpu, resolve
from sim.specs.machines import gpu_named, machine_of, node_of

SCENARIOS = Path(__file__).parents[2] / "scenarios"
# kind -> (record, where its presets stand in a scenario)
RECORDS = {
    "gpus": (GpuSpec, "cluster.node.gpu"),
    "nodes": (NodeSpec, "cluster.node"),
    "clusters": (ClusterSpec, "cluster"),
    "models": (ModelSpec, "model"),
    "stacks": (StackSpec, "stack"),
    "profiles": (Profile, "profile"),
}
PRESETS = [(kind, name) for kind in RECORDS for name in preset_names(kind)]


def read(kind, name):
    record, place = RECORDS[kind]
    return record.read(resolve(load_preset(kind, name), place), name)


@rows(("kind", "name"), PRESETS)
def test_preset_is_valid_and_every_value_has_a_source(kind, name):
    read(kind, name)
    # A profile says where all its values come from in one section, its provenance.
    rows = [] if kind == "profiles" else preset_source(kind, name)
    assert not [field for field, _, source in rows if not source.strip()]


@rows("name", preset_names("profiles"))
def test_a_copy_of_a_shipped_profile_is_that_profile(name, tmp_path):
    copy = tmp_path / f"{name}.yaml"
    copy.write_text((Path(presets.__file__).parents[1] / "presets" / "profiles" / copy.name).read_text())
    assert load_preset("profiles", str(copy)) == load_preset("profiles", name)


# Clock of the matrix units [GHz], their dense FLOPs a clock and multiprocessor in 16 bits with sums in 32, width of the
# memory's bus [bit], its rate a pin [Gbit/s]: of datasheets, whitepapers and product briefs.
CHIPS = {
    "t4-16gb": (1.59, 1024, 256, 10.0),
    "v100-sxm2-16gb": (1.53, 1024, 4096, 1.754),
    "v100-sxm2-32gb": (1.53, 1024, 4096, 1.754),
    "v100-sxm3-32gb": (1.597, 1024, 4096, 1.754),
    "a100-sxm-40gb": (1.41, 2048, 5120, 2.43),
    "a100-pcie-40gb": (1.41, 2048, 5120, 2.43),
    "a100-sxm-80gb": (1.41, 2048, 5120, 3.186),
    "a100-pcie-80gb": (1.41, 2048, 5120, 3.024),
    "a10-24gb": (1.695, 1024, 384, 12.5),
    "a40-48gb": (1.74, 1024, 384, 14.5),
    "rtx-a6000-48gb": (1.8, 1024, 384, 16.0),
    "rtx-3090-24gb": (1.695, 512, 384, 19.5),  # a GeForce: half of what it does where sums are in 16 bits
    "rtx-4090-24gb": (2.52, 512, 384, 21.0),
    "l4-24gb": (2.04, 1024, 192, 12.5),
    "l40-48gb": (2.49, 512, 384, 18.0),
    "l40s-48gb": (2.52, 1024, 384, 18.0),
    "rtx-5090-32gb": (2.407, 512, 512, 28.0),
    "rtx-5060-ti-16gb": (2.572, 512, 128, 28.0),
    "rtx-pro-6000-96gb": (2.617, 1024, 512, 28.0),
    "h100-sxm-80gb": (1.83, 4096, 5120, 5.234),
    "h100-pcie-80gb": (1.62, 4096, 5120, 3.186),
    "h100-nvl-94gb": (1.545, 4096, 6016, 5.238),
    "h200-sxm-141gb": (1.83, 4096, 6144, 6.25),
    "h200-nvl-141gb": (1.545, 4096, 6144, 6.25),
    "gh200-96gb": (1.83, 4096, 6144, 5.2),
    "gh200-144gb": (1.83, 4096, 6144, 6.4),
    "h20-96gb": (1.83, 1024, 6144, 5.234),
    "gb10-spark-128gb": (2.525, 1024, 256, 8.533),
    "mi250x-64gb": (1.7, 1024, 4096, 3.2),
    "mi300x-192gb": (2.1, 2048, 8192, 5.2),
    "mi325x-256gb": (2.1, 2048, 8192, 5.86),
    "mi350x-288gb": (2.2, 4096, 8192, 7.81),
    "mi355x-288gb": (2.4, 4096, 8192, 7.81),
}
UNPRINTED = {  # a clock of the matrix units, or the memory's rate
    "b200-sxm-180gb", "b300-sxm-270gb", "gb200-186gb", "gb300-279gb", "gb300-station-252gb", "vr200-288gb",
    "rtx-pro-6000-server-96gb", "rtx-pro-6000-max-q-96gb",
}  # fmt: skip


def test_peak_and_bandwidth_follow_from_the_chip():
    wrong = {}
    for name, (clock, flop, bits, rate) in CHIPS.items():
        gpu = read("gpus", name)
        peak = gpu.peak("bf16" if "bf16" in gpu.peak_flop_per_s else "fp16")
        off = peak / (clock * 1e9 * flop * gpu.num_sms), gpu.memory_bandwidth_bytes_per_s / (bits * rate * 1e9 / 8)
        if max(abs(each - 1.0) for each in off) > 0.02:
            wrong[name] = off
    assert wrong == {}
    without_matrix_units = {"p100-pcie-16gb", "xeon-core"}
    stated = {*CHIPS, *UNPRINTED, *without_matrix_units}
    assert stated == set(preset_names("gpus")), "state the chip in CHIPS, or the name of its file in UNPRINTED"


@rows("name", preset_names("gpus"))
def test_rates_memory_and_names_of_gpus(name):
    """Half the bits are twice the rate; drivers report a little less memory than is sold; Ampere and later have bf16."""
    gpu = read("gpus", name)
    peak = gpu.peak_flop_per_s
    if "fp8" in peak and name != "vr200-288gb":  # whose units in 16 bits did not grow with those in 8
        assert peak["fp8"] == pytest.approx(2 * peak["bf16"], rel=0.02)
    assert gpu.reported_memory_bytes is None or 0.9 < gpu.reported_memory_bytes / gpu.memory_bytes <= 1.0
    if not gpu.name.startswith("CPU"):
        assert name.split("-")[0] in gpu.name.lower(), "its file's first part is to stand in `name`"
        assert ("bf16" in peak) == (gpu.name.split("-")[0] not in ("P100", "V100", "T4"))


def test_every_scenario_file_loads_and_says_everything():
    for path in SCENARIOS.rglob("*.yaml"):
        s = load_scenario(path)
        assert s.description, path
        # What papers describe leaves something to the framework; a question of one's own should not.
        assert bool(s.assumed) == (path.parent.name == "papers"), path
        if s.plan.num_chunks > 1:
            assert s.num_microbatches % s.plan.pp == 0, path


def test_of_the_profiles_that_fit_a_gpu_the_most_specific_counts():
    names = ("v100-sxm2-16gb", "v100-sxm3-32gb", "b300-sxm-270gb", "l40s-48gb")
    chosen = [profile_of_gpu(read("gpus", name)).name for name in names]
    assert chosen == ["v100", "v100-sxm3", "b300", "datasheet"]


@rows(
    ("text", "said"),
    [("{value: 80 GB, source: 1e400}", "source: inf must be text"), ("{value: 80 GB, interval: [1]}", "two")],
)
def test_what_stands_beside_a_value_is_text_or_two_numbers(tmp_path, text, said):
    path = tmp_path / "card.yaml"
    path.write_text(f"preset: a100-sxm-80gb\nmemory: {text}\n")
    with pytest.raises(SpecError, match=said):
        load_preset("gpus", str(path))


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
