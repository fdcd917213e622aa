"""Reinforcement learning around a training job: rollouts, training, weights on the way, and how old samples may be."""
