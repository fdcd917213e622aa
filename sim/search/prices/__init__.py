"""What many plans take and need at once: the closed form and the memory model over arrays, unit by unit."""
