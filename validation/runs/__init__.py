"""Scores of flopcast on tables of measured runs and of memory outcomes."""
