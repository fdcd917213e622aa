"""Who started a process, and what ended a run before."""

import json
import os

import pytest

pytest.importorskip("torch")

from flopcast_calibration.bench import ranks
from flopcast_calibration.bench.ranks import Job, launched_job
from flopcast_calibration.measurement import Journal, read_journal
from sim.errors import ProfileError

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
MACHINE = {"device": "a test", "torch": "1"}


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


def test_an_interrupt_is_not_held_against_what_was_measured_then(tmp_path):
    path = tmp_path / "raw.jsonl"
    for _ in range(4):
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
