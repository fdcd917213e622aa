"""Calibration: measurements in, profiles out. Uses floors 0 to 2 of sim (descriptions, counts, costs)."""
