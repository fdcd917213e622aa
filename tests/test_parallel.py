"""One function over many items: the same answers in the same order from every executor, and errors where they belong."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from open_space import sweep

from sim import estimate, load_scenario
from sim.parallel import map_over

TINY = Path(__file__).parents[1] / "scenarios" / "megatron-2021" / "1.7b.yaml"


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(2) as executor:
        yield executor


def test_answers_come_in_the_order_of_the_items(pool):
    for executor in (None, pool):
        assert list(map_over(partial(pow, 2), range(20), executor)) == [2**n for n in range(20)]
        assert list(map_over(abs, [], executor)) == []


def test_an_error_is_raised_at_its_turn_and_the_rest_is_cancelled():
    begun, seen = [], Event()

    def reciprocal(number):
        begun.append(number)
        if number == 4:  # until the error was seen
            seen.wait(60)
        return 1 / number

    with ThreadPoolExecutor(1) as executor:
        found = map_over(reciprocal, [1, 2, 0, 4, 5, 6], executor)
        assert [next(found), next(found)] == [1, 0.5]
        with pytest.raises(ZeroDivisionError):
            next(found)
        seen.set()
    assert 6 not in begun


def test_a_sweep_is_the_same_on_a_process_pool(pool):
    scenario = load_scenario(TINY)
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
        there = list(map_over(estimate, batches, client.get_executor()))
    assert [each.step_time_s for each in there] == [estimate(each).step_time_s for each in batches]
