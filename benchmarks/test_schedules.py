"""Orders of a million tasks, generated and timed."""

import numpy as np
import pytest
from timing import seconds

from sim import build_order
from sim.engines import Program, longest_path
from sim.schedules import build
from tests.conftest import make_costs


def costs_of(num_ranks, num_stages):
    """Stages that differ a little, with sends beside compute."""
    forward, backward = np.linspace(1.0, 1.1, num_stages), np.linspace(2.0, 2.2, num_stages)
    hop = np.full(num_stages, 0.05)
    return make_costs(
        num_ranks, forward, backward, 0.4 * backward, send_forward_s=hop, send_backward_s=hop, p2p_blocks=False
    )


def naive(p, m, costs):
    """1F1B as most tools do it: objects in dictionaries, each rank asked again and again until it can go on."""
    rows = []
    for rank in range(p):
        warmup = min(p - 1 - rank, m)
        row = [("F", rank, j) for j in range(warmup)]
        for j in range(warmup, m):
            row += [("F", rank, j), ("B", rank, j - warmup)]
        rows.append(row + [("B", rank, j) for j in range(m - warmup, m)])
    forward, backward = costs.forward_s.tolist(), costs.backward_s.tolist()
    done, free, at = {}, [0.0] * p, [0] * p
    while any(at[rank] < len(rows[rank]) for rank in range(p)):
        for rank in range(p):
            while at[rank] < len(rows[rank]):
                kind, stage, j = rows[rank][at[rank]]
                need = ("F", stage - 1, j) if kind == "F" else ("B", stage + 1, j)
                if 0 <= need[1] < p and need not in done:
                    break
                start = max(free[rank], done.get(need, 0.0) + (0.05 if need in done else 0.0))
                done[kind, stage, j] = free[rank] = start + (forward if kind == "F" else backward)[stage]
                at[rank] += 1
    return max(free)


def fresh(name, p, v, m, costs):
    """Generate, validate and time an order that nobody remembers."""
    build._build.cache_clear()
    return longest_path.run(Program(build_order(name, p, v, m, fold=True), costs)).step_time_s


@pytest.mark.parametrize(
    ("name", "p", "v", "m", "limit_s"),
    [
        ("1f1b", 8, 1, 62_500, 0.2),
        ("1f1b", 64, 1, 7_813, 0.2),
        ("zb_h1", 16, 1, 20_834, 0.2),
        ("interleaved", 64, 2, 3_904, 0.2),
        ("interleaved", 35, 3, 280, 0.05),  # the 530B step; other tools need 4.5 to 108 s
    ],
)
def test_a_million_tasks(benchmark, name, p, v, m, limit_s):
    """A schedule of a million tasks (and the 530B step), generation included, beside the naive loop for 1/20 of it."""
    costs = costs_of(p, p * v)
    taken = seconds(lambda: fresh(name, p, v, m, costs), repeats=3)
    yardstick = seconds(lambda: naive(16, 1_563, costs_of(16, 16)), repeats=2)  # 50,000 tasks
    benchmark.pedantic(fresh, args=(name, p, v, m, costs), rounds=2)
    tasks = (3 if name.startswith("zb") else 2) * p * v * m
    benchmark.extra_info["tasks"] = tasks
    benchmark.extra_info["times_the_naive_loop_a_task"] = (taken / tasks) / (yardstick / 50_016)
    assert taken < limit_s or taken / yardstick < 1.0


def test_cost_hardly_grows_with_micro_batches(benchmark):
    """From a thousand to a million micro-batches."""
    costs = costs_of(8, 8)
    few = seconds(lambda: fresh("1f1b", 8, 1, 1_000, costs))
    many = seconds(lambda: fresh("1f1b", 8, 1, 1_000_000, costs))
    benchmark.pedantic(fresh, args=("1f1b", 8, 1, 1_000_000, costs), rounds=2)
    benchmark.extra_info["times_a_thousand"] = many / few
    assert many / few < 3
