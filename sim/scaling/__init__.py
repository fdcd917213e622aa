"""Scaling laws, whole runs, and questions in users' words."""
