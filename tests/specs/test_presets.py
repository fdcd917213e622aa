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
from sim.specs.yaml12 import load_yaml

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


CARDS = load_yaml(Path(__file__).with_name("cards.yaml"))


def test_peak_and_bandwidth_follow_from_the_chip():
    wrong = {}
    for name, (clock, flop, bits, rate) in CARDS["chips"].items():
        gpu = read("gpus", name)
        peak = gpu.peak("bf16" if "bf16" in gpu.peak_flop_per_s else "fp16")
        off = peak / (clock * 1e9 * flop * gpu.num_sms), gpu.memory_bandwidth_bytes_per_s / (bits * rate * 1e9 / 8)
        if max(abs(each - 1.0) for each in off) > 0.02:
            wrong[name] = off
    assert wrong == {}
    without_matrix_units = {"p100-pcie-16gb", "xeon-core"}
    stated = {*CARDS["chips"], *CARDS["unprinted"], *without_matrix_units}
    assert stated == set(preset_names("gpus")), "state the chip, or the name of its file, in cards.yaml"


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


@rows("gpu", preset_names("gpus"))
def test_a_card_by_what_people_call_it(gpu):
    assert {gpu_named(said) for said in (gpu, *CARDS["names"].get(gpu, ()))} == {gpu}
    assert {*CARDS["names"]} <= {*preset_names("gpus")}


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
