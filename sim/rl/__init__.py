"""Reinforcement learning around a training job: rollouts, training, weights on the way, and how old samples may be."""

from sim.rl.best_step import Asynchrony, best_split, colocated_step, split_step
from sim.rl.pools import Inference
from sim.rl.samples import Lengths, Samples, lognormal_lengths, measured_lengths
from sim.rl.step import RlStep
from sim.rl.trainer import Exchange, Recipe

__all__ = [
    "Asynchrony",
    "Exchange",
    "Inference",
    "Lengths",
    "Recipe",
    "RlStep",
    "Samples",
    "best_split",
    "colocated_step",
    "lognormal_lengths",
    "measured_lengths",
    "split_step",
]
