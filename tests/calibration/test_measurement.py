"""The journal of a calibration and the ranks that fill it: nothing measured is lost, whoever started them and whatever ends them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rows import rows

from flopcast_calibration.bench import ranks
from flopcast_calibration.bench.collectives import collective_shapes, members
from flopcast_calibration.bench.ranks import Job, launched_job
from flopcast_calibration.measurement import (
    UNSTEADY,
    Journal,
    Measurement,
    least_disturbed,
    read_journal,
    write_journal,
)
from sim.errors import ProfileError

MACHINE = {"device": "a test", "torch": "1"}
ITEMS = [Measurement("gemm", {"m": 8, "n": 8, "k": size, "dtype": "float32"}, 1e-3 * size) for size in (1, 2, 3)]


def test_what_is_added_is_on_disk_at_once_and_read_back(tmp_path):
    path = tmp_path / "raw.jsonl"
    journal = Journal(path, MACHINE)
    for item in ITEMS:
        journal.add(item)
        assert read_journal(path).measurements[-1] == item
    assert read_journal(path).machine == MACHINE
    assert Journal(path, MACHINE).done.keys() == {item.key for item in ITEMS}


def test_another_machine_is_not_mixed_in(tmp_path):
    path = tmp_path / "raw.jsonl"
    write_journal(path, MACHINE, ITEMS)
    with pytest.raises(ProfileError, match="another machine"):
        Journal(path, {"device": "another", "torch": "1"})


GOOD = {"kind": "gemm", "shape": {"m": 8, "n": 8, "k": 8, "dtype": "bfloat16"}, "time_s": 1e-3}


@rows(
    ("line", "says"),
    [
        ("{", "line 3 is not a measurement"),
        ({"kind": "launch", "shape": {}, "time_s": -1}, "time_s = -1 is not a positive time"),
        ({"kind": "gem", "shape": {}, "time_s": 1}, "unknown kind 'gem'"),
        ({"kind": "gemm", "shape": {}}, "line 3"),
        ({"kind": "gemm", "shape": {}, "time_s": 1, "colour": "red"}, "colour"),
        ({**GOOD, "shape": {"n": 8, "k": 8}}, "line 3 is not a measurement: .*needs m"),
        ({**GOOD, "shape": {"m": "x", "n": 8, "k": 8}}, "line 3 is not a measurement: .*m = 'x' is not a number"),
        ({**GOOD, "shape": {"m": float("nan"), "n": 8, "k": 8}}, "line 3 is not a measurement: .*is not a number"),
        ({**GOOD, "shape": [8, 8, 8]}, "line 3 is not a measurement: .*must hold values by name"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, says):
    path = tmp_path / "raw.jsonl"
    write_journal(path, MACHINE, ITEMS[:1])
    path.write_text(f"{path.read_text()}{line if isinstance(line, str) else json.dumps(line)}\n{json.dumps(GOOD)}\n")
    with pytest.raises(ProfileError, match=says):
        read_journal(path)


ROOT = Path(__file__).parents[2]
GEMMS = [Measurement("gemm", {"m": 64 * i, "n": 64, "k": 64, "dtype": "float32"}, 1e-5 * i) for i in range(1, 9)]


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "raw.jsonl"
    write_journal(path, MACHINE, GEMMS[:2])
    path.write_text(path.read_text().rstrip("\n"))
    Journal(path, MACHINE).add(GEMMS[2])
    assert list(read_journal(path).measurements) == GEMMS[:3]


def test_what_is_unsteady_is_measured_again_and_the_least_disturbed_counts(tmp_path):
    journal = Journal(write(tmp_path, []), MACHINE)
    shape = GEMMS[0].shape
    assert journal.lacks("gemm", shape)
    journal.add(Measurement("gemm", shape, 3e-5, spread=2 * UNSTEADY))
    assert not journal.lacks("gemm", shape)
    assert journal.lacks("gemm", shape, turn=2)
    journal.add(Measurement("gemm", shape, 1e-5, spread=UNSTEADY / 2))
    journal.add(Measurement("gemm", shape, 2e-5, spread=2 * UNSTEADY))
    assert not journal.lacks("gemm", shape, turn=4)
    assert [item.time_s for item in least_disturbed(read_journal(journal.path).measurements)] == [1e-5]


def test_of_pairs_the_one_whose_parts_were_undisturbed_counts():
    shape = {"operation": "all_reduce", "num_ranks": 2, "nbytes": 4096}
    calm = Measurement("interference", shape, 3e-3, extra={"gemm_s": 1e-3, "multiplies": 1, "collective_s": 1e-3})
    busy = Measurement("interference", shape, 2e-3, extra={"gemm_s": 9e-3, "multiplies": 3, "collective_s": 1e-3})
    assert least_disturbed([busy, calm]) == least_disturbed([calm, busy]) == [calm]


def write(folder, items):
    path = folder / "raw.jsonl"
    write_journal(path, MACHINE, items)
    return path


def test_groups_are_every_size_in_a_node_then_whole_nodes():
    shapes = list(collective_shapes(16, quick=False, largest=2**10, ranks_per_node=4))
    sizes = [(shape["num_ranks"], shape["num_nodes"]) for shape in shapes if shape["operation"] == "all_reduce"]
    # … and last a group for each of a node's GPUs over all nodes, all at once.
    assert sizes == [(2, 1), (3, 1), (4, 1), (8, 2), (12, 3), (16, 4), (4, 4)]
    sends = [shape for shape in shapes if shape["operation"] == "send"]
    rails = ((0, 4), (1, 5), (2, 6), (3, 7))
    assert [members(shape, 4) for shape in sends] == [((0, 1),), ((0, 4),), rails]
    (many,) = (shape for shape in shapes if shape["operation"] == "all_reduce" and "groups" in shape)
    assert members(many, 4) == tuple(tuple(range(i, 16, 4)) for i in range(4))


# A suite of two small parts, run by the command line in a process of its own.
SMALL = """
import sys
from flopcast_calibration.bench import kernels, run
run.kernel_cases = lambda *_: [kernels.gemm_case(64, 64, 16 * i, "float32", "nt") for i in range(1, 9)]
run.collective_shapes = lambda ranks, quick, largest, per_node: (
    {"operation": "all_reduce", "num_ranks": 2, "num_nodes": 1, "nbytes": 2**e} for e in range(10, {last})
)
run.interference_shapes = lambda *_: ()
run.TURNS = 1
from sim.cli import main
if __name__ == "__main__":
    main()
"""


def small_suite(folder, last):
    script = folder / "small.py"
    script.write_text(SMALL.replace("{last}", str(last)))
    return script, {**os.environ, "PYTHONPATH": str(ROOT)}


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.05)


@pytest.mark.thorough
def test_an_interrupt_during_collectives_is_quiet_and_loses_nothing(tmp_path):
    pytest.importorskip("torch")
    script, environment = small_suite(tmp_path, 28)
    raw = tmp_path / "mine.jsonl"
    command = [sys.executable, str(script), "calibrate", "run", "--device", "cpu", "--ranks", "2"]
    process = subprocess.Popen(
        [*command, "-o", str(tmp_path / "mine.yaml")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores interrupts
    )
    wait_for(lambda: raw.exists() and raw.read_text().count('{"kind": "collective"') >= 5)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: the process and its ranks
    _, said = process.communicate(timeout=30)
    # A shell sees 130 either way; met inside exec, which dataclasses use, Python ends by the signal itself.
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in said, said
    wait_for(lambda: not group_lives(process.pid))
    kept = read_journal(raw)
    assert not kept.cut_end
    assert len(kept.of("gemm")) == 8
    assert len(kept.of("collective")) >= 2


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


SRUN = {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NUM_NODES": "2", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, None),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Job(3, 8, 8, 3)),
        ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Job(9, 16, 8, 1)),
        (SRUN, Job(9, 16, 8, 1)),
        # The batch script itself, or a shell of salloc: one process, whatever the job may start later.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
    ],
)
def test_a_launchers_ranks_are_known_by_its_environment(environment, job):
    assert launched_job(environment) == job


def test_nodes_with_different_numbers_of_ranks_are_refused():
    with pytest.raises(ProfileError, match="10 ranks, 4 on this node: start as many on every node"):
        launched_job({"RANK": "0", "WORLD_SIZE": "10", "LOCAL_WORLD_SIZE": "4"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node[03-05,7],other", "node03"), ("alpha,beta", "alpha"), ("gpu-12", "gpu-12"), ("", "localhost")],
)
def test_sruns_ranks_meet_on_the_first_node(monkeypatch, nodes, first):
    known = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    given = {"SLURM_STEP_NODELIST": nodes, "SLURM_JOB_ID": "1234567"}
    environment = {name: value for name, value in os.environ.items() if name not in known} | given
    monkeypatch.setattr(ranks.os, "environ", environment)
    ranks.enter(Job(9, 16, 8, 1))
    assert [environment[name] for name in known[2:]] == ["9", "16", "1", "8"]
    assert environment["MASTER_ADDR"] == first
    assert 20_000 <= int(environment["MASTER_PORT"]) < 40_000
    environment["MASTER_ADDR"] = "torchrun's own"
    ranks.enter(Job(9, 16, 8, 1))
    assert environment["MASTER_ADDR"] == "torchrun's own"


SHAPE = {"operation": "all_reduce", "num_ranks": 8, "nbytes": 1024}


def started(path):
    """A run that is about to measure, and never comes back."""
    journal = Journal(path, MACHINE)
    wanted = journal.lacks("collective", SHAPE)
    if wanted:
        journal.begin("collective", SHAPE)
    return wanted


def test_what_ended_a_run_twice_is_left_out_with_the_reason(tmp_path):
    path = tmp_path / "raw.jsonl"
    assert started(path)
    assert started(path)  # once more: a node may have been rebooted
    assert not started(path)
    (failure,) = read_journal(path).failures
    assert str(failure).startswith("collective (")
    assert str(failure).endswith("): the run ended 2 times while it was measured")
    path = tmp_path / "interrupted.jsonl"
    for _ in range(4):  # an interrupt is not held against what was measured then
        assert started(path)
        Journal(path, MACHINE).interrupted()
    assert not read_journal(path).failures


def test_what_failed_stays_failed_whatever_was_begun(tmp_path):
    path = tmp_path / "raw.jsonl"
    journal = Journal(path, MACHINE)
    journal.begin("collective", SHAPE)
    journal.fail("collective", SHAPE, "CUDA out of memory")
    assert not Journal(path, MACHINE).lacks("collective", SHAPE)
    assert [item.reason for item in read_journal(path).failures] == ["CUDA out of memory"]
    assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())
