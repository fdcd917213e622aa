"""Hugging Face's `config.json`: architectures, wrappers around language models, well-known models by name."""
