"""How fast an answer is, beside a yardstick measured in the same run."""

import subprocess
import sys
from pathlib import Path

import pytest
from timing import cpu_seconds, seconds

from sim import build_order, estimate, load_scenario
from sim.engines import Program, des, longest_path
from sim.pricing.stages import stage_costs

ROOT = Path(__file__).parent.parent
MAIN = ROOT / "scenarios" / "gpt-1t-3072-a100.yaml"


def test_main_scenario(benchmark):
    scenario = load_scenario(MAIN)
    benchmark(estimate, scenario)


@pytest.mark.parametrize(("engine", "limit"), [("dag", 60), ("des", 2000)])
def test_engine_against_a_plain_loop(benchmark, loop, engine, limit):
    scenario = load_scenario(MAIN)
    plan = scenario.plan
    order = build_order(plan.schedule, plan.pp, plan.num_chunks, scenario.num_microbatches)
    program = Program(order, stage_costs(scenario))
    run = {"dag": longest_path.run, "des": des.run}[engine]
    taken = seconds(lambda: run(program), repeats=2)
    benchmark.pedantic(run, args=(program,), rounds=2)
    benchmark.extra_info["times_a_plain_loop"] = taken / loop
    assert taken / loop < limit


def test_cold_start_against_bare_python(benchmark):
    """The whole process of `flopcast estimate`, beside an interpreter that imports NumPy and stops, in CPU time."""
    command = [sys.executable, "-m", "sim", "estimate", str(MAIN)]
    subprocess.run(command, check=True, capture_output=True)  # compiles what was not compiled yet
    ratio = cpu_seconds(command) / cpu_seconds([sys.executable, "-c", "import numpy"])
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=2)
    benchmark.extra_info["times_importing_numpy"] = ratio
    assert ratio < 4


def test_a_scenario_with_another_plan(benchmark, loop):
    """Both records are checked anew, beside a plain loop."""
    scenario = load_scenario(MAIN)
    sizes = [(tp, pp, microbatch) for tp in (2, 4, 8) for pp in (16, 32, 64) for microbatch in (1, 2, 4)]

    def replace():
        for tp, pp, microbatch in sizes:
            plan = scenario.plan.replace(tp=tp, pp=pp, dp=3072 // (tp * pp), microbatch_size=microbatch)
            scenario.replace(plan=plan)

    taken = seconds(replace) / len(sizes)
    benchmark(replace)
    benchmark.extra_info["plans_a_plain_loop"] = loop / taken
    assert taken < loop / 5
