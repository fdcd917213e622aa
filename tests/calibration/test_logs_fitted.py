"""From logs to a profile that answers: what each kind of log moves, what stays, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from flopcast_calibration.build import calibrate
from flopcast_calibration.commands.measure import Fitting, fit
from flopcast_calibration.measurement import Measurement, MeasurementSet, least_disturbed
from flopcast_calibration.node import _is_called, measured_cluster, node_of
from flopcast_calibration.readers import read_measurements
from flopcast_calibration.report import profile_figure, residual_figure
from flopcast_calibration.write import profile_data
from sim import estimate, load_scenario
from sim.errors import ProfileError, SpecError
from sim.specs import Profile, load_preset
from sim.specs.yaml12 import load_yaml

ROOT = Path(__file__).parents[2]
NAMES = load_yaml(Path(__file__).parent / "names.yaml")
DATA = ROOT / "calibration" / "data"
BASE = Profile.read(load_preset("profiles", "a100"), "a100")
NODE = measured_cluster({}, "dgx-a100-80gb")
TRILLION = ROOT / "scenarios" / "gpt-1t-3072-a100.yaml"


def fitted(*names):
    """The profile of shipped logs, and what they hold."""
    logs = [read_measurements(DATA / name) for name in names]
    items = [item for log in logs for item in log.measurements]
    data = MeasurementSet(logs[0].machine, tuple(least_disturbed(items)))
    return calibrate("logs", data, NODE, BASE, draws=1), data


PUBLIC = ("dgx-a100-all-reduce.txt", "dgx-a100-gemm.csv", "azure-a100-all-reduce.csv")


def petaflops(profile):
    scenario = load_scenario(TRILLION)
    return estimate(scenario.replace(profile=profile)).total_flop_per_s / 1e15


def test_the_trillion_from_public_logs_alone():
    """No value of a training step is needed: what cards keep when many groups share them moves it by half a percent.

    All of it is 4 % too slow, three of which 3,072 GPUs are expected to wait for the slowest of them.
    """
    result, _ = fitted(*PUBLIC)
    assert {"gemm", "nvlink", "network"} == set(result.fits)
    network = result.profile.network
    assert not network.two_domain_trees  # Azure's two nodes are no faster than four
    assert network.efficiency == pytest.approx(0.66, abs=0.02)
    assert petaflops(result.profile) == pytest.approx(502, rel=0.05)
    alone = network.replace(shared_efficiency=None, job_efficiency=None, p2p_efficiency=network.efficiency)
    without_steps = result.profile.replace(network=alone)
    assert petaflops(without_steps) == pytest.approx(502, rel=0.05)
    assert petaflops(without_steps) == pytest.approx(petaflops(result.profile), rel=0.01)
    assert result.profile.provenance.network_measured_on == "16 nodes of NVIDIA A100-SXM4-80GB"
    assert result.profile.provenance.network_gpus == 128


TWO_HOSTS = (Path(__file__).parent / "logs" / "nccl-two-hosts.txt").read_text(encoding="utf-8")


def collective(time_s, **given):
    shape = {"operation": "all_reduce", "num_ranks": 8, "num_nodes": 1, "nbytes": 2**30} | given
    return Measurement("collective", shape, time_s, source="log.txt: line 7")


def gemm(time_s, **given):
    return Measurement(
        "gemm", {"m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16"} | given, time_s, source="g.csv: line 2"
    )


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (gemm(1e-4), r"g.csv: line 2: 1\.37 PFLOP/s is above the bf16 peak of A100.*312 TFLOP/s; was it this device"),
        (gemm(1e-4, dtype="banana"), "g.csv: line 2: unknown dtype 'banana'"),
        (collective(1e-3), "line 7: all_reduce of 1.07 GB on 8 ranks in 1,000 us is more than NVLink.*300 GB/s a GPU"),
        (collective(2e-3, num_ranks=16, num_nodes=2), "more than the network .*25.0 GB/s a GPU.*--network '3200 Gbit/s'"),
        (collective(1e-2, operation="send", num_ranks=2, num_nodes=2), "send of 1.07 GB on 2 ranks"),
    ],
)  # fmt: skip
def test_what_the_hardware_cannot_do_is_refused(item, why):
    with pytest.raises(ProfileError, match=why):
        calibrate("mine", MeasurementSet({}, (item,) * 8), NODE, BASE, draws=1)


def test_a_given_network_bandwidth_is_what_shares_are_of():
    faster = measured_cluster({}, "dgx-a100-80gb", 400e9)
    assert faster.inter_node_bandwidth_bytes_per_s == 50e9
    items = tuple(reduces(20e9, ranks=16, nodes=2, sizes=range(16, 34, 2)))
    half, whole = (calibrate("n", MeasurementSet({}, items), node, BASE, 1) for node in (faster, NODE))
    ratio = half.profile.network.efficiency / whole.profile.network.efficiency
    assert ratio == pytest.approx(0.5, rel=0.1)


def test_racks_are_one_domain_over_many_hosts():
    rack = measured_cluster({"device": "NVIDIA GB200"})
    assert (rack.node.gpus_per_node, rack.nvlink_domain_gpus) == (4, 72)
    inside = [
        Measurement(
            "collective", {"operation": "all_reduce", "num_ranks": 64, "num_nodes": 16, "nbytes": n}, 1e-4 + n / 4e11
        )
        for n in (2**e for e in range(16, 34, 2))
    ]
    base = Profile.read(load_preset("profiles", "b200"), "b200")
    assert set(calibrate("rack", MeasurementSet({}, tuple(inside)), rack, base, 1).fits) == {"nvlink"}


def test_devices_as_drivers_print_them_find_their_node():
    assert {device: node_of({"device": device}) for device in NAMES["devices"]} == NAMES["devices"]


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("A100", "2 node presets have a GPU called 'A100'.*dgx-a100-40gb, dgx-a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "2 node presets .*'NVIDIA A100 80GB PCIe'.*a100-pcie-8, a100-pcie-nvlink-2"),
        ("NVIDIA A10G", "no node preset"),
        ("NVIDIA GeForce RTX 5060", "no node preset"),
        ("", "the data do not name the device"),
        ("Gaudi 3", "give the node that was measured"),
    ],
)
def test_devices_of_several_nodes_or_none_are_asked_for(device, why):
    with pytest.raises(SpecError, match=why):
        node_of({"device": device})


def test_data_of_one_gpu_are_refused_as_those_of_a_node_of_another():
    with pytest.raises(SpecError, match="the data are of 'NVIDIA A100-SXM4-80GB' and the node dgx-h100 has H100-SXM5"):
        measured_cluster({"device": "NVIDIA A100-SXM4-80GB"}, "dgx-h100")
    assert measured_cluster({"device": "Prototype 7"}, "dgx-h100").node.name == "dgx-h100"
    assert _is_called("NVIDIA Orion X200", "ORION-X200-192GB")


def test_a_tag_that_tears_a_line_apart_is_taken_out(tmp_path):
    log = tmp_path / "all_reduce.log"
    lines = [f"[1,0]<stdout>:{line}" for line in TWO_HOSTS.splitlines()]
    log.write_text("\n".join(lines).replace("on hostB", "on host[1,0]<stdout>:B"))
    assert {item.shape["num_nodes"] for item in read_measurements(log).measurements} == {2}
    log.write_text("\n".join(lines).replace("on hostB", "on host[1,0]<stdout>:A"))
    with pytest.raises(ProfileError):
        read_measurements(log)  # one host, and both ranks on its first GPU


def test_a_fit_that_misses_its_own_data_is_not_taken_unasked():
    rng = np.random.default_rng(0)
    noise = [
        collective(float(t), nbytes=2.0**e) for e, t in zip(range(12, 24), 10 ** rng.uniform(-4, -1, 12), strict=True)
    ]
    data = MeasurementSet({}, tuple(noise))
    with pytest.raises(ProfileError, match=r"further from the fit than 25% \(nvlink .*--force takes the fits"):
        calibrate("mine", data, NODE, BASE, draws=1, most_error=0.25)
    assert "nvlink" in calibrate("mine", data, NODE, BASE, draws=1).fits
    # Beside others that do fit, the base's values stand for it, and the answer says so.
    both = MeasurementSet({}, (*noise, *read_measurements(DATA / "dgx-a100-gemm.csv").measurements))
    result = calibrate("mine", both, NODE, BASE, draws=1, most_error=0.25)
    assert set(result.fits) == {"gemm"}
    assert result.profile.nvlink == BASE.nvlink
    assert any(line.startswith("nvlink (measured, but ") for line in result.not_measured)


H100 = Profile.read(load_preset("profiles", "h100"), "h100")
DGX_H100 = measured_cluster({}, "dgx-h100")
EXPERTS = ROOT / "scenarios" / "qwen3-235b-a22b-256-h100.yaml"


def exchanges(share, groups=1, **given):
    """All-to-alls whose every card reaches this share of its 50 GB/s, on 4 nodes, or a group for each GPU of a node."""
    ranks = 4 if groups > 1 else 32
    shape = {"operation": "all_to_all", "num_ranks": ranks, "num_nodes": 4} | ({"groups": groups} if groups > 1 else {})
    sent = {2**e: 2**e * 3 / 4 for e in range(16, 34)}
    times = {nbytes: 24e-6 + (away + 1e6) / (share * 50e9) for nbytes, away in sent.items()}
    return [Measurement("collective", {**shape, "nbytes": n} | given, time, source="a2a") for n, time in times.items()]


def of_exchanges(*items):
    return calibrate("mine", MeasurementSet({}, tuple(items)), DGX_H100, H100, draws=1)


def test_a_log_of_all_to_alls_alone_fits_them_and_changes_experts():
    """Where a dispatcher is NCCL's all-to-all; the network's other values stay those of the base."""
    results = {share: of_exchanges(*exchanges(share)) for share in (0.6, 0.4)}
    times = []
    for share, result in results.items():
        assert set(result.fits) == {"network all_to_all"}
        network = result.profile.network
        assert network.operations["all_to_all"].efficiency == pytest.approx(share, rel=0.02)
        assert network.replace(operations={}) == H100.network.replace(operations={})
        assert "network" in result.not_measured
        scenario = load_scenario(EXPERTS, ["stack.expert_dispatcher=alltoall"])
        times.append(estimate(scenario.replace(profile=result.profile)).step_time_s)
    assert times[1] > 1.2 * times[0]
    inside = of_exchanges(*exchanges(0.6, num_ranks=8, num_nodes=1))
    assert set(inside.fits) == {"all_to_all"}
    assert inside.profile.network == H100.network
    few = exchanges(0.6)[:4]
    with pytest.raises(
        ProfileError, match=r"network all_to_all \(4 measurements; give at least 6 sizes, or one of 64 MB"
    ):
        of_exchanges(*few)


def test_all_to_alls_of_many_groups_at_once_are_what_sharing_leaves_them():
    result = of_exchanges(*exchanges(0.7), *exchanges(0.5, groups=8))
    assert set(result.fits) == {"network all_to_all", "network shared all_to_all"}
    own = result.profile.network.operations["all_to_all"]
    assert (own.efficiency, own.shared_efficiency) == pytest.approx((0.7, 0.5), rel=0.03)
    written = profile_data(result)["network"]
    assert written["operations"]["all_to_all"]["shared_efficiency"]["value"] == pytest.approx(0.5, rel=0.03)
    assert written["shared_efficiency"] == 0.64  # of all-reduces, which were not measured
    # Groups at once that seem faster than one alone are as fast as that.
    fast = of_exchanges(*exchanges(0.5), *exchanges(0.7, groups=8)).profile.network.of("all_to_all")
    assert [float(fast.in_training(many)) for many in (True, False)] == pytest.approx([0.5, 0.5], rel=0.02)
    assert float(fast.in_training(True)) == pytest.approx(float(fast.in_training(False)))
    without = of_exchanges(*exchanges(0.5, groups=8, operation="all_gather"), *exchanges(0.7))
    assert "all_gather of many groups at once (of one group it was not measured)" in without.not_measured


@pytest.mark.parametrize(("own", "reached"), [(None, 0.5), (0.55, 0.55), (0.7, 0.6)])
def test_an_all_to_all_that_was_measured_keeps_what_the_base_knows_of_jobs(own, reached):
    network = H100.network
    exchange = network.operations["all_to_all"].replace(job_efficiency=own)
    base = H100.replace(network=network.replace(job_efficiency=0.5, operations={"all_to_all": exchange}))
    result = calibrate("mine", MeasurementSet({}, tuple(exchanges(0.6))), DGX_H100, base, draws=1)
    assert float(result.profile.network.of("all_to_all").in_training(False)) == pytest.approx(reached, rel=0.02)
    written = profile_data(result)["network"]["operations"]["all_to_all"]
    assert written.get("job_efficiency") == own


def reduces(busbw, ranks=8, nodes=1, sizes=(29, 30, 31, 32), **given):
    """All-reduces of these exponents of two that reach this bus bandwidth. [bytes/s]"""
    moved = 2 * (ranks - 1) / ranks
    shape = {"num_ranks": ranks, "num_nodes": nodes} | given
    return [collective(2**e * moved / busbw, nbytes=2**e, **shape) for e in sizes]


def short(*items, draws=8):
    return calibrate("mine", MeasurementSet({}, tuple(items)), DGX_H100, H100, draws=draws)


def test_a_few_large_sizes_say_a_bandwidth_and_little_else():
    """Even one: the rest stays the base's, and its intervals are as wide as is known of any such link."""
    for sizes in ((29, 30, 31, 32), (33,)):
        result = short(*reduces(200e9, ranks=32, nodes=4, sizes=sizes))
        assert result.fits["network"].short
        network, (low, high) = result.profile.network, result.fits["network"].intervals["efficiency"]
        assert network.efficiency == pytest.approx(200 / 400, rel=0.04)
        assert low < network.efficiency < high < 1.5 * low
        assert network.hop_latency_s == pytest.approx(H100.network.hop_latency_s, rel=0.3)
        low, high = result.fits["network"].intervals["hop_latency_s"]
        assert high > 10 * low
        assert "network: latency and small messages (give 6 sizes or more)" in result.not_measured
        said = profile_data(result)["network"]["hop_latency"]["source"]
        assert said == f"near the base's: {len(sizes)} measurements tell a bandwidth alone"
    with pytest.raises(
        ProfileError, match=r"nvlink \(5 measurements; give at least 6 sizes, or one of 64 MB and more\)"
    ):
        short(*reduces(1e9, sizes=range(15, 20)))


def test_a_bus_bandwidth_above_the_link_is_that_of_switches_that_add():
    """481 GB/s over links of 450 is NVLS (NVIDIA/nccl-tests issue 212); rings stay as they are."""
    result = short(*reduces(481e9))
    nvlink, (low, high) = result.profile.nvlink, result.fits["nvlink"].intervals["in_switch_efficiency"]
    assert nvlink.in_switch_efficiency == pytest.approx(481 / 1.75 * 9 / 8 / 450, rel=0.03)
    assert nvlink.efficiency == pytest.approx(H100.nvlink.efficiency, rel=0.01)
    assert 0.6 < low < nvlink.in_switch_efficiency < high < 0.9
    assert not any("switches add" in line for line in result.not_measured)
    # Rings may be what ran below the link's bandwidth; that switches are then taken to add more slowly is said.
    slow = short(*reduces(360e9), draws=1)
    share = slow.profile.nvlink.in_switch_efficiency
    assert share < H100.nvlink.in_switch_efficiency
    [said] = [line for line in slow.not_measured if "switches add" in line]
    assert said.endswith(f"in_switch_efficiency became {share:.2f}, and was 0.68)")
    # A profile that knows of no such switches learns of them.
    plain = H100.replace(nvlink=H100.nvlink.replace(in_switch_efficiency=None))
    data = MeasurementSet({}, tuple(reduces(481e9)))
    assert calibrate("mine", data, DGX_H100, plain, draws=1).profile.nvlink.in_switch_efficiency > 0.65
    # Over three nodes and more only the network's switches could be that fast: no share of a ring is made of it.
    with pytest.raises(ProfileError, match=r"4 all_reduce faster than the cards carry in rings: .* \(SHARP\)"):
        short(*reduces(460e9, ranks=32, nodes=4))
    beside = short(*reduces(460e9, ranks=32, nodes=4), *reduces(360e9, ranks=32, nodes=4, operation="all_gather"))
    assert set(beside.fits) == {"network all_gather"}


def test_a_slow_benchmark_bounds_what_training_reaches():
    network = short(*reduces(120e9, ranks=32, nodes=4)).profile.network
    assert network.shared_efficiency == network.efficiency < H100.network.shared_efficiency


def test_one_line_of_ib_write_bw_says_what_sends_reach_and_bounds_collectives(tmp_path):
    """On cards of 400 Gbit/s no ring reaches what one message stream does not reach."""
    log = (Path(__file__).parent / "logs" / "perftest.txt").read_text(encoding="utf-8")
    head = log.partition("Conflicting")[0]
    for gigabits in (392.0, 200.0):
        line = (
            f" 65536      5000             {gigabits + 1:.2f}             {gigabits:.2f}   {gigabits / 524.288:.6f}\n"
        )
        path = tmp_path / "ib.txt"
        path.write_text(head.replace("MB/sec", "Gb/sec") + line)
        result = short(*read_measurements(path).measurements)
        assert [name for name, fit in result.fits.items() if fit.short] == ["network sends"]
        network = result.profile.network
        assert network.p2p_efficiency == pytest.approx(gigabits / 400, rel=0.03)
        assert network.efficiency == min(H100.network.efficiency, network.p2p_efficiency)
        assert network.shared_efficiency == min(H100.network.shared_efficiency, network.p2p_efficiency)


ACME_NODE = """
name: acme-8
gpu: {name: Acme X1, memory: 96 GB, memory_bandwidth: 4 TB/s, peak: {bf16: 800 TFLOP/s}, num_sms: 128, max_power: 600 W}
gpus_per_node: 8
nvlink_bandwidth: 400 GB/s
nics_per_node: 8
nic_bandwidth: 400 Gbit/s
"""


def test_a_machine_that_does_not_ship_is_given_by_its_file(tmp_path, monkeypatch):
    """A node, a cluster, or a scenario's cluster; the journal beside the profile names it for the next time."""
    monkeypatch.chdir(tmp_path)
    node, cluster, scenario = (tmp_path / f"{name}.yaml" for name in ("node", "cluster", "scenario"))
    node.write_text(ACME_NODE)
    cluster.write_text("node: node.yaml\nnum_nodes: 64\n")
    scenario.write_text("model: gpt-1.7b\ncluster: {preset: cluster.yaml, inter_node_bandwidth: 100 Gbit/s}\n")
    for path, rate in ((node, 50e9), (cluster, 50e9), (scenario, 12.5e9)):
        found = measured_cluster({}, path.name)
        assert (found.gpu.name, found.num_nodes, found.inter_node_bandwidth_bytes_per_s) == ("Acme X1", 1, rate)
    log = tmp_path / "a2a.csv"
    rows = [f"all_to_all,32,4,{item.shape['nbytes']},{1e6 * item.time_s:.6g}" for item in exchanges(0.6)]
    log.write_text("\n".join(["operation,num_ranks,num_nodes,nbytes,time_us", *rows]))
    fit([log], out=tmp_path / "mine.yaml", how=Fitting(node="cluster.yaml", draws=1))
    fit([tmp_path / "mine.jsonl"], out=tmp_path / "again.yaml", how=Fitting(draws=1))
    for name in ("mine", "again"):
        profile = Profile.read(load_preset("profiles", str(tmp_path / f"{name}.yaml")), name)
        assert profile.gpu == "Acme X1"
        assert profile.network.operations["all_to_all"].efficiency == pytest.approx(0.6, rel=0.02)
    for wrong, says in (("nothere.yaml", "cannot read nothere.yaml"), ("acme", "give the path of a YAML file that")):
        with pytest.raises(SpecError, match=says):
            measured_cluster({}, wrong)


@pytest.fixture(scope="module")
def dgx():
    return fitted(*PUBLIC[:2])


def test_a_log_and_a_table_make_a_profile_near_the_shipped_one(dgx):
    result, data = dgx
    assert len(data.measurements) == 22
    assert result.profile.gemm.max_efficiency == pytest.approx(BASE.gemm.max_efficiency, abs=0.03)
    # 8 GB on 8 GPUs: 234.6 of 300 GB/s of bus bandwidth (stas00/ml-engineering).
    link, moved = result.profile.nvlink, 2 * 7 / 8 * 8e9
    reached = link.efficiency / (1 + (link.half_volume_bytes / moved) ** link.exponent)
    assert reached == pytest.approx(234.6 / 300, abs=0.02)


def test_panels_are_of_what_was_measured_and_have_a_dot_for_each(dgx):
    result, data = dgx
    figure = profile_figure(result.profile, NODE, data)
    assert [panel.get_title() for panel in figure.axes] == ["matrix multiplies", "all-reduce (lines: fitted)"]
    with pytest.raises(ProfileError, match="nothing to draw"):
        profile_figure(result.profile, NODE, MeasurementSet({}, ()))
    figure = residual_figure(result)
    dots = [line.get_xdata() for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert [len(each) for each in dots] == [8, 14]
    assert dots[1] == pytest.approx(100 * np.expm1(result.fits["nvlink"].residuals))
