"""A real job: a GPT trained with PyTorch, cut over processes in every way, each predicted before it runs."""
