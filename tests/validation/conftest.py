"""The published runs with their predictions, which several files of tests look at."""

import pytest

from validation.runs.score import score_runs


@pytest.fixture(scope="session")
def published_runs(measurements):
    """All published runs, scored. Tests that ask for them belong to one group, so that one worker scores them once."""
    return score_runs(measurements / "training_runs.csv")
