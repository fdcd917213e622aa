"""Laws over random scenarios of every schedule: faster hardware never slows a step, twice the batch takes no less time
than once and no more than twice.

    python -m tests.fuzz.laws --scenarios 1000 --seed 1

Three anomalies are let through, where they are proved for the scenario at hand:

- an order that is chosen by what things take is another one on faster hardware, and may be the worse: in the order of
  the slower hardware the faster one must not be slower;
- nothing is added to the gradients of the first micro-batch after an update (`StackSpec.drops_gradients`), which is
  spared once a step, whatever its batch: where adding costs nothing more, twice the batch takes no more than twice as
  long;
- weights that are gathered after the update hide beside what a rank computes before it needs the last of them
  (`sim.engines.program.Program.gather_s`), which idle time is not counted in: less computing there leaves more of the
  gather. So it is with sends beside a backward whose halves are apart (`sim.pricing.stages`): what a send takes beyond
  both halves is put on the first, max(I, send - W), and a faster W leaves more of it there, on the way that others wait
  for. Where nothing hides, the law must hold.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sim.engines import run
from sim.engines.program import priced_order, program_of
from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.pricing.cells import plans_of
from sim.pricing.deal import deal_of
from sim.pricing.stages import price_in_order
from sim.schedules import get_schedule, schedule_names
from sim.specs import Scenario, build_scenario
from tests.frozen.plans import random_scenario

MACHINES = {
    "selene": "a100", "superpod-h100": "h100", "superpod-h200": "h200", "superpod-b200": "b200", "superpod-gb200": "b200",
    "dgx-2h-superpod": "v100-sxm3", "ethernet-25": "a100",
}  # fmt: skip
"""Cluster -> profile of its GPUs."""
ROUNDING = 1e-9
FIRST = "nothing to add the first micro-batch's gradients to"
HIDDEN = "less to hide a gather, a send or a copy beside"


def draw(rng: random.Random) -> Scenario:
    """A small run of any schedule on any machine; FlopcastError where the parts do not go together."""
    data, cluster = random_scenario(rng, rng.choice(schedule_names())), rng.choice(list(MACHINES))
    data["training"]["precision"] = "fp16" if cluster == "dgx-2h-superpod" else rng.choice(["bf16", "fp16"])
    if rng.random() < 0.15:
        data["model"] |= {
            "layer_types": ["gated_delta_net", "full_attention"], "linear_num_heads": 16, "linear_num_key_heads": 8,
            "linear_head_dim": 64,
        }  # fmt: skip
    if rng.random() < 0.2:
        data["plan"] |= rng.choice([{"optimizer_offload": 0.5}, {"optimizer_offload": 1.0}, {"recompute": "per_op"}])
    if rng.random() < 0.2:
        data["training"]["adapter_rank"] = 16
    return build_scenario({**data, "cluster": cluster, "profile": MACHINES[cluster]})


def variants(scenario: Scenario, factor: float) -> Iterator[tuple[str, Scenario]]:
    """The scenario with one part of its hardware faster."""
    cluster, node, gpu = scenario.cluster, scenario.cluster.node, scenario.cluster.gpu

    def with_node(**changes: Any) -> Scenario:
        return scenario.replace(cluster=cluster.replace(node=node.replace(**changes)))

    network = factor * cluster.inter_node_bandwidth_bytes_per_s
    nics = node.replace(nic_bandwidth_bytes_per_s=factor * node.nic_bandwidth_bytes_per_s)
    yield "network", scenario.replace(cluster=cluster.replace(node=nics, inter_node_bandwidth_bytes_per_s=network))
    yield "nvlink", with_node(nvlink_bandwidth_bytes_per_s=factor * node.nvlink_bandwidth_bytes_per_s)
    bandwidth = factor * gpu.memory_bandwidth_bytes_per_s
    yield "memory bandwidth", with_node(gpu=gpu.replace(memory_bandwidth_bytes_per_s=bandwidth))
    peaks = {name: factor * peak for name, peak in gpu.peak_flop_per_s.items()}
    yield "peak", with_node(gpu=gpu.replace(peak_flop_per_s=peaks))


@dataclass(frozen=True)
class Breach:
    """Of a law, by what share; `anomaly`: the proof that allows it, if there is one."""

    law: str
    by: float
    anomaly: str | None = None


def breaches(scenario: Scenario, factor: float) -> Iterator[Breach]:
    """Laws that a scenario breaks."""
    before = estimate(scenario).step_time_s
    for name, faster in variants(scenario, factor):
        after = _time(faster)
        if after is not None and after > before * (1 + ROUNDING):
            proof = "another order" if holds_in_same_order(scenario, faster, before) else None
            proof = proof or (HIDDEN if not _slower(_in_the_open(scenario), _in_the_open(faster)) else None)
            yield Breach(f"a faster {name} is slower", after / before - 1, proof)
    batch = 2 * scenario.training.global_batch_size
    doubled = scenario.replace(training=scenario.training.replace(global_batch_size=batch))
    twice = _time(doubled)
    if twice is not None and twice > 2 * before * (1 + ROUNDING):
        adding, both = (each.replace(stack=each.stack.replace(drops_gradients=False)) for each in (scenario, doubled))
        broken = estimate(both).step_time_s > 2 * estimate(adding).step_time_s * (1 + ROUNDING)
        yield Breach("twice the batch takes more than twice as long", twice / before / 2 - 1, None if broken else FIRST)
    if twice is not None and twice < before * (1 - ROUNDING):
        broken = _slower(_in_the_open(doubled), _in_the_open(scenario))
        yield Breach("twice the batch takes less time", 1 - twice / before, None if broken else HIDDEN)


def _in_the_open(scenario: Scenario) -> Scenario:
    """The scenario whose gather after the update, and whose sends, hide beside nothing, and whose host keeps nothing."""
    stack = scenario.stack.replace(overlap_param_gather=False, overlap_p2p=False)
    return scenario.replace(stack=stack, plan=scenario.plan.replace(offloaded_layers=0))


def _slower(scenario: Scenario, other: Scenario) -> bool:
    """Whether another scenario takes longer."""
    return estimate(other).step_time_s > estimate(scenario).step_time_s * (1 + ROUNDING)


def holds_in_same_order(scenario: Scenario, faster: Scenario, before: float) -> bool:
    """Whether faster hardware is no slower in the order that slower hardware has, where it chooses another."""
    order, other = priced_order(scenario)[0], priced_order(faster)[0]
    if "times" not in get_schedule(scenario.plan.schedule).options or order is other:
        return False
    batch = plans_of(faster)
    deal = deal_of(faster.model, faster.plan, order.rank_of_stage, order.copies)
    costs = price_in_order(batch, deal).take(0)
    return run(program_of(faster, order, costs), "dag").step_time_s <= before * (1 + ROUNDING)


def _time(scenario: Scenario) -> float | None:
    try:
        return estimate(scenario).step_time_s
    except FlopcastError:
        return None


def look(scenarios: int, seed: int) -> Iterator[tuple[int, Breach]]:
    """Breaches in so many scenarios, with the seed of each."""
    tried, seed = 0, seed - 1
    while tried < scenarios:
        seed += 1
        rng = random.Random(seed)
        try:
            scenario = draw(rng)
            broken = list(breaches(scenario, rng.choice([1.02, 1.1, 1.3, 2.0, 4.0])))
        except FlopcastError:
            continue
        tried += 1
        yield from ((seed, each) for each in broken)


def main() -> int:
    """Count breaches; 1 where one is not an anomaly that is proved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found, worst = Counter[tuple[str, str]](), dict[tuple[str, str], tuple[float, int]]()
    for seed, breach in look(options.scenarios, options.seed):
        key = (breach.law, breach.anomaly or "NOT ALLOWED")
        found[key] += 1
        worst[key] = max(worst.get(key, (0.0, 0)), (breach.by, seed))
    print(f"{options.scenarios:,} scenarios")
    for (law, why), number in found.most_common():
        amount, at = worst[law, why]
        print(f"  {number:5d}  {law}: by {amount:.2%} at most (seed {at}); {why}")
    return int(any(why == "NOT ALLOWED" for _, why in found))


if __name__ == "__main__":
    sys.exit(main())
