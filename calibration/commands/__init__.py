"""The verbs of `flopcast calibrate`, a file each for what belongs together."""
