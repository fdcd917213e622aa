"""How fast an answer is, beside a yardstick measured in the same run."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sim import build_order, estimate, load_scenario
from sim.costs.stage import stage_costs
from sim.engines import build_program, dag, des
from sim.network.flow_run import simulate_flows
from sim.network.flows import flows_on, max_min_rates
from sim.network.routing import route
from sim.network.topology import build_topology

ROOT = Path(__file__).parent.parent
MAIN = ROOT / "scenarios" / "gpt-1t-3072-a100.yaml"


def seconds(action, repeats=5):
    """Fastest of a few runs. [s]"""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.fixture(scope="module")
def loop():
    """The yardstick: a Python loop of 65,536 additions over a list, as many as the main scenario has actions. [s]"""

    def add():
        total, values = 0.0, [1.0] * 65536
        for index in range(65536):
            total += values[index]
        return total

    return seconds(add)


def test_main_scenario(benchmark):
    scenario = load_scenario(MAIN)
    benchmark(estimate, scenario)


@pytest.mark.parametrize(("engine", "limit"), [("dag", 60), ("des", 2000)])
def test_engine_against_a_plain_loop(benchmark, loop, engine, limit):
    scenario = load_scenario(MAIN)
    plan = scenario.plan
    order = build_order(plan.schedule, plan.pp, plan.num_chunks, scenario.num_microbatches)
    program = build_program(order, stage_costs(scenario))
    run = {"dag": dag.run, "des": des.run}[engine]
    taken = seconds(lambda: run(program), repeats=2)
    benchmark.pedantic(run, args=(program,), rounds=2)
    benchmark.extra_info["times_a_plain_loop"] = taken / loop
    assert taken / loop < limit


def test_cold_start_against_bare_python(benchmark):
    """The whole process of `flopcast estimate`, beside an interpreter that imports NumPy and stops."""
    command = [sys.executable, "-m", "sim.cli", "estimate", str(MAIN)]
    bare = seconds(lambda: subprocess.run([sys.executable, "-c", "import numpy"], check=True), repeats=3)
    run = lambda: subprocess.run(command, check=True, capture_output=True)  # noqa: E731
    taken = seconds(run, repeats=3)
    benchmark.pedantic(run, rounds=2)
    benchmark.extra_info["times_importing_numpy"] = taken / bare
    assert taken < 1.0 or taken / bare < 12


def test_building_a_machine_of_3072_gpus(benchmark, loop):
    cluster = load_scenario(MAIN).cluster
    build = lambda: build_topology(cluster, 384).capacity  # noqa: E731
    benchmark(build)
    assert seconds(build) / loop < 1


def test_rates_of_ten_thousand_flows(benchmark, loop):
    topology = build_topology(load_scenario(MAIN).cluster, 384)
    source, target = np.random.default_rng(0).integers(0, topology.num_gpus, (2, 10_000))
    flows = flows_on(route(topology, source, target, "ecmp"))
    benchmark(max_min_rates, flows, topology.capacity)
    assert seconds(lambda: max_min_rates(flows, topology.capacity)) / loop < 30


def test_sends_that_come_and_go(benchmark, loop):
    """Every GPU of 384 nodes sends to the next pipeline stage, each a little later than the last: 6,144 events."""
    topology = build_topology(load_scenario(MAIN).cluster, 384)
    gpus = np.arange(topology.num_gpus)
    flows = flows_on(route(topology, gpus, (gpus + 48) % topology.num_gpus, "ecmp"))
    starts = np.random.default_rng(0).uniform(0.0, 0.01, len(gpus))
    run = lambda: simulate_flows(topology.capacity, flows, starts, 1e8)  # noqa: E731
    benchmark.pedantic(run, rounds=2)
    benchmark.extra_info["times_a_plain_loop"] = seconds(run, repeats=2) / loop
