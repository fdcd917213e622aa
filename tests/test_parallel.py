"""Sweeps and estimates on an executor of another process: the same answers in the same order."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from open_space import sweep

from sim import estimate, load_scenario

TINY = Path(__file__).parents[1] / "scenarios" / "megatron-2021" / "1.7b.yaml"


def test_a_sweep_is_the_same_on_a_process_pool():
    scenario = load_scenario(TINY)
    with ProcessPoolExecutor(2) as pool:
        alone, spread = (sweep(scenario, "gpus=8,16,28", confirm=1, executor=each) for each in (None, pool))
    assert alone.to_dict() == spread.to_dict()
    assert spread.points[2].infeasible is not None


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_dask_gives_the_same_answers(tmp_path):
    distributed = pytest.importorskip("distributed")
    scenario = load_scenario(TINY)
    batches = [scenario.replace(training=scenario.training.replace(global_batch_size=size)) for size in (512, 1024)]
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
    )
    with cluster, distributed.Client(cluster) as client:
        there = list(client.get_executor().map(estimate, batches))
    assert [each.step_time_s for each in there] == [estimate(each).step_time_s for each in batches]
