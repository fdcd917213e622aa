"""A real job: a small GPT trained with PyTorch's own tensor, pipeline and data parallelism, predicted before it runs."""
