"""The real job on GPUs, which a stand-in plays: the same code runs, on the CPU. Its times say nothing; its losses do."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from rows import mostly_thorough

from flopcast_validation.job.configs import SIZES, Configuration, GptShape, gpu_suite
from sim.costs.block import FORWARD
from sim.pricing.stages import stage_costs
from sim.work.operations import Cause

pytest.importorskip("torch", reason="the real job needs torch")

from flopcast_validation.job import choose, launch
from flopcast_validation.job.calibrate import base_profile
from flopcast_validation.job.compare import LOSS_TOLERANCE, check_losses
from flopcast_validation.job.predict import CalibratedMachine, predict, scenario_of, with_host_behind, with_update

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
A100 = {"device_kind": "cuda", "device": "NVIDIA A100-SXM4-80GB", "num_gpus": 8, "memory_bytes": 85e9}
NODE = "dgx-a100-80gb"
THOROUGH_SIZES = [pytest.param(*size, marks=pytest.mark.thorough) for size in ((42, 24, 1024), (150, 32, 4096))]
TINY = GptShape(num_layers=4, hidden_size=64, num_heads=4, vocab_size=64, sequence_length=64, precision="bf16")
HOST = dict.fromkeys(("layer_forward_s", "layer_backward_s", "layer_update_s"), 1e-3) | dict.fromkeys(
    ("visit_forward_s", "visit_backward_s", "runner_s", "update_s", "waiting"), 0.0
)


@pytest.mark.thorough
def test_two_nodes_of_gpus_under_torchrun_run_every_kind_of_parallelism(tmp_path):
    """Four ranks run the verb; the first leads. Each configuration's losses are held against one process's."""
    out, figure = tmp_path / "job.json", tmp_path / "job.png"
    verb = ["cuda_stand_in", "verb", "job", "--quick", "--steps", "2", "--device", "cuda"]
    verb += ["--json", str(out), "--figure", str(figure)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    torchrun += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    paths = os.pathsep.join([str(ROOT), str(HERE)])
    nodes = []
    for node in (0, 1):
        with (tmp_path / f"node{node}.txt").open("w") as printed:
            command = [*torchrun, f"--node-rank={node}", "-m", *verb]
            environment = os.environ | {"PYTHONPATH": paths}
            nodes.append(subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env=environment))
    try:
        codes = [node.wait(timeout=280) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert codes == [0, 0], (tmp_path / "node0.txt").read_text()[-3000:]
    data = json.loads(out.read_text())
    cuts = [row["name"] for row in data["rows"]]
    for kind in ("tp2 pp1 dp2", "pp2", "zb_interleaved", "zero3", "ep2 of 4", "cp2", "recompute"):
        assert any(kind in name for name in cuts), kind
    assert data["loss_tolerance"] == LOSS_TOLERANCE["bf16"]
    assert max(row["loss_error"] for row in data["rows"]) < LOSS_TOLERANCE["bf16"] / 5
    assert min(row["predicted_s"] for row in data["rows"]) > 0
    assert data["machine"]["ranks"] == 4
    assert figure.stat().st_size > 10_000


@pytest.mark.thorough
def test_on_one_machine_torchrun_starts_ranks_of_gpus(monkeypatch):
    monkeypatch.setattr(launch, "ENTRY", "cuda_stand_in")
    monkeypatch.syspath_prepend(str(HERE))
    cut = Configuration(1, 1, 2, "gpipe", 2)
    found = launch.run_configuration(TINY, cut, "cuda", 3)
    assert check_losses(found["losses"], TINY, cut, "cpu") < LOSS_TOLERANCE["bf16"]


def test_a_visit_to_a_gpu_takes_its_kernels_or_its_launches_whichever_is_longer():
    cut = Configuration(1, 2, 1, "1f1b", 4)
    scenario = scenario_of(TINY, cut, NODE, base_profile(NODE))
    home = np.arange(2)
    priced = with_update(stage_costs(scenario), scenario, home)
    slow = CalibratedMachine(base_profile(NODE), NODE, (), {(Configuration(), False): HOST})
    waited = with_host_behind(priced, cut, slow, home)
    np.testing.assert_allclose(waited.forward_s, 2e-3)  # two layers of a millisecond, kernels far shorter
    np.testing.assert_allclose(waited.backward_s, 2e-3)
    np.testing.assert_allclose(waited.optimizer_s, 2e-3)
    assert (waited.passes[FORWARD, Cause.HOST] < 2e-3).all()
    quick = {name: 1e-9 * seconds for name, seconds in HOST.items()}
    hidden = with_host_behind(priced, cut, replace(slow, host={(Configuration(), False): quick}), home)
    np.testing.assert_allclose(hidden.forward_s, priced.forward_s)
    np.testing.assert_allclose(hidden.backward_s, priced.backward_s)
    np.testing.assert_allclose(hidden.optimizer_s, priced.optimizer_s)


def test_the_update_of_bf16_weights_moves_its_masters_too():
    cut = Configuration(1, 1, 1, "1f1b", 4)
    seconds = {}
    for precision in ("fp32", "bf16"):
        scenario = scenario_of(replace(SIZES["small"][0], precision=precision), cut, NODE, base_profile(NODE))
        seconds[precision] = with_update(stage_costs(scenario), scenario, np.zeros(1, int)).optimizer_s[0]
    # Adam 28 bytes a parameter; zeroing and dividing gradients of 4 or 2 bytes; two casts between 2 and 4.
    assert seconds["bf16"] / seconds["fp32"] == pytest.approx((28 + 6 + 12) / (28 + 12), rel=0.1)


@pytest.mark.parametrize(("memory_gb", "layers", "hidden"), [(85, 24, 2048), *THOROUGH_SIZES])
def test_the_largest_model_that_a_gpu_trains_is_taken(monkeypatch, memory_gb, layers, hidden):
    monkeypatch.setattr(choose, "describe", lambda device: A100 | {"memory_bytes": memory_gb * 1e9})
    found = choose.choose("auto", False, "cuda")
    assert (found.shape.num_layers, found.shape.hidden_size, found.shape.precision) == (layers, hidden, "bf16")
    assert len(found.suite) > 25
    assert max(cut.num_ranks for cut in found.suite) == 8
    assert str(hidden) in found.notes[0]


@pytest.mark.parametrize("ranks", mostly_thorough([1, 2, 4, 8, 16, 64], (1, 4, 16)))
def test_suites_for_gpus_use_all_ranks_and_every_kind(ranks):
    suite = gpu_suite(ranks, 2)
    assert len({cut.name for cut in suite}) == len(suite)
    assert max(cut.num_ranks for cut in suite) == ranks
    for cut in suite:  # each is a question the simulator takes
        nodes = (-(-cut.num_ranks // 8), 8)
        assert predict(SIZES["small"][0], cut, machine_of(nodes)).step_time_s > 0
    if ranks >= 4:
        kinds = {"tp": 1, "pp": 1, "dp": 1, "cp": 1, "ep": 1}
        assert all(any(getattr(cut, kind) > one for cut in suite) for kind, one in kinds.items())
        assert {"1f1b", "interleaved", "zb_interleaved", "zb_v"} <= {cut.schedule for cut in suite}
        assert {1, 3} == {cut.zero_stage for cut in suite}


def machine_of(nodes):
    """A machine of so many nodes, as if it had been calibrated."""
    return CalibratedMachine(base_profile(NODE), NODE, (), {(Configuration(), False): HOST}, nodes)


def test_what_a_gpu_has_no_memory_for_is_done_without(monkeypatch, tmp_path):
    import torch

    from flopcast_calibration.bench.kernels import Case
    from flopcast_calibration.measurement import Journal
    from flopcast_validation.job import bench, train

    def full(*anything):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train, "single_process", full)
    plain = {"shape": asdict(TINY), "configuration": asdict(Configuration()), "device": "cpu", "steps": 2, "batch": 2}
    assert train.run(plain) is None
    journal = Journal(tmp_path / "kernels.jsonl", {"device": "none"})
    bench.measure_kernels(journal, [Case("gemm", {"m": 1}, full)], "cpu", 0.0)
    assert not journal.done
