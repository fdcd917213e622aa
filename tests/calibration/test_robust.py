"""What goes wrong while a machine is measured: interrupts, cut files, bad targets, several launchers' ranks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flopcast_calibration.bench.collectives import collective_shapes, members
from flopcast_calibration.measurement import (
    UNSTEADY,
    Journal,
    Measurement,
    least_disturbed,
    read_journal,
    write_journal,
)

ROOT = Path(__file__).parents[2]
MACHINE = {"device": "a test", "torch": "1"}
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
