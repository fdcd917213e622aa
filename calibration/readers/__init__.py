"""Readers of other tools' measurements. They parse and check; they never execute or download anything."""

from flopcast_calibration.readers.formats import read_measurements
from flopcast_calibration.readers.log import Log

__all__ = ["Log", "read_measurements"]
