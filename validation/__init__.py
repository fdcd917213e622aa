"""Validation: answers against reality. Published measurements as cited facts, and what flopcast predicts for them.

A third of the room is the real job: a GPT that is cut in every way, launched, timed and compared, with a calibration of
the machine that it runs on. Intervals, and what measured runs are worth, are learnt and scored here as well.
"""
