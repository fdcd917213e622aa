"""Tables of runs, predicted."""

from functools import cache

from flopcast_calibration.readers.training_runs import read_training_runs
from flopcast_validation.run import published_runs
from flopcast_validation.runs.scored import score_all


def score_runs(path):
    """Every row of a CSV of measured runs."""
    return score_all(read_training_runs(path))


@cache
def shipped_runs():
    """Every run that ships, read: three seconds."""
    return published_runs()
