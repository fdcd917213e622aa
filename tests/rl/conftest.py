"""Pools and samples that the tests of the loop share."""

import pytest

from sim.rl.inference import Inference, RolloutPool
from sim.rl.samples import Samples, lognormal_lengths
from sim.specs import build_scenario


@pytest.fixture(scope="session")
def small():
    """A 4B model on H100: a scenario whose plan does not matter."""
    training = {"global_batch_size": 1, "sequence_length": 2048, "precision": "bf16"}
    return build_scenario({"model": "qwen3-4b", "cluster": "superpod-h100", "plan": {}, "training": training}, [])


@pytest.fixture(scope="session")
def make_pool(small):
    """A pool of so many GPUs, each a replica that decodes at most `running` sequences."""

    def made(gpus=4, running=1024, **how) -> RolloutPool:
        return RolloutPool(small, Inference(most_running=running, **how), gpus, 1)

    return made


@pytest.fixture(scope="session")
def make_samples():
    """A batch of prompts × group responses."""

    def made(prompts=32, group=8, mean=1000.0, longest=4000.0, spread=0.8) -> Samples:
        return Samples(prompts, group, 200.0, lognormal_lengths(mean, longest, spread))

    return made
