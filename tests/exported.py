"""Rows of tables of runs as scenario files: what of them an estimate does not say as validation does."""

import pytest

from flopcast_validation.runs.export import export_runs
from sim import estimate, load_scenario


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
