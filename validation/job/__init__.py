"""A real job: a small GPT trained with PyTorch's own parallelism of three kinds, predicted before it runs."""
