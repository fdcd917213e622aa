"""Recipes of NeMo and Megatron-Bridge, in Python and YAML, read as Megatron-LM's arguments of the same meaning."""
