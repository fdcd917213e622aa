"""Readers of other tools' measurements. They parse and check; they never execute or download anything."""

from flopcast_calibration.readers.formats import read_measurements
from flopcast_calibration.readers.log import Log
from flopcast_calibration.readers.nccl_tests import read_nccl_tests
from flopcast_calibration.readers.table import read_table

__all__ = ["Log", "read_measurements", "read_nccl_tests", "read_table"]
