"""Readers of other tools' measurements. They parse and check; they never execute or download anything."""

from pathlib import Path

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.formats import read_measurements
from flopcast_calibration.readers.log import Log

__all__ = ["Log", "read_measurements", "read_nccl_tests", "read_table"]


def read_nccl_tests(path: Path, operation: str | None = None, num_ranks: int | None = None) -> list[Measurement]:
    """The measurements of nccl-tests' output, with the parameters of `read_measurements`."""
    return list(read_measurements(path, operation, num_ranks).measurements)


def read_table(path: Path) -> list[Measurement]:
    """The measurements of a table."""
    return list(read_measurements(path).measurements)
