"""Floor 2: where ranks sit, what connects them, and how traffic shares it."""
