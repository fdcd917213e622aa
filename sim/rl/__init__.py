"""Reinforcement learning around a training job: rollouts, training, weights on the way, and how old samples may be.

Rollouts need an inference engine's own model (batches that fill and drain, KV caches, prefill), which the core lacks.
"""
