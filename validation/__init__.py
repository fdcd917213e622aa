"""Validation: answers against reality. Published measurements as cited facts, and what flopcast predicts for them."""
