"""Fits of what is not a multiply or an all-reduce: sends, interference, launches, copies, batched multiplies."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flopcast_calibration.build import calibrate, left_out
from flopcast_calibration.fit.links import (
    drawn_to,
    fit_all_reduce,
)
from flopcast_calibration.measurement import Measurement, MeasurementSet
from flopcast_calibration.write import write_profile
from sim import estimate, load_scenario
from sim.costs.collectives import Fabric, all_reduce, send
from sim.costs.compute import gemm_time
from sim.network.placement import Group, nvlink_shares
from sim.pricing.layouts import cost_model
from sim.specs import ClusterSpec, GpuSpec, Profile, load_preset
from sim.specs.loading import resolve
from sim.specs.profile import ClockParams

A100 = GpuSpec.read(load_preset("gpus", "a100-sxm-80gb"), "a100")
NODE = ClusterSpec.read(resolve({"name": "node", "node": "dgx-a100-80gb", "num_nodes": 1}, "cluster"), "node")
BASE = Profile.read(load_preset("profiles", "a100"), "a100")
SCENARIOS = Path(__file__).parents[2] / "scenarios"
SCENARIO = SCENARIOS / "gpt-1t-3072-a100.yaml"


def several_ranks(**given):
    shape = {"operation": "all_reduce", "num_ranks": 2, "num_nodes": 1, "nbytes": 2**20} | given
    return Measurement("collective", shape, 1e-3)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (several_ranks(operation="broadcast"), "1 broadcast which no part of an estimate uses"),
        (several_ranks(num_ranks=17, num_nodes=2), "more ranks than the 8 of node"),
        (several_ranks(num_ranks=9), "more ranks than the 8 of node"),
        (several_ranks(num_ranks=8, algorithm="Ring"), "1 all_reduce by Ring, which was asked for"),
        (several_ranks(num_ranks=2, groups=4), "1 all_reduce of several groups in a node at once"),
        (several_ranks(num_ranks=3), "more ranks than the machine's 2 cores"),
    ],
)
def test_what_no_fit_takes_is_said(item, why):
    machine = {"device_kind": "cpu", "cores": 2} if "cores" in why else {}
    (said,) = left_out(MeasurementSet(machine, (item,)), NODE)
    assert why in said


def everything():
    """Measurements for every part of a profile, few of each."""
    link = BASE.nvlink.replace(p2p_efficiency=0.5)
    fabric = Fabric(link, link, NODE.node.nvlink_bandwidth_bytes_per_s, 1.0)
    items = []
    for size in (512, 1024, 2048, 4096):
        for batch in (1, 4):
            time = float(gemm_time(size, size, size, batch, "bf16", 2.0, A100, BASE.gemm, 0.75))
            shape = {"m": size, "n": size, "k": size, "dtype": "bfloat16"} | ({"batch": batch} if batch > 1 else {})
            items.append(Measurement("bmm" if batch > 1 else "gemm", shape, time))
    for length in (512, 1024, 4096, 8192):
        shape = {"heads": 8, "length": length, "head_dim": 64, "causal": 0, "backward": 0}
        items.append(Measurement("attention", shape, 4.0 * 8 * length**2 * 64 / (0.5 * 312e12)))
    for e in (10, 16, 22, 28):
        shape = {"operation": "send", "num_ranks": 2, "num_nodes": 1, "nbytes": 2.0**e}
        items.append(Measurement("collective", shape, float(send(2.0**e, False, fabric))))
        extra = {"gemm_s": 1e-3 * e, "collective_s": 1.2e-3 * e}
        items.append(Measurement("interference", shape | {"operation": "all_reduce"}, 1.7e-3 * e, extra=extra))
        for direction in ("to_device", "to_host"):
            items.append(Measurement("copy", {"nbytes": 2.0**e, "direction": direction}, 1e-5 + 2.0**e / 2e10))
    items.append(Measurement("launch", {"operation": "module forward and backward", "kernels": 64}, 64 * 5e-4))
    return MeasurementSet({"device": "NVIDIA A100-SXM4-80GB", "date": "2026-01-01"}, tuple(items))


def test_every_part_reaches_the_profile_its_file_and_the_estimate(tmp_path):
    clock = ClockParams(
        idle_power=0.2, others_power=0.8, exponent=2, most=1.2, max_power_w=700, peak_flop_per_s=989e12
    )  # another board's
    result = calibrate("mine", everything(), NODE, BASE.replace(clock=clock), draws=2)
    assert {"gemm", "attention", "send", "interference", "launch", "copies"} <= result.fits.keys()
    path = tmp_path / "mine.yaml"
    write_profile(result, path)
    answer = estimate(load_scenario(SCENARIO, profile=str(path)))
    profile = answer.scenario.profile
    assert profile.nvlink.p2p_efficiency == pytest.approx(0.5, rel=0.05)
    assert profile.nvlink.hidden_share == pytest.approx(0.5, abs=0.02)
    assert profile.attention.measured_length == (512, 8192)
    assert (profile.clock.max_power_w, profile.clock.peak_flop_per_s) == (400, 312e12)
    assert any("profile mine has values that were not measured" in line for line in answer.assumptions)
    assert any("extrapolated" in line for line in answer.assumptions)  # its multiplies are larger than those measured
    assert profile.host.to_device_bytes_per_s == pytest.approx(2e10, rel=0.02)
    # The measured host time a kernel wins over the stack's.
    usual = load_scenario(SCENARIO)
    assert cost_model(answer.scenario).compute.kernel_launch_s == pytest.approx(5e-4)
    assert cost_model(usual).compute.kernel_launch_s == usual.stack.kernel_launch_s


def test_a_machine_that_is_the_profile_s_own_leaves_the_profile_as_it_is():
    """All-reduces in NVLink's switches say nothing of the rings that gathers take."""
    own = Profile.read(load_preset("profiles", "h100"), "h100").nvlink
    cluster = ClusterSpec.read(resolve({"name": "node", "node": "dgx-h100", "num_nodes": 1}, "cluster"), "node")
    peak, eight = cluster.node.nvlink_bandwidth_bytes_per_s, Group(8, 8)
    fabric = Fabric(own, own, peak, 1.0, nvlink_shares("switch", 8))
    nbytes = 2.0 ** np.arange(13, 34)
    points = pd.DataFrame({"num_ranks": 8, "nbytes": nbytes, "time_s": all_reduce(nbytes, eight, fabric)})
    found = fit_all_reduce(points, cluster, prior=drawn_to(own), in_switch=True).params
    assert found == pytest.approx({name: getattr(own, name) for name in found}, rel=0.01)
