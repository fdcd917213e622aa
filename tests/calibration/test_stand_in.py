"""The CUDA path without a GPU: what the suite measures on a stand-in gives back the profile that timed it."""

import dataclasses
import functools

import pytest

torch = pytest.importorskip("torch")

from gpu_stand_in import StandIn, gpu  # noqa: E402

from flopcast_calibration.bench import collectives, run, timing  # noqa: E402
from flopcast_calibration.bench.run import run_suite  # noqa: E402
from flopcast_calibration.build import calibrate  # noqa: E402
from flopcast_calibration.node import measured_cluster  # noqa: E402
from sim.errors import ProfileError  # noqa: E402
from sim.specs import Profile, load_preset  # noqa: E402

TRUTH = Profile.read(load_preset("profiles", "h100"), "h100")
HOST = {"to_device_bytes_per_s": 5e10, "to_host_bytes_per_s": 4e10, "copy_latency_s": 1e-5}
TRUTH = TRUTH.replace(
    gemm=TRUTH.gemm.replace(precisions={"fp8": 0.6}),
    nvlink=TRUTH.nvlink.replace(in_switch_efficiency=None, operations={}),
    network=TRUTH.network.replace(
        efficiency=0.3, shared_efficiency=0.2, job_efficiency=None, p2p_efficiency=0.15, operations={}
    ),
    host=TRUTH.host.replace(**HOST),
)
BASE = Profile.read(load_preset("profiles", "a100"), "a100")
NODE = measured_cluster({}, "dgx-h100")


@pytest.fixture(autouse=True)
def _fewer_repeats(monkeypatch):
    """The stand-in's clock does not scatter: a few repeats tell as much as many."""
    monkeypatch.setattr(run, "time_call", functools.partial(run.time_call, budget_s=1e-4, least=2))
    monkeypatch.setattr(timing, "captured", functools.partial(captured_twice, timing.captured))
    monkeypatch.setattr(run, "warm_up", lambda device: 0)
    for name in ("_SAMPLE_S", "_BUDGET_S", "_LONG_S"):
        monkeypatch.setattr(collectives, name, 1e-6)


def captured_twice(captured, call, times):
    """As if captured so many times: after the second, one capture of fake kernels is as another."""
    replay = captured(call, 2)
    kernels = replay.__self__.kernels
    assert kernels[: len(kernels) // 2] == kernels[len(kernels) // 2 :]
    kernels[:] = kernels[: len(kernels) // 2] * times
    return replay


def few_kernels(monkeypatch, *kinds):
    """Only some kinds of kernels."""
    every = run.kernel_cases
    monkeypatch.setattr(run, "kernel_cases", lambda *given: [case for case in every(*given) if case.kind in kinds])


def measured(tmp_path, monkeypatch, clock, device="NVIDIA H100 80GB HBM3", capability=(9, 0), **options):
    with gpu(monkeypatch, clock, device, capability):
        return run_suite(tmp_path / "raw.jsonl", "cuda", quick=True, **options)


def close(found, section, names, rel):
    mine, true = getattr(found, section), getattr(TRUTH, section)
    assert {name: getattr(mine, name) for name in names} == pytest.approx(
        {name: getattr(true, name) for name in names}, rel=rel
    )


def test_one_gpu_gives_back_what_timed_it(tmp_path, monkeypatch):
    data = measured(tmp_path, monkeypatch, StandIn(NODE, TRUTH))
    assert not data.failures
    result = calibrate("mine", data, measured_cluster(data.machine), BASE, draws=1)
    found = result.profile
    assert found.gpu == "H100-SXM5-80GB"  # by the name that the driver prints
    close(found, "gemm", ("max_efficiency", "kernel_floor_s"), 0.1)
    close(found, "gemm", ("k_overhead",), 0.2)
    close(found, "attention", ("half_length",), 0.06)
    close(found, "memory", ("efficiency",), 0.03)
    close(found, "host", HOST, 0.1)
    assert found.gemm.precisions["fp8"] == pytest.approx(0.6, rel=0.03)
    assert found.attention.speed("cudnn") == 1.0  # the fastest that was measured is what the values describe
    for version in ("2", "cudnn"):
        for way in ("forward_efficiency", "backward_efficiency"):
            mine, true = (getattr(each, way) * each.speed(version) for each in (found.attention, TRUTH.attention))
            assert mine == pytest.approx(true, rel=0.06)
    assert found.host.kernel_launch_s == pytest.approx(4e-6, rel=0.05)
    assert found.host.graph_launch_s == pytest.approx(TRUTH.gemm.kernel_floor_s, rel=0.1)
    assert max(found.residuals.values()) < 0.01


@pytest.fixture
def no_kernels(monkeypatch):
    monkeypatch.setattr(run, "kernel_cases", lambda *_: [])


@pytest.mark.thorough
def test_two_nodes_give_back_their_links(tmp_path, monkeypatch, no_kernels):
    data = measured(tmp_path, monkeypatch, StandIn(NODE, TRUTH, ranks=16))
    assert not data.failures
    result = calibrate("mine", data, measured_cluster(data.machine), BASE, draws=1)
    found = result.profile
    close(found, "nvlink", ("efficiency", "p2p_efficiency"), 0.05)
    assert max(found.residuals.values()) < 0.1
    close(found, "network", ("efficiency", "shared_efficiency", "p2p_efficiency"), 0.1)
    close(found, "network", ("hop_latency_s",), 0.35)  # one number of nodes: part of the ramp counts as latency
    for link in (found.nvlink, found.network):
        assert set(link.operations) == {"all_gather", "reduce_scatter", "all_to_all"}
        assert link.hidden_share == pytest.approx(TRUTH.nvlink.hidden_share, rel=0.05)
    assert found.network.hidden_at_bytes_per_s == NODE.inter_node_bandwidth_bytes_per_s
    assert found.provenance.network_measured_on == "2 nodes of NVIDIA H100 80GB HBM3"
    assert found.provenance.network_gpus == 16
    assert found.gemm == BASE.gemm  # nothing was said about kernels


@pytest.mark.thorough
def test_a_node_that_is_busy_everywhere_is_slower_than_one_gpu_of_it(tmp_path, monkeypatch):
    few_kernels(monkeypatch, "gemm")
    monkeypatch.setattr(run, "collective_shapes", lambda *_: ())
    data = measured(tmp_path, monkeypatch, StandIn(NODE, TRUTH, ranks=8))
    (busy,) = (item for item in data.of("gemm") if "num_ranks" in item.shape)
    hot = [dataclasses.replace(item, time_s=1.25 * item.time_s) if item is busy else item for item in data.measurements]
    hot = dataclasses.replace(data, measurements=tuple(hot))
    cool, warm = (calibrate("mine", each, NODE, BASE, draws=1).profile.gemm.max_efficiency for each in (data, hot))
    assert warm == pytest.approx(cool / 1.25, rel=0.03)


def test_what_the_gpu_cannot_do_is_noted_skipped_and_not_met_again(tmp_path, monkeypatch):
    few_kernels(monkeypatch, "gemm", "launch")
    clock = StandIn(NODE, TRUTH)
    clock.fails["_scaled_mm"] = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more")
    first = measured(tmp_path, monkeypatch, clock)
    assert {item.shape["dtype"] for item in first.failures} == {"float8_e4m3fn"}
    assert first.failures[0].reason == "CUDA out of memory. Tried to allocate 2 GiB"
    assert first.of("launch")
    clock.fails["_scaled_mm"] = AssertionError("met again")
    again = measured(tmp_path, monkeypatch, clock)
    assert again.failures == first.failures


def test_a_gpu_that_fails_ends_the_run_with_the_culprit_and_the_next_goes_on(tmp_path, monkeypatch):
    few_kernels(monkeypatch, "bmm", "launch")
    clock = StandIn(NODE, TRUTH)
    clock.fails["bmm"] = RuntimeError("CUDA error: an illegal memory access was encountered")
    shapes = run.kernel_cases
    monkeypatch.setattr(run, "kernel_cases", lambda *given: [each for each in shapes(*given) if each.kind == "launch"] + [
        each for each in shapes(*given) if each.kind == "bmm"][:2])  # fmt: skip
    for _ in range(2):  # one shape after the other
        with pytest.raises(ProfileError, match=r"the GPU failed at bmm .*illegal memory.*run the same command again"):
            measured(tmp_path, monkeypatch, clock)
    data = measured(tmp_path, monkeypatch, clock)
    assert len(data.failures) == 2
    assert data.of("launch")


def test_a_rank_that_fails_is_noted_with_what_it_said(tmp_path, monkeypatch, no_kernels):
    clock = StandIn(NODE, TRUTH, ranks=8)
    refuse = RuntimeError("NCCL error: unhandled system error")

    def talk(operation, nbytes, ranks, groups):
        if operation == "all_to_all":
            raise refuse
        return StandIn.talk(clock, operation, nbytes, ranks, groups)

    clock.talk = talk
    data = measured(tmp_path, monkeypatch, clock)
    assert {item.shape["operation"] for item in data.failures} == {"all_to_all"}
    assert {item.reason for item in data.failures} == {str(refuse)}
    assert data.of("collective", operation="send")
