"""Scaling laws, whole runs, and questions in users' words.

Six verbs stand on it: plan, finetune, shape, train, shortest and scaling. Each asks a search or an estimate many times.
"""
