"""Every modelled row is a scenario: the file that is written for it says what validation says, here and on any machine."""

import pytest
from scored import score_runs
from typer.testing import CliRunner

from flopcast_validation.cli import app
from flopcast_validation.runs.export import export_runs, scenario_file
from sim import estimate, load_scenario
from sim.errors import SpecError


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
    rows = [run_row(id="a/b c", recompute="", framework="NeMo"), run_row(id="a/b c"), run_row(id="no", gpu="TPU")]
    path = runs_file(rows)
    result = CliRunner().invoke(app, ["--runs", str(path), "--export", str(tmp_path / "out"), "--set", "stack.fused_norm=false"])  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "written: 2 scenario files in" in result.output
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["a-b-c-2.yaml", "a-b-c.yaml"]
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
