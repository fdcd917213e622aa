"""Recipes of trainers in YAML, TOML and JSON: settings by name, read by tables."""
