"""Sweeps of layouts: what we would have picked, and along which axis we are biased."""

import json
from itertools import pairwise
from math import log

import numpy as np
import pytest
from exported import differences
from scored import score_runs

from flopcast_validation.runs.biases import biases
from flopcast_validation.runs.score import groups_of
from flopcast_validation.runs.sweep_summary import oracle_regret, spread_of, summaries_of
from flopcast_validation.runs.sweeps import GOAL, sweeps_of

LAYOUTS = [
    {"tp": tp, "pp": pp, "dp": 16 // tp // pp, "micro_batch_seqs": size}
    for tp in (1, 2, 4)
    for pp in (1, 2)
    for size in (1, 2, 4)
]


def measured(runs_file, run_row, factor):
    """A sweep whose measurements are the predictions times a factor of the layout."""
    rows = [run_row(id=str(number), **layout) for number, layout in enumerate(LAYOUTS)]
    for row, item in zip(rows, score_runs(runs_file(rows)), strict=True):
        assert item.predicted is not None, item.skipped
        row["measured_value"] = item.predicted * factor(row)
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


def test_biases_are_found_along_the_axis_that_has_them(runs_file, run_row):
    scored = measured(runs_file, run_row, lambda row: 1.1 ** log2(row["tp"]) / 1.05 ** log2(row["micro_batch_seqs"]))
    found = biases(scored)
    assert found["tp"][0] == pytest.approx(-log(1.1), abs=1e-6)  # we take larger tp for too fast
    assert found["micro-batch"][0] == pytest.approx(log(1.05), abs=1e-6)
    assert found["pp"][0] == pytest.approx(0, abs=1e-6)
    assert "chunks" not in found


def log2(text):
    return log(float(text)) / log(2)


def test_groups_sum_their_sweeps_up(runs_file, run_row):
    scored = measured(runs_file, run_row, lambda row: 0.1 if row["id"] == "17" else 1.0)
    (whole,) = (group for group in groups_of(scored) if group.by == "all")
    (sweep,) = sweeps_of(scored)
    assert (whole.sweeps, whole.regret, whole.tau) == (1, sweep.regret, sweep.tau)


def test_repeats_are_one_layout_and_tell_of_chance(runs_file, run_row):
    rows = [run_row(id=str(number), measured_value=10.0 + number, **layout) for number, layout in enumerate(LAYOUTS)]
    rows += [run_row(id=f"again {number}", measured_value=8.0, **LAYOUTS[0]) for number in range(2)]
    (sweep,) = sweeps_of(score_runs(runs_file(rows)))
    assert (sweep.count, len(sweep.layouts)) == (len(LAYOUTS) + 2, len(LAYOUTS))
    assert sweep.layouts[0].measured_s == pytest.approx((10 + 8 + 8) / 3)
    repeated, spread = spread_of([sweep])
    logs = [log(10), log(8), log(8)]
    assert repeated == 1
    assert spread == pytest.approx((sum((each - sum(logs) / 3) ** 2 for each in logs) / 2) ** 0.5)
    (own, whole) = summaries_of([sweep])
    assert own.oracle_regret is None  # one plan that was repeated does not speak for a source
    assert (whole.source, whole.sweeps, whole.median_regret) == ("all", 1, sweep.regret)


def test_a_perfect_planner_is_charged_for_chance_only(runs_file, run_row):
    rows = [run_row(id=str(number), measured_value=10.0, **layout) for number, layout in enumerate(LAYOUTS)]
    (level,) = sweeps_of(score_runs(runs_file(rows)))
    assert oracle_regret(level, 0.0) == 0
    # The least of n normal deviates lies 1.82 of their widths below zero for n = 18 (David and Nagaraja 2003, table).
    assert oracle_regret(level, 0.01) == pytest.approx(0.0182, rel=0.04)
    rows[0]["measured_value"] = 5.0  # so far ahead that chance cannot hide it
    (clear,) = sweeps_of(score_runs(runs_file(rows)))
    assert oracle_regret(clear, 0.01) == 0


def test_kernels_are_no_choice_of_the_planner(runs_file, run_row):
    """Runs of another attention kernel are another sweep, and say so; what runs beside compute is not."""
    said = ("attention/norm kernel: flash_attention2", "attention/norm kernel: torch")
    rows = [run_row(id=f"{note[-1]}{number}", framework="Aleph Alpha in-house", notes=note, **layout)
            for note in said for number, layout in enumerate(LAYOUTS)]  # fmt: skip
    flash, math = sweeps_of(score_runs(runs_file(rows)))
    assert flash.count == math.count == len(LAYOUTS)
    assert flash.name.endswith(", flash 2")
    assert math.name.endswith(", plain softmax")


HELD = {
    # source: sweeps, within 2 %, mean regret, mean tau, as found
    "Aleph Alpha": (10, 7, 0.026, 0.72),
    "Zero Bubble": (10, 10, 0.0, 0.99),
    "vTrain measured multi": (2, 1, 0.025, 0.64),
    "vTrain measured single": (89, 72, 0.024, 0.88),
}
POOR_CELLS = {(1024, 2, 4), (2048, 4, 2)}
"""Hidden size, tp and micro-batch of which vTrain's table of one node has a layer faster than at half the micro-batch."""


MOST = {
    "vTrain measured multi-node": (36, 0.07),
    "vTrain measured single-node": (600, 0.08),
    "Aleph Alpha": (188, 0.08),
    "Megatron-LM 2021 paper Table 1": (10, 0.04),
    "Reducing Activation Recomputation": (9, 0.04),
    "llm-foundry": (145, 0.08),
    "DGX Cloud": (30, 0.08),
    "torchtitan": (29, 0.08),
    "Megatron-Bridge": (70, 0.08),
}
"""source -> (runs that must be modelled at least, mean absolute error of the step time at most)"""


@pytest.mark.slow
def test_published_runs_and_sweeps(measurements, tmp_path):
    # One test, so that the runs are scored once, however many processes share the tests.
    scored = score_runs(measurements / "training_runs.csv")
    runs_are_modelled(scored)
    assert differences(scored, tmp_path) == []  # each as a scenario file says the same
    swept = [item for item in scored if item.run.source.startswith(tuple(HELD))]
    picks_are_near_the_fastest(swept)
    single = one_node(swept)
    single_node_table_is_composed(single)
    two_cells_decide_most_of_what_is_lost_on_one_node(single)


def runs_are_modelled(scored):
    """Step times by source, and how many runs there are any for."""
    assert all(bool(item.skipped) != (item.predicted is not None) for item in scored)
    used = [item for item in scored if item.error is not None]
    poor = {}
    for source, (least, most) in MOST.items():
        precision = "bf16" if source == "DGX Cloud" else ""  # its 8-bit runs have larger errors
        mine = [
            i.error for i in used if i.run.source.startswith(source) and precision in i.run.precision and i.run.dense
        ]
        mean = sum(map(abs, mine)) / max(len(mine), 1)
        if len(mine) < least or mean > most:
            poor[source] = (len(mine), mean)
    assert poor == {}
    mixtures = [abs(item.error) for item in used if not item.run.dense]
    assert len(mixtures) >= 150
    assert sum(mixtures) / len(mixtures) < 0.23
    assert len(used) >= 1550
    assert sum(item.fits is False for item in used) <= 12  # all of them ran
    assert 0.85 <= sum(item.covered for item in used) / len(used) <= 0.97


def picks_are_near_the_fastest(published):
    """How much slower than the fastest our picks ran, by source."""
    for found in summaries_of(sweeps_of(published))[:-1]:
        sweeps, within, regret, tau = next(held for source, held in HELD.items() if found.source.startswith(source))
        assert found.sweeps == sweeps, found.source
        assert found.within >= within, found.source
        assert found.mean_regret <= regret + 0.002, found.source
        assert found.mean_tau >= tau - 0.02, found.source
        assert 0 <= found.median_regret <= max(GOAL, found.mean_regret)


def one_node(published):
    """vTrain's runs on one node: (hidden, tp, micro-batch) cell, layers, pp, dp, micro-batches, seconds, run."""
    found = []
    for item in published:
        if item.run.source.startswith("vTrain measured single"):
            given = item.run.choices[0]
            cell = given.model.hidden_size, given.plan.tp, given.plan.microbatch_size
            found.append((cell, given.model.num_layers, given.plan.pp, given.plan.dp, given.num_microbatches,
                          item.run.measured, item))  # fmt: skip
    return found


def single_node_table_is_composed(single):
    """Its times lie on straight lines in the number of micro-batches, to the last digit: runs timed one by one scatter.

    So each cell is one measurement, and a poor one moves every sweep that it stands in.
    """
    lines = {}
    for cell, layers, pp, dp, batches, seconds, _ in single:
        lines.setdefault((cell, layers, pp, dp), []).append((batches, seconds))
    lines = [np.array(line).T for line in lines.values() if len(line) >= 3]
    assert len(lines) > 100
    for batches, seconds in lines:
        assert np.polyval(np.polyfit(batches, seconds, 1), batches) == pytest.approx(seconds, abs=2e-6)


def two_cells_decide_most_of_what_is_lost_on_one_node(single):
    """Where they were fastest we lose; without them we lose a third, and their neighbours' mean would lose as much."""
    sweeps = sweeps_of([item for *_, item in single])
    lost = [each for each in sweeps if each.regret > GOAL]
    cells = {item.run.id: cell for cell, *_, item in single}
    to_them = sum(cells[each.fastest.runs[0].run.id] in POOR_CELLS for each in lost)
    assert (to_them, len(lost)) == (12, 16)
    without = sweeps_of([item for cell, *_, item in single if cell not in POOR_CELLS])
    assert np.mean([each.regret for each in without]) < 0.008
    # One who knows every time, but takes a cell's layer for the mean of those at half and twice the micro-batch.
    layer = layer_times(single)
    assert all(layer[cell] < layer[cell[0], cell[1], cell[2] // 2] for cell in POOR_CELLS)
    guessed = {}
    for cell, layers, pp, _, batches, seconds, item in single:
        near = [layer.get((*cell[:2], cell[2] * factor)) for factor in (0.5, 2)]
        smooth = (near[0] * near[1]) ** 0.5 if all(near) else layer[cell]
        guessed[item.run.id] = seconds + (smooth - layer[cell]) * layers / pp * (batches + pp - 1)
    regrets = []
    for each in sweeps:
        picked = min(each.layouts, key=lambda layout: guessed[layout.runs[0].run.id])
        regrets.append(picked.measured_s / each.fastest.measured_s - 1)
    assert np.mean(regrets) == pytest.approx(0.020, abs=0.001)
    assert sum(regret <= GOAL for regret in regrets) == 71


def layer_times(single):
    """Seconds of a layer and micro-batch of every cell: what more layers add to steps that are otherwise alike."""
    alike = {}
    for cell, layers, pp, dp, batches, seconds, _ in single:
        alike.setdefault((cell, pp, dp, batches), []).append((layers, seconds))
    pairs = {}
    for (cell, pp, _, batches), steps in alike.items():
        for (few, less), (many, more) in pairwise(sorted(steps)):
            pairs.setdefault(cell, []).append(((many - few) / pp * (batches + pp - 1), more - less))
    return {
        cell: np.prod(np.array(each), axis=1).sum() / (np.array(each)[:, 0] ** 2).sum() for cell, each in pairs.items()
    }


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
