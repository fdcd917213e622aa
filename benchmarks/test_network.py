"""Machines of thousands of GPUs, and flows through them."""

from pathlib import Path

import numpy as np
from flows import flows_on
from timing import seconds

from sim import load_scenario, simulate
from sim.engines.wire import max_min_rates
from sim.network.routing import route
from sim.network.topology import build_topology

MAIN = Path(__file__).parent.parent / "scenarios" / "gpt-1t-3072-a100.yaml"


def test_building_a_machine_of_3072_gpus(benchmark, loop):
    cluster = load_scenario(MAIN).cluster.replace(num_nodes=384)
    build = lambda: build_topology(cluster).capacity  # noqa: E731
    benchmark(build)
    assert seconds(build) / loop < 1


def test_rates_of_ten_thousand_flows(benchmark, loop):
    topology = build_topology(load_scenario(MAIN).cluster.replace(num_nodes=384))
    source, target = np.random.default_rng(0).integers(0, topology.num_gpus, (2, 10_000))
    flows = flows_on(route(topology, source, target, "ecmp"))
    benchmark(max_min_rates, flows, topology.capacity)
    assert seconds(lambda: max_min_rates(flows, topology.capacity)) / loop < 30


def test_the_whole_step_with_links_shared(benchmark, loop):
    """Folded, from the scenario to the answer; 3 s asked for."""
    run = lambda: simulate(load_scenario(MAIN), contention=True)  # noqa: E731
    benchmark.pedantic(run, rounds=2)
    benchmark.extra_info["times_a_plain_loop"] = seconds(run, repeats=2) / loop


def test_the_whole_step_with_jitter_on_every_rank(benchmark, loop):
    """All replicas of one step, no two alike; 90 s and 4 GB asked for."""
    run = lambda: simulate(load_scenario(MAIN), jitter=0.02, seeds=1, unfold=True)  # noqa: E731
    benchmark.pedantic(run, rounds=2)
    benchmark.extra_info["times_a_plain_loop"] = seconds(run, repeats=2) / loop
