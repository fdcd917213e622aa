"""Sweeps of layouts: what we would have picked."""

import json

import numpy as np
import pytest
from scored import score_runs

from flopcast_validation.runs.sweeps import GOAL, summaries_of, sweeps_of

LAYOUTS = [
    {"tp": tp, "pp": pp, "dp": 16 // tp // pp, "micro_batch_seqs": size}
    for tp in (1, 2, 4)
    for pp in (1, 2)
    for size in (1, 2, 4)
]

PREDICTED: list[float] = []
"""What we say of each layout; the same in every test."""


def measured(runs_file, run_row, factor):
    """A sweep whose measurements are the predictions times a factor of the layout."""
    rows = [run_row(id=str(number), **layout) for number, layout in enumerate(LAYOUTS)]
    if not PREDICTED:
        PREDICTED.extend(item.predicted for item in score_runs(runs_file(rows)))
    for row, predicted in zip(rows, PREDICTED, strict=True):
        row["measured_value"] = predicted * factor(row)
    return score_runs(runs_file(rows))


def test_the_pick_and_the_fastest(runs_file, run_row):
    (exact,) = sweeps_of(measured(runs_file, run_row, lambda row: 1.3))
    assert (exact.regret, exact.believed_loss) == (0, 0)
    assert exact.tau == pytest.approx(1)
    assert exact.count == len(exact.layouts) == len(LAYOUTS)
    assert set(exact.differ) >= {"tp", "pp", "dp", "microbatch_size"}
    # One other layout was in truth faster by far.
    (missed,) = sweeps_of(measured(runs_file, run_row, lambda row: 0.1 if row["id"] == "17" else 1.0))
    (fastest,), (picked,) = missed.fastest.runs, missed.picked.runs
    assert fastest.run.id == "17"
    assert missed.regret == pytest.approx(picked.run.measured / fastest.run.measured - 1)
    assert missed.believed_loss == pytest.approx(fastest.predicted / picked.predicted - 1)
    assert missed.tau < 1
    data = json.loads(json.dumps(missed.to_dict(), allow_nan=False))
    assert data["fastest"]["plan"]["tp"] == 4


def test_repeats_are_one_layout(runs_file, run_row):
    rows = [run_row(id=str(number), measured_value=10.0 + number, **layout) for number, layout in enumerate(LAYOUTS)]
    rows += [run_row(id=f"again {number}", measured_value=8.0, **LAYOUTS[0]) for number in range(2)]
    (sweep,) = sweeps_of(score_runs(runs_file(rows)))
    assert (sweep.count, len(sweep.layouts)) == (len(LAYOUTS) + 2, len(LAYOUTS))
    assert sweep.layouts[0].measured_s == pytest.approx((10 + 8 + 8) / 3)
    (_, whole) = summaries_of([sweep])
    assert (whole.source, whole.sweeps, whole.median_regret) == ("all", 1, sweep.regret)


HELD = {
    # source: sweeps, within 2 %, mean regret, mean tau, mean error, as found
    "Aleph Alpha": (10, 7, 0.026, 0.72, 0.08),
    "Zero Bubble": (10, 10, 0.0, 0.99, 0.08),
    "vTrain measured multi": (2, 1, 0.025, 0.64, 0.07),
}


@pytest.mark.thorough
def test_picks_are_near_the_fastest(measurements, scored_published):
    """How far off sweeps of layouts are, and how much slower than the fastest our picks ran, by source."""

    shipped = [item for item in scored_published if item.run.source.startswith(tuple(HELD))]
    scored = shipped
    wrong = {}
    for found in summaries_of(sweeps_of(scored))[:-1]:
        (source, held) = next((source, held) for source, held in HELD.items() if found.source.startswith(source))
        errors = [abs(item.error) for item in scored if item.run.source.startswith(source)]
        sweeps, within, regret, tau, error = held
        good = found.mean_regret <= regret + 0.002 and found.mean_tau >= tau - 0.02 and np.mean(errors) <= error
        good &= 0 <= found.median_regret <= max(GOAL, found.mean_regret)
        if found.sweeps != sweeps or found.within < within or not good:
            wrong[source] = found, float(np.mean(errors))
    assert wrong == {}


def test_command(runs_file, run_row, tmp_path):
    from typer.testing import CliRunner

    from flopcast_validation.cli import app

    rows = [run_row(id=str(number), measured_value=3 + number / 10, **layout) for number, layout in enumerate(LAYOUTS)]
    out = tmp_path / "out.json"
    outcome = CliRunner().invoke(app, ["--runs", str(runs_file(rows)), "--sweeps", "--json", str(out)])
    assert outcome.exit_code == 0, outcome.output
    data = json.loads(out.read_text())
    (sweep,) = data["sweeps"]
    assert sweep["runs"] == len(LAYOUTS)
    assert [each["sweeps"] for each in data["sweep_summaries"]] == [1, 1]
    assert "Kendall's" in outcome.output
    assert max(len(line) for line in outcome.output.splitlines()) <= 80
    alone = CliRunner().invoke(app, ["--runs", str(runs_file([run_row()])), "--sweeps"])
    assert "no sweep of three layouts or more" in alone.output
