"""Floor 6, speak: one verb of the command line a file; `sim.cli` puts them together."""
