"""Scaling laws: loss, critical batch, and the walls that training runs into."""
