"""The papers' tables that ship with flopcast: all of their runs are read, and predicted about as well as the README says."""

import numpy as np

from validation.run import published_runs
from validation.runs.score import score_all


def test_the_shipped_tables_of_runs():
    runs = published_runs()
    assert len(runs) == len({run.id for run in runs}) > 80
    reasons = {run.skipped for run in runs if run.skipped}
    assert not reasons, reasons
    scored = score_all(runs)
    by_table = {}
    for item in scored:
        if item.error is not None:
            by_table.setdefault(item.run.id.rsplit("-", 1)[0], []).append(abs(item.error))
    errors = {name: float(np.mean(values)) for name, values in by_table.items()}
    limits = {
        "megatron-readme-2020-09": 0.07, "megatron-readme-2021-01": 0.08, "zero-bubble": 0.10, "megatron-core-h100": 0.14,
    }  # fmt: skip
    assert {name: errors[name] for name in limits if errors[name] > limits[name]} == {}
