"""Megatron-LM's arguments: from launch scripts, and from the framework's YAML."""
