"""Fits find the parameters that made the data, shrug off an outlier, and give the shipped profile from its measurements."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flopcast_calibration import points
from flopcast_calibration.build import calibrate, left_out
from flopcast_calibration.fit import kernels
from flopcast_calibration.fit.kernels import bounds_met, fit_gemm, fit_state, gemm_times
from flopcast_calibration.fit.links import (
    drawn_to,
    fit_all_reduce,
    fit_network,
)
from flopcast_calibration.measurement import Measurement, MeasurementSet, read_journal
from flopcast_calibration.node import measured_cluster
from flopcast_calibration.write import write_profile
from sim import estimate, load_scenario
from sim.costs.collectives import Fabric, all_reduce, send
from sim.costs.compute import gemm_time
from sim.network.placement import Group, nvlink_shares
from sim.pricing.layouts import cost_model
from sim.specs import GpuSpec, Profile, load_preset, preset_names
from sim.specs.profile import ClockParams
from tests.published_fits import (
    NETWORKS,
    SOURCES,
    all_to_all_efficiencies,
    fit_layer,
    layer_scenarios,
    layer_times,
    read_points,
    refit,
    score,
)

A100 = GpuSpec.read(load_preset("gpus", "a100-sxm-80gb"), "a100")
SELENE = measured_cluster({}, "selene")
PROFILE = Profile.read(load_preset("profiles", "a100"), "a100")
DATA = Path(__file__).parents[2] / "calibration" / "data"

# Two sets of values each, on either side of the priors.
GEMM_TRUTHS = [
    {"max_efficiency": 0.92, "k_overhead": 250.0, "tile_exponent": 0.12, "wave_quantisation": 0.9},
    {"max_efficiency": 0.66, "k_overhead": 60.0, "tile_exponent": 0.35, "wave_quantisation": 0.2},
]
# Near exponent 1 saturation is a constant time, which no data can tell from latency; these are well below.
LINK_TRUTHS = [
    {"efficiency": 0.88, "base_latency_s": 1.2e-5, "hop_latency_s": 3e-6, "half_volume_bytes": 2e7, "exponent": 0.55},
    {"efficiency": 0.7, "base_latency_s": 3.5e-5, "hop_latency_s": 8e-7, "half_volume_bytes": 2e6, "exponent": 0.6},
]


def multiplies(truth, noise=0.0, seed=1):
    """Measured times of a GPU that obeys `truth`, on squares, tall, wide and shallow shapes."""
    rng = np.random.default_rng(seed)
    m, n = (np.round(2 ** rng.uniform(9, 14, 400)) for _ in range(2))
    k = np.round(2 ** rng.uniform(6, 14, 400))
    gemm = PROFILE.gemm.replace(**truth, alignment={})
    time = gemm_time(m, n, k, 1.0, "fp16", 2.0, A100, gemm, 0.85) * np.exp(noise * rng.standard_normal(400))
    return pd.DataFrame({"m": m, "n": n, "k": k, "time_s": time, "batch": 1.0, "layout": "nn"})


def reduces(truth, noise=0.0, seed=1):
    """Measured all-reduces on 2 to 8 GPUs of a node whose NVLink obeys `truth`."""
    rng = np.random.default_rng(seed)
    ranks, nbytes = (grid.ravel() for grid in np.meshgrid([2.0, 4.0, 6.0, 8.0], 2.0 ** np.arange(15, 34)))
    link = PROFILE.nvlink.replace(**truth)
    net = Fabric(link, link, SELENE.node.nvlink_bandwidth_bytes_per_s, 1.0)
    time = all_reduce(nbytes, Group(ranks, ranks), net) * np.exp(noise * rng.standard_normal(len(ranks)))
    return pd.DataFrame({"num_ranks": ranks, "nbytes": nbytes, "time_s": time})


def spoilt(points, factor=4.0):
    """The points with the time of every fiftieth wrong, as by a GPU that was busy with something else."""
    return points.assign(time_s=points.time_s * np.where(np.arange(len(points)) % 50, 1.0, factor))


def fit_multiplies(points):
    return fit_gemm(points, A100, "fp16")


def fit_reduces(points):
    return fit_all_reduce(points, SELENE)


CASES = [(multiplies, fit_multiplies, truth) for truth in GEMM_TRUTHS] + [
    (reduces, fit_reduces, truth) for truth in LINK_TRUTHS
]
each_truth = pytest.mark.parametrize(("measure", "fit", "truth"), CASES)


@each_truth
def test_recovers_what_made_the_data(measure, fit, truth):
    found = fit(measure(truth))
    assert found.params == pytest.approx(truth, rel=0.1)
    assert next(iter(found.params.values())) == pytest.approx(next(iter(truth.values())), rel=0.01)  # efficiency
    assert np.abs(found.residuals).max() < 0.01


@each_truth
def test_noise_and_outliers_hardly_move_it(measure, fit, truth):
    found = fit(spoilt(measure(truth, noise=0.03)))
    first = next(iter(truth))  # the efficiency that large sizes reach
    assert found.params[first] == pytest.approx(truth[first], rel=0.04)
    assert 0.01 < found.median_error < 0.04
    # What matters is the prediction: against the clean data it is right within a percent or two.
    clean, dirty = measure(truth), measure(truth, noise=0.03)
    assert np.median(np.abs(fit(clean).misfit(found.params))) < 0.02
    assert np.median(np.abs(np.log(dirty.time_s / clean.time_s))) == pytest.approx(0.02, abs=0.008)


def test_unaligned_multiplies_set_the_rates_of_the_bounds_that_they_meet():
    """A GPU of its own rates for two bounds: these are found, the others stay, and aligned shapes set all else."""
    truth = {"inner_8": 0.7, "outer_2": 0.4}
    bounds = PROFILE.gemm.alignment
    own = {name: bound.replace(rate=truth.get(name, bound.rate)) for name, bound in bounds.items()}
    gemm = PROFILE.gemm.replace(**GEMM_TRUTHS[0], alignment=own)
    rng = np.random.default_rng(2)
    aligned = 64 * rng.integers(4, 128, (60, 3))
    m, n, k = np.concatenate([aligned, aligned[:20] - [0, 0, 62], aligned[20:40] - [0, 63, 0]]).T
    layouts = np.repeat(["nn", "nt", "nn"], (60, 20, 20))
    points = pd.DataFrame({"m": m, "n": n, "k": k, "batch": 1.0, "layout": layouts})
    points = points.assign(time_s=gemm_times(points, A100, "fp16", gemm, 0.85))
    met = bounds_met(points, 2.0, bounds)
    assert set(met) == set(truth)
    found = fit_gemm(points, A100, "fp16", alignment=bounds, fitted=met).params
    assert {name: found[name] for name in truth} == pytest.approx(truth, rel=0.03)
    assert found["max_efficiency"] == pytest.approx(GEMM_TRUTHS[0]["max_efficiency"], rel=0.05)


@pytest.mark.parametrize("part", ["gemm", "nvlink"])
def test_shipped_a100_profile_is_the_fit_of_published_measurements(part, measurements):
    _, fit = refit("a100", measurements)[part]
    shipped = getattr(PROFILE, part)
    assert {name: getattr(shipped, name) for name in fit.params} == pytest.approx(fit.params, rel=0.02)
    assert PROFILE.residuals[part] == pytest.approx(fit.median_error, abs=0.002)


def test_layer_fit_recovers_what_made_the_data():
    truth = {"memory_efficiency": 0.71, "hidden_share": 0.75}
    assert fit_layer(layer_times(layer_scenarios(), truth)).params == pytest.approx(truth, rel=0.03)


def test_shipped_a100_profile_is_the_fit_of_the_published_layer():
    shipped = {"memory_efficiency": PROFILE.memory.efficiency, "hidden_share": PROFILE.nvlink.hidden_share}
    assert fit_layer().params == pytest.approx(shipped, rel=0.02)


def test_every_shipped_profile_has_a_source_of_measurements():
    measured_here = {path.stem for path in DATA.glob("*.jsonl")}
    assert set(SOURCES) | measured_here == set(preset_names("profiles"))


def test_shipped_cpu_profile_is_the_fit_of_the_measurements_beside_it():
    shipped = Profile.read(load_preset("profiles", "cpu-2core"), "cpu-2core")
    node = measured_cluster({}, "cpu-host")
    data = read_journal(DATA / shipped.provenance.raw_data)
    base = PROFILE.replace(gemm=PROFILE.gemm.replace(alignment={}))
    fitted = calibrate("cpu-2core", data, node, base, draws=1).profile
    for section in ("gemm", "attention", "memory", "nvlink", "host", "residuals", "unseen"):
        mine, theirs = (flat(getattr(profile, section)) for profile in (fitted, shipped))
        assert mine == pytest.approx(theirs, rel=0.02, abs=1e-9), section
    # Aims on this class of machine, on multiplies and collectives that the fit has not seen.
    assert shipped.unseen["gemm"] < 0.10
    assert shipped.unseen["nvlink"] < 0.15


def flat(item):
    """All numbers of a record or mapping by dotted name."""
    data = item if isinstance(item, dict) else item.model_dump(exclude_none=True)
    named = pd.json_normalize(data).iloc[0].items()
    return {name: value for name, value in named if not isinstance(value, (tuple, str, dict, list))}


def test_kernels_that_carry_a_state_are_as_measured_on_an_h100():
    """Mamba-2, gated delta nets and Kimi's, forward and backward, at 8,192 and 32,768 tokens."""
    carried = points.state_points(read_journal(Path("calibration/data/h100.jsonl")))
    found = fit_state(carried, GpuSpec.read(load_preset("gpus", "h100-sxm-80gb"), "h100"))
    assert len(carried) >= 14
    assert found.params["state_speed"] == pytest.approx(1.0, abs=0.06)
    assert found.median_error < 0.1
    slower = carried.assign(time_s=2 * carried.time_s)
    half = fit_state(slower, GpuSpec.read(load_preset("gpus", "h100-sxm-80gb"), "h100"))
    assert half.params["state_speed"] == pytest.approx(found.params["state_speed"] / 2)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_attention_that_skips_what_is_masked_is_known_by_its_long_sequences(gpu):
    """A causal kernel takes as long as another over 512 tokens, and little more than half as long over 8,192."""
    found = points.attention_points(read_journal(DATA / f"{gpu}.jsonl"))
    fit = kernels.fit_attention(
        found, GpuSpec.read(load_preset("gpus", f"{gpu}-sxm-{'80' if gpu == 'h100' else '141'}gb"), gpu), "bf16"
    )
    assert fit.median_error < 0.08
    assert 0.65 < fit.params["forward_efficiency"] < 0.8
    assert 0.5 < fit.params["backward_efficiency"] < 0.65


H100 = Profile.read(load_preset("profiles", "h100"), "h100")
H100 = H100.replace(nvlink=H100.nvlink.replace(in_switch_efficiency=None))  # as of NCCL_NVLS_ENABLE=0
NODE = measured_cluster({}, "superpod-h100").node
B200 = Profile.read(load_preset("profiles", "b200"), "b200")
NODE_GB200 = measured_cluster({}, "superpod-gb200").node


def synthetic(truth, counts, noise=0.0):
    ranks, nbytes = (grid.ravel() for grid in np.meshgrid(counts, 2.0 ** np.arange(13, 34)))
    network = H100.network.replace(**truth, shared_efficiency=None, job_efficiency=None)
    times = all_reduce(nbytes, Group(ranks, 8), Fabric(H100.nvlink, network, 450e9, 25e9))
    times = times * np.exp(noise * np.random.default_rng(0).standard_normal(len(times)))
    rows = {"num_ranks": ranks, "per_domain": 8, "network_bytes_per_s": 25e9, "nbytes": nbytes, "time_s": times}
    return pd.DataFrame(rows)


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("latency_s", [1e-5, 4e-5, 2e-4])
def test_the_network_is_recovered_from_what_it_made(latency_s, trees):
    truth = {"efficiency": 0.6, "hop_latency_s": latency_s, "half_volume_bytes": 2e7, "exponent": 0.6}
    made = truth | {"two_domain_trees": trees}
    found = fit_network(synthetic(made, [16, 32, 64, 256], noise=0.02), NODE, H100)
    assert found.params["efficiency"] == pytest.approx(0.6, rel=0.05)
    assert found.params["hop_latency_s"] == pytest.approx(latency_s, rel=0.05)
    assert bool(found.params["two_domain_trees"]) == trees
    # … and other numbers of nodes are as predicted.
    unseen = synthetic(made, [24, 128, 1024])
    misfit = fit_network(unseen, NODE, H100).misfit(found.params)
    assert np.abs(np.expm1(misfit)).max() < 0.05


@pytest.mark.thorough
def test_published_all_reduces_across_nodes(measurements):
    scores = [score(network, read_points(measurements, network)) for network in NETWORKS]
    assert sum(len(each.fitted) for each in scores) == 277
    sizes = np.abs(np.concatenate([each.sizes for each in scores]))
    assert np.median(sizes) < 0.05  # docs/network.md says 4 %
    assert np.quantile(sizes, 0.9) < 0.35
    counts = {each.network.name: np.abs(each.counts) for each in scores if len(each.counts)}
    assert sum(map(len, counts.values())) == 114
    # Numbers of nodes left out: A100 from 2 to 16 nodes, one to twenty racks of GB200.
    assert np.median(counts["A100, InfiniBand HDR (Azure)"]) < 0.08
    assert np.median(counts["GB200 NVL72, InfiniBand NDR"]) < 0.08
    medians = {each.network.name: float(np.median(np.abs(each.sizes))) for each in scores}
    poor = {name for name, median in medians.items() if median > 0.15}
    # Two rows of two algorithms, and three of a network that was shared with others.
    assert poor == {"H200, EFA, 3,200 Gbit/s a node", "V100 and A100, Omni-Path in use"}


def test_twenty_racks_are_predicted_from_one_and_two(measurements):
    racks = next(network for network in NETWORKS if "NVL72" in network.name)
    points = read_points(measurements, racks)
    largest = points.sort_values(["num_ranks", "nbytes"]).iloc[-1:]
    assert largest[["num_ranks", "nbytes"]].values.tolist() == [[1440, 2**34]]
    few = points[points.num_ranks < 1440]
    found = fit_network(few, NODE_GB200, B200, in_switch=True, always=True)
    misfit = fit_network(largest, NODE_GB200, B200, in_switch=True, always=True).misfit
    assert abs(np.expm1(misfit(found.params))) < 0.05  # half the pace of two racks: NVLS trees relay


def test_all_to_all_of_two_generations_reaches_the_same_share_of_its_cards(measurements):
    shares = all_to_all_efficiencies(measurements)
    assert shares["H100"] == pytest.approx(shares["A100"], rel=0.02)


DGX = measured_cluster({}, "dgx-a100-80gb")
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
    (said,) = left_out(MeasurementSet(machine, (item,)), DGX)
    assert why in said


def everything():
    """Measurements for every part of a profile, few of each."""
    link = PROFILE.nvlink.replace(p2p_efficiency=0.5)
    fabric = Fabric(link, link, DGX.node.nvlink_bandwidth_bytes_per_s, 1.0)
    items = []
    for size in (512, 1024, 2048, 4096):
        for batch in (1, 4):
            time = float(gemm_time(size, size, size, batch, "bf16", 2.0, A100, PROFILE.gemm, 0.75))
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
    result = calibrate("mine", everything(), DGX, PROFILE.replace(clock=clock), draws=2)
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
    cluster = measured_cluster({}, "dgx-h100")
    peak, eight = cluster.node.nvlink_bandwidth_bytes_per_s, Group(8, 8)
    fabric = Fabric(own, own, peak, 1.0, nvlink_shares("switch", 8))
    nbytes = 2.0 ** np.arange(13, 34)
    points = pd.DataFrame({"num_ranks": 8, "nbytes": nbytes, "time_s": all_reduce(nbytes, eight, fabric)})
    found = fit_all_reduce(points, cluster, prior=drawn_to(own), in_switch=True).params
    assert found == pytest.approx({name: getattr(own, name) for name in found}, rel=0.01)
