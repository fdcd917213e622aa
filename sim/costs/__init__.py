"""Floor 2, cost: counts, hardware and a calibrated profile in; seconds out. Functions broadcast over arrays."""
