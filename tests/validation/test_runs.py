"""`flopcast validate --runs`: every row scored or refused, duplicates and brackets and pipes, and how good the numbers are."""

import json

import numpy as np
import pytest
from scored import score_runs
from typed import typed
from typer.testing import CliRunner

from flopcast_validation.cli import app
from flopcast_validation.runs.listing import export_runs, scenario_file
from flopcast_validation.runs.score import groups_of, to_json
from flopcast_validation.runs.sweeps import GOAL, summaries_of, sweeps_of
from sim import estimate, load_scenario
from sim.errors import FlopcastError, SpecError

ROW_KEYS = {"id", "source", "gpu", "unit", "measured", "predicted", "error", "interval", "fitted", "skipped"}


# The table


def test_good_rows_are_scored_beside_bad_ones(runs_file, run_row):
    rows = [run_row(), run_row(id="two", gpu="TPU"), run_row(id="three", seq_len="nan"), run_row(id="four", dp="x")]
    good, *bad = score_runs(runs_file([*rows, run_row(id="five", zero_stage=7)]))
    assert good.skipped is None
    assert good.error == pytest.approx(good.step_time_s / 3.1 - 1)
    assert good.interval[0] < good.predicted < good.interval[1]
    assert [item.run.id for item in bad] == ["two", "three", "four", "five"]
    assert all(item.skipped and item.error is None for item in bad)


def test_rates_and_times_of_one_run_have_the_same_time_error(runs_file, run_row):
    tokens = 64 * 2048
    rows = [run_row(), run_row(measured_unit="tokens_per_s", measured_value=tokens / 3.1)]
    by_time, by_rate = score_runs(runs_file(rows))
    assert by_rate.error == pytest.approx(by_time.error)
    assert by_rate.predicted == pytest.approx(tokens / by_time.predicted)
    # A rate's own error has the other sign: too slow is too few tokens.
    assert by_rate.to_dict()["error"] == pytest.approx(1 / (1 + by_time.error) - 1)
    assert by_rate.interval[0] < by_rate.predicted < by_rate.interval[1]


def test_rows_with_the_same_id_keep_their_own_measurement(runs_file, run_row):
    rows = [run_row(measured_value=value, model_name=name) for value, name in ((3.0, "a"), (6.0, "b"), (9.0, "c"))]
    scored = score_runs(runs_file(rows))
    # Each is predicted from the median of the other two, whatever it is called.
    assert [item.constant_error for item in scored] == pytest.approx([7.5 / 3 - 1, 6 / 6 - 1, 4.5 / 9 - 1])


def test_json_has_rows_and_groups_and_no_nan(runs_file, run_row):
    rows = [run_row(), run_row(id="bad", measured_value="nan"), run_row(id="moe", experts=8, gpu="H100-SXM")]
    scored = score_runs(runs_file(rows))
    data = json.loads(json.dumps(to_json(scored, groups_of(scored)), allow_nan=False))
    assert set(data) == {"rows", "groups"}
    assert all(row.keys() >= ROW_KEYS for row in data["rows"])
    assert [row["measured"] for row in data["rows"]] == [3.1, None, 3.1]
    (whole,) = (group for group in data["groups"] if group["by"] == "all")
    assert (whole["count"], whole["skipped"]) == (1, 2)
    (empty,) = (group for group in data["groups"] if (group["by"], group["name"]) == ("gpu", "H100-SXM"))
    assert empty["mean_error"] is None


# The command line


def test_command_line(runs_file, run_row, tmp_path):
    rows = [run_row(id="[red]x[/b]", source="[/x]"), run_row(id="bad", gpu="[/y] GPU")]
    path, out = runs_file(rows), tmp_path / "out.json"
    result = typed("validate", "--runs", path, "--json", out, "--figure", tmp_path / "out.png", "--every")
    assert result.returncode == 0
    assert "[red]x[/b]" in result.stdout
    assert "unknown GPU '[/y] GPU'; known: V100" in result.stdout
    assert len(json.loads(out.read_text())["rows"]) == 2
    assert (tmp_path / "out.png").stat().st_size > 1000


def test_runs_and_memory_together(runs_file, run_row, tmp_path):
    runs, layouts = runs_file([run_row()]), runs_file([run_row(outcome="ok"), run_row(outcome="OOM")], "memory.csv")
    typed("validate", "--runs", runs, "--memory", layouts, "--json", tmp_path / "both.json")
    both = json.loads((tmp_path / "both.json").read_text())
    assert set(both) == {"rows", "groups", "memory"}
    assert both["rows"][0]["id"] == "one"
    assert [row["row"] for row in both["memory"]["rows"]] == [1, 2]


def test_mistakes_are_refused_before_any_work(runs_file, run_row, tmp_path):
    path = runs_file([run_row()])
    (tmp_path / "some.csv").write_text("id,gpu\n1,2\n")
    for arguments, says in (
        (
            ("--runs", tmp_path / "some.csv"),
            "lacks the columns num_gpus, layers, hidden, heads, seq_len, measured_value",
        ),
        (("--runs", path, "--json", tmp_path / "no" / "out.json"), "make it first (mkdir -p"),
        (("--runs", path, "--figure", tmp_path / "out.docx"), "must end in .png or .svg or .pdf"),
        (("--runs", path, "--json", tmp_path), "is a folder"),
        (("--runs", path, "--profile", "h10"), "did you mean 'h100'"),
    ):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert isinstance(result.exception, FlopcastError)
        assert says in str(result.exception)
        assert result.stdout.strip() == ""


def differences(scored, folder):
    """Files whose estimate is not what was found for their row."""
    predicted = [item for item in scored if item.scenario is not None]
    paths = export_runs(scored, folder)
    assert len(paths) == len(predicted) == len({*paths})
    found = []
    for path, item in zip(paths, predicted, strict=True):
        answer = estimate(load_scenario(path))
        ends = sorted(item.run.in_unit(seconds, item.scenario) for seconds in answer.step_time_interval_s)
        if (answer.step_time_s, *ends) != pytest.approx((item.step_time_s, *item.interval), rel=1e-9):
            found.append((path.name, answer.step_time_s, item.step_time_s))
    return found


@pytest.mark.slow
def test_shipped_rows_are_files_that_say_the_same(scored_some, tmp_path):
    assert differences(scored_some[::16], tmp_path) == []


def test_a_file_says_where_it_is_from_and_what_was_inferred(runs_file, run_row, tmp_path):
    rows = [run_row(id="a/b c", recompute="", framework="NeMo"), run_row(id="A B c"), run_row(id="no", gpu="TPU")]
    path = runs_file(rows)
    result = CliRunner().invoke(app, ["--runs", str(path), "--export", str(tmp_path / "out"), "--set", "stack.fused_norm=false"])  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "written: 2 scenario files in" in result.output
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["A-B-c-2.yaml", "a-b-c.yaml"]
    text = (tmp_path / "out" / "a-b-c.yaml").read_text()
    assert "# a/b c: " in text
    assert "# measured: 3.1 iteration_s\n" in text
    assert "# - recompute none: the framework's recipes (NVIDIA/NeMo-Framework-Launcher" in text
    assert "stack: {framework: nemo, version: latest, fused_norm: false}" in text
    scenario = load_scenario(tmp_path / "out" / "a-b-c.yaml")
    assert (scenario.name, scenario.stack.framework, scenario.stack.fused_norm) == ("a/b c", "nemo", False)


def test_what_was_not_predicted_has_no_file(runs_file, run_row, tmp_path):
    (item,) = score_runs(runs_file([run_row(gpu="TPU")]))
    assert export_runs([item], tmp_path / "out") == []
    with pytest.raises(ValueError, match="was not predicted"):
        scenario_file(item)
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot write to"):
        export_runs([item], tmp_path / "file")


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
def test_picks_are_near_the_fastest(scored_published):
    """How far off sweeps of layouts are, and how much slower than the fastest our picks ran, by source."""
    scored, wrong = [item for item in scored_published if item.run.source.startswith(tuple(HELD))], {}
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
