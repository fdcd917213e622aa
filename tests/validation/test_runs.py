"""`flopcast validate --runs`: every row scored or refused, duplicates and brackets and pipes, and how good the numbers are."""

import json

import pytest
from scored import score_runs
from typed import typed
from typer.testing import CliRunner

from flopcast_validation.cli import app
from flopcast_validation.runs.score import groups_of, to_json
from sim.errors import FlopcastError

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
