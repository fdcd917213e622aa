"""How fast an answer is, beside a yardstick measured in the same run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from timing import cpu_seconds, seconds

from sim import build_order, estimate, load_scenario
from sim.engines import Program, des, longest_path
from sim.pricing.stages import stage_costs
from sim.report.gantt import step_view
from sim.report.gantt.trace import write_trace
from sim.schedules.actions import KINDS

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


def test_trace_of_forty_thousand_actions(benchmark, tmp_path):
    """A Chrome trace of 40,000 actions with its arrows and counters, beside the actions alone through json.dumps."""
    answer = estimate(load_scenario(MAIN, ["training.global_batch_size=1878"]))
    scene = step_view(answer.scenario, answer=answer)
    order = scene.program.order
    assert 40_000 <= len(order) < 41_000
    path = tmp_path / "step.json"

    def naive():
        events = [
            {
                "ph": "X",
                "name": f"{KINDS[order.kind[at]]}{order.microbatch[at]}",
                "pid": int(order.rank[at]),
                "tid": 1,
                "ts": scene.start[at] * 1e6,
                "dur": (scene.end[at] - scene.start[at]) * 1e6,
                "args": {"stage": int(order.stage[at]), "microbatch": int(order.microbatch[at])},
            }
            for at in range(len(order))
        ]
        path.write_text(json.dumps({"traceEvents": events}))

    taken, plain = seconds(lambda: write_trace(scene, path), repeats=3), seconds(naive, repeats=3)
    benchmark.pedantic(write_trace, args=(scene, path), rounds=3)
    count = write_trace(scene, path)
    benchmark.extra_info |= {
        "events": count,
        "naive_s": plain,
        "times_naive_per_event": taken / count * len(order) / plain,
    }
    assert taken < 2.0 or taken / count < 2 * plain / len(order)
