"""What several test files share: where scenarios and measurements lie, and costs of stages made from plain numbers."""

import csv
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from sim.costs.block import AT_PEAK, BACKWARD, INPUT_GRAD
from sim.pricing.stages import StageSeconds
from sim.pricing.zero import VisitSeconds
from sim.work.layers import Stage
from sim.work.operations import Cause

ROOT = Path(__file__).parents[1]

# Workers, and the programs that tests start, share compiled code also where Python is told to keep none: every process
# would compile all files anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A machine that others use too may be slow to make an example; that says nothing about what is tested.
CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# The suite tries the same examples every time: it fails for a change, never by chance. `make thorough` tries more of them
# (wide), and the thorough profile draws new ones.
settings.register_profile("flopcast", settings.default, max_examples=4, derandomize=True, **CALM)
settings.register_profile("wide", settings.default, max_examples=40, derandomize=True, **CALM)
settings.register_profile("thorough", settings.default, max_examples=200, **CALM)
settings.load_profile("flopcast")


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="also what takes long beside the short form of it")


def pytest_configure(config):
    """Workers take from each other what is left, where the command says no more than how many they are."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"


def pytest_collection_modifyitems(config, items):
    """What takes longest begins first, so that no worker waits for another at the end; and what asks for all published
    runs stands together, so that one worker predicts them. Thorough tests are left out unless they are asked for."""
    left_out = [each for each in items if each.get_closest_marker("thorough") and not config.option.thorough]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if each not in {*left_out}]
    items.sort(
        key=lambda item: (
            not {"scored_published", "scored_some"} & {*item.fixturenames},
            item.get_closest_marker("slow") is None,
        )
    )


@pytest.fixture(scope="session")
def scenarios():
    """Folder of the shipped scenarios."""
    return ROOT / "scenarios"


@pytest.fixture(scope="session")
def measurements():
    """Folder of published measurements, which is not part of the repository."""
    folder = ROOT / ".." / "shared" / "published"
    if not folder.is_dir():
        pytest.skip("no ../shared/published beside the repository: published measurements are not shipped with it")
    return folder


@pytest.fixture(scope="session")
def scored_published():
    """Every run that ships, predicted: half a minute, for tests that are thorough."""
    from scored import score_all, shipped_runs

    return score_all(shipped_runs())


@pytest.fixture(scope="session")
def scored_some():
    """Every twentieth run that ships, predicted."""
    from scored import score_all, shipped_runs

    return score_all(shipped_runs()[::20])


def make_costs(num_ranks, forward, backward, weight_grad_s=None, **given):
    """StageSeconds whose forward is all matrix multiplies and whose backward is matrix multiplies and recomputation."""
    forward, backward = np.asarray(forward, dtype=float), np.asarray(backward, dtype=float)
    weights = 0.3 * backward if weight_grad_s is None else weight_grad_s
    stages = tuple(Stage(i, (1,), i == 0, i == len(forward) - 1) for i in range(len(forward)))
    costs = StageSeconds.of_compute(stages, num_ranks, forward, backward, weights)
    costs.passes[[BACKWARD, INPUT_GRAD], Cause.MATMUL] -= 0.25 * backward
    costs.passes[[BACKWARD, INPUT_GRAD], Cause.RECOMPUTE] = 0.25 * backward
    costs.passes[AT_PEAK, Cause.MATMUL] = 0.5 * (forward + 0.75 * backward)
    given = {key: np.asarray(value) if isinstance(value, list) else value for key, value in given.items()}
    return replace(costs, **{"p2p_blocks": True, "hidden_share": 0.6, **given})


@pytest.fixture(scope="session")
def costs_of():
    """The function `make_costs`."""
    return make_costs


@pytest.fixture(scope="session")
def random_costs():
    """(generator, order, sends, blocks, visits) -> uneven StageSeconds with reductions, gathers, updates and a tied
    embedding; and with what ranks of several chunks move once a visit."""

    def make(rng, order, *, sends=True, blocks=True, visits=False):
        ranks, stages = order.num_ranks, order.num_stages
        hop = rng.uniform(0.0, 0.6, stages) * (ranks > 1) * sends
        reduce = rng.uniform(0.0, 3.0, ranks)
        costs = make_costs(
            ranks, rng.uniform(0.5, 2.0, stages), rng.uniform(1.0, 4.0, stages),
            send_forward_s=np.where(np.arange(stages) < stages - 1, hop, 0.0),
            send_backward_s=np.concatenate([[0.0], hop[:-1] * rng.uniform(0.5, 1.5)]), p2p_blocks=blocks,
            reduce_s=reduce, reduce_tail_s=reduce * 0.25, gather_s=rng.uniform(0.0, 1.0, ranks),
            optimizer_s=rng.uniform(0.0, 1.0, ranks), offload_s=np.zeros(ranks),
            tied_embedding_s=float(rng.uniform(0.0, 2.0)) * (ranks > 1), step_setup_s=float(rng.uniform(0.0, 1.0)),
        )  # fmt: skip
        # Of each rank's gradients as much at each of its stages; some ranks may have fewer.
        costs = replace(costs, reduce_share=1.0 / np.bincount(order.rank_of_stage)[order.rank_of_stage])
        return replace(costs, visits=make_visits(rng, costs)) if visits else costs

    return make


def make_visits(rng, costs):
    """What visits to stages move: nothing, little, or more than compute can hide; by all switches."""
    stages = len(costs.stages)
    gather = rng.uniform(0.0, 4.0, (2, stages)) * rng.choice([0.0, 0.2, 1.0], size=(2, 1))
    reduce = rng.uniform(0.0, 4.0, stages) * rng.choice([0.0, 0.2, 1.0])
    ahead, beside = rng.integers(2, size=2).astype(bool)
    slows = rng.uniform(0.0, 0.3, 2)
    passes = np.stack([costs.forward_s, costs.backward_s, costs.backward_s - costs.weight_grad_s])
    hidden = np.minimum(gather[[0, 1, 1]], passes)
    return VisitSeconds(
        gather=gather, early=hidden * rng.uniform(0.0, 1.0, (3, stages)) * ahead, reduce=reduce,
        tail=reduce * rng.uniform(0.0, 0.7, stages), gather_slows=gather * slows[0] * ahead,
        reduce_slows=reduce * slows[1] * beside, ahead=ahead, beside=beside,
    )  # fmt: skip


RUN = {
    "id": "one", "source": "a paper", "gpu": "A100-SXM4-80GB", "gpu_mem_gb": "80", "num_gpus": "16", "gpus_per_node": "8",
    "inter_node_link": "8x HDR 200 Gb/s InfiniBand", "model_name": "Ours 1.7B", "layers": "24", "hidden": "2304",
    "heads": "24", "kv_heads": "24", "ffn_hidden": "9216", "gated_mlp": "n", "vocab": "51200", "seq_len": "2048",
    "global_batch_seqs": "64", "micro_batch_seqs": "4", "tp": "2", "pp": "2", "cp": "1", "dp": "4", "vp_stages": "",
    "sequence_parallel": "n", "zero_stage": "1", "recompute": "full", "schedule": "1f1b", "precision": "bf16",
    "framework": "Megatron-LM", "stack.version": "2021", "measured_value": "3.1", "measured_unit": "iteration_s", "flops_convention": "",
    "experts": "", "notes": "",
}  # fmt: skip
"""A measured run with every cell filled that flopcast would otherwise infer."""


@pytest.fixture(scope="session")
def run_row():
    """The function (changes) -> cells of a measured run."""

    def make(**changes):
        version = {"stack.version": ""} if "framework" in changes else {}
        return {**RUN, **version, **{key: str(value) for key, value in changes.items()}}

    return make


@pytest.fixture
def runs_file(tmp_path):
    """The function (rows) -> path of a CSV with them."""

    def write(rows, name="runs.csv"):
        path = tmp_path / name
        columns = dict.fromkeys(key for row in rows for key in row)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(columns))
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write
