"""Published steps of reinforcement learning, and how far from them ours are."""
