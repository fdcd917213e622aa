"""Floor 2, where ranks sit and what connects them."""
