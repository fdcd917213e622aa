"""Failures, checkpoints and spare nodes, and what a run costs: from seconds of work to days, joules and money."""
