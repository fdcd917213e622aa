"""From measuring to a profile that estimates use: the suite on this machine, the command line, what matters."""

from functools import partial
from pathlib import Path

import pytest
from typed import typed

from flopcast_calibration.build import calibrate
from flopcast_calibration.commands.matters import effects
from flopcast_calibration.measurement import MeasurementSet
from flopcast_calibration.node import measured_cluster
from sim import estimate, load_scenario
from sim.errors import ProfileError
from sim.specs import Profile, load_preset

DATA = Path(__file__).parents[2] / "calibration" / "data"


def test_without_measurements_there_is_no_profile():
    node, base = measured_cluster({}, "dgx-a100-80gb"), Profile.read(load_preset("profiles", "a100"), "profile")
    with pytest.raises(ProfileError, match="fitted, for want of measurements: memory, gemm, attention, nvlink, send"):
        calibrate("mine", MeasurementSet({}, ()), node, base)


def test_command_line_fits_shows_draws_and_compares(tmp_path):
    raw, profile, figure = tmp_path / "raw.jsonl", tmp_path / "mine.yaml", tmp_path / "fit.png"
    logs, node = [DATA / "dgx-a100-all-reduce.txt", DATA / "dgx-a100-gemm.csv"], ("--node", "dgx-a100-80gb")
    result = typed("calibrate", "fit", *logs, *node, "-o", profile, "--draws", 2)
    assert result.returncode == 0, result.stderr
    assert "gemm              8 measurements" in result.stdout
    shown = typed("calibrate", "show", profile, "--png", figure, env={"COLUMNS": "150"})
    assert shown.returncode == 0, shown.stderr
    for line in ("measured_flop 2.147 GFLOP to 8.796 TFLOP", "half_length 200.0 tokens", "base_latency 8.4 µs"):
        assert line in " ".join(shown.stdout.split())
    assert figure.stat().st_size > 10_000
    assert typed("calibrate", "compare", "a100", profile).returncode == 0
    # A fit of other data does not take the place of a run's journal, the only copy of what it measured.
    raw.write_bytes(before := (DATA / "cpu-2core.jsonl").read_bytes())
    over = typed("calibrate", "fit", profile.with_suffix(".jsonl"), "-o", raw.with_suffix(".yaml"), "--draws", 2)
    assert over.returncode == 2
    assert "holds what calibrate run measured" in over.stderr
    assert raw.read_bytes() == before


def test_this_machine_is_measured_and_an_interrupted_run_goes_on(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    from flopcast_calibration.bench import kernels, run
    from flopcast_calibration.commands.measure import _reporter

    cases = [kernels.gemm_case(64, 64, 2**e, "float32", "nt") for e in (4, 6, 8)]
    cases += [kernels.memory_case("copy", 64, 1024, "float32"), kernels.launch_case("float32"), kernels.adam_case(1000)]
    cases += [kernels.bmm_case(2, 32, 32, 32, "float32"), kernels.attention_case(2, 64, 16, "float32", True, True)]
    monkeypatch.setattr(run, "kernel_cases", lambda device, quick, scenario: cases)
    path = tmp_path / "raw.jsonl"
    seen, in_lines = [], _reporter(None)
    data = run.run_suite(path, "cpu", quick=True, ranks=1, report=lambda *each: (seen.append(each), in_lines(*each)))
    assert len(data.measurements) == len(cases)
    assert all(item.time_s > 0 for item in data.measurements)
    assert ("gemm", 3, len(cases)) in seen
    assert capsys.readouterr().err.count("measuring gemm:") == 1  # without a terminal a kind is told once
    before = path.read_text()
    assert run.run_suite(path, "cpu", quick=True, ranks=1).measurements == data.measurements
    assert path.read_text() == before  # nothing was measured again


@pytest.mark.thorough
def test_collectives_and_a_multiply_beside_one_run_on_two_ranks(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from flopcast_calibration.bench import collectives, run

    monkeypatch.setattr(run, "kernel_cases", lambda device, quick, scenario: [])
    shapes = [{"operation": name, "num_ranks": 2, "nbytes": 4096} for name in collectives.OPERATIONS]
    monkeypatch.setattr(run, "collective_shapes", lambda *_: iter(shapes))
    pair = {"operation": "all_reduce", "num_ranks": 2, "nbytes": 2**16, "m": 64, "n": 64, "k": 64, "dtype": "float32"}
    monkeypatch.setattr(run, "interference_shapes", lambda *_: iter([pair]))
    monkeypatch.setattr(run, "TURNS", 1)
    data = run.run_suite(tmp_path / "raw.jsonl", "cpu", quick=True, ranks=2)
    assert {item.shape["operation"] for item in data.of("collective")} == set(collectives.OPERATIONS)
    (item,) = data.of("interference")
    # How long they took a shared machine cannot say; test_stand_in.py has a clock of its own.
    assert min(item.time_s, item.extra["gemm_s"], item.extra["collective_s"]) > 0


SCENARIO = Path(__file__).parents[2] / "scenarios" / "korthikanti-2022" / "22b-selective.yaml"


def test_every_number_is_tried_and_moves_the_step_the_right_way():
    load = partial(load_scenario, SCENARIO)
    tried: list[str] = []
    found = effects(load(), lambda override: load([override]), tried.append)
    changes = {each.path: each.change for each in found}
    refused = {said.removeprefix("trying ") for said in tried} - set(changes)
    assert {path.rpartition(".")[2] for path in refused} <= {"oversubscription"}  # 1 is the least
    assert len(changes) > 60
    assert next(iter(changes)) in (
        "cluster.node.gpu.peak.fp16",
        "profile.gemm.max_efficiency",
        "cluster.node.gpu.sustained_clock",
    )
    longer = ("cluster.node.gpu.memory_bandwidth", "cluster.node.nvlink_bandwidth", "profile.nvlink.efficiency")
    assert all(changes[path] > 0.001 for path in longer)
    assert changes["profile.nvlink.base_latency"] < 0 == changes["cluster.node.gpu.memory"]
    first = found[0]
    less = estimate(load([f"{first.path}={0.9 * first.value!r} {first.unit}".strip()])).step_time_s
    assert less / estimate(load()).step_time_s - 1.0 == pytest.approx(first.change)
