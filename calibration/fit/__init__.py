"""Fits: for each cost function of `sim.costs` the function that finds its parameters in measurements."""
