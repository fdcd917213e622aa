"""What authors' public code says of runs beyond their tables: zero bubble's attention, precision, sends."""

import csv
import re

import pytest

from flopcast_calibration.readers.training_runs import read_training_runs
from sim.estimate import estimate

GIB = 2**30


def test_zero_bubble_rows_are_filled_from_its_scripts(runs_file, run_row):
    rows = [
        run_row(source="Zero Bubble Pipeline Parallelism", framework="Megatron-LM (modified)", precision="", vocab="",
                schedule=schedule, tp=1, pp=4, dp=1, num_gpus=4)
        for schedule in ("1f1b", "zb-1p")
    ]  # fmt: skip
    waits, beside = (run.choices[0] for run in read_training_runs(runs_file(rows)))
    for scenario in (waits, beside):
        assert scenario.training.precision == scenario.stack.gradient_precision == "fp16"
        assert scenario.model.vocab_size == 32000
        assert scenario.stack.attention == "math"
    assert (waits.stack.overlap_p2p, beside.stack.overlap_p2p) == (False, True)


def test_what_a_row_says_goes_first(runs_file, run_row):
    row = run_row(source="Zero Bubble Pipeline Parallelism", framework="Megatron-LM", precision="bf16", vocab=50000)
    (run,) = read_training_runs(runs_file([row]))
    assert (run.choices[0].training.precision, run.choices[0].model.vocab_size) == ("bf16", 50000)


def test_zero_bubble_memory_says_that_scores_were_kept(measurements, tmp_path):
    """The memory that the paper measured, schedule by schedule: with flash attention it would be a fifth to a half less."""
    path = tmp_path / "runs.csv"
    with (measurements / "training_runs.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"].startswith("Zero Bubble")]
    # One row a model and schedule: the memory is the peak over numbers of micro-batches.
    rows = list({(row["hidden"], row["schedule"]): row for row in rows if "mem_gb" in row["notes"]}.values())
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    errors = {}
    for row, run in zip(rows, read_training_runs(path), strict=True):
        used = max(estimate(run.choices[0]).memory, key=lambda use: use.total)
        allocated = used.total - used.framework - used.fragmentation  # PyTorch's count knows neither
        errors[row["hidden"], row["schedule"]] = (
            allocated / GIB / float(re.search(r"mem_gb=(\d+)", row["notes"])[1]) - 1
        )
    assert len(errors) >= 12
    assert sum(errors.values()) / len(errors) == pytest.approx(-0.06, abs=0.02)
    assert max(map(abs, errors.values())) < 0.10
