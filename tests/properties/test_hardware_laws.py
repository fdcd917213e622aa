"""Laws of random runs under every schedule: a faster part never slows a step, and twice the batch takes no less time than
once and no more than twice.

    python -m pytest --hypothesis-profile=thorough tests/properties/test_hardware_laws.py

Four anomalies are let through, where they are proved for the run at hand:

- an order that is chosen by what things take is another one on faster hardware, and may be the worse: in the order of
  the slower hardware the faster one must not be slower;
- nothing is added to the gradients of the first micro-batch after an update (`StackSpec.drops_gradients`), which is
  spared once a step, whatever its batch: where adding costs nothing more, twice the batch takes no more than twice as
  long;
- an order of twice the micro-batches is not the order of them twice, and unlike stages may wait a little longer in it: by
  a hundredth of the step at most, while what ranks do takes no more than twice as long;
- weights that are gathered after the update hide beside what a rank computes before it needs the last of them
  (`sim.engines.program.Program.gather_s`), which idle time is not counted in: less computing there leaves more of the
  gather. So it is with sends beside a backward whose halves are apart (`sim.pricing.stages`): what a send takes beyond
  both halves is put on the first, max(I, send - W), and a faster W leaves more of it there, on the way that others wait
  for. Where nothing hides, the law must hold.
"""

import random

from hypothesis import example, given
from hypothesis import strategies as st

from sim.engines import run
from sim.engines.program import priced_order, program_of
from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.pricing.cells import plans_of
from sim.pricing.deal import deal_of
from sim.pricing.stages import price_in_order
from sim.schedules import get_schedule, schedule_names
from sim.specs import build_scenario
from tests.frozen.plans import random_scenario

MACHINES = {
    "selene": "a100", "superpod-h100": "h100", "superpod-h200": "h200", "superpod-b200": "b200", "superpod-gb200": "b200",
    "dgx-2h-superpod": "v100-sxm3", "ethernet-25": "a100",
}  # fmt: skip
"""Cluster -> profile of its GPUs."""
seeds = st.integers(0, 10**6)


def draw(seed):
    """A small run of any schedule on any machine: the first of the seed's whose parts go together."""
    rng = random.Random(seed)
    while True:
        data, cluster = random_scenario(rng, rng.choice(schedule_names())), rng.choice(list(MACHINES))
        data["training"]["precision"] = "fp16" if cluster == "dgx-2h-superpod" else rng.choice(["bf16", "fp16"])
        if rng.random() < 0.15:
            data["model"] |= {
                "layer_types": ["gated_delta_net", "full_attention"], "linear_num_heads": 16,
                "linear_num_key_heads": 8, "linear_head_dim": 64,
            }  # fmt: skip
        if rng.random() < 0.2:
            hosted = [{"optimizer_offload": 0.5}, {"optimizer_offload": 1.0}, {"recompute": "per_op"}]
            data["plan"] |= rng.choice(hosted)
        if rng.random() < 0.2:
            data["training"]["adapter_rank"] = 16
        try:
            scenario = build_scenario({**data, "cluster": cluster, "profile": MACHINES[cluster]})
            estimate(scenario)
        except FlopcastError:
            continue
        return scenario


def faster_ones(scenario, factor):
    """The scenario with the network, NVLink, the memory's bandwidth or the peak so many times as fast."""
    cluster, node, gpu = scenario.cluster, scenario.cluster.node, scenario.cluster.gpu
    yield cluster.replace(
        node=node.replace(nic_bandwidth_bytes_per_s=factor * node.nic_bandwidth_bytes_per_s),
        inter_node_bandwidth_bytes_per_s=factor * cluster.inter_node_bandwidth_bytes_per_s,
    )
    peaks = {name: factor * peak for name, peak in gpu.peak_flop_per_s.items()}
    for changes in (
        {"nvlink_bandwidth_bytes_per_s": factor * node.nvlink_bandwidth_bytes_per_s},
        {"gpu": gpu.replace(memory_bandwidth_bytes_per_s=factor * gpu.memory_bandwidth_bytes_per_s)},
        {"gpu": gpu.replace(peak_flop_per_s=peaks)},
    ):
        yield cluster.replace(node=node.replace(**changes))


def is_longer(scenario, other, times=1.0):
    """Whether a step takes longer than so many of another scenario's, rounding aside."""
    return estimate(scenario).step_time_s > times * estimate(other).step_time_s * (1 + 1e-9)


def busy_s(scenario):
    """What the average GPU does in a step, without its waits for other ranks.  [s]"""
    answer = estimate(scenario)
    return answer.step_time_s - sum(answer.breakdown.seconds[name] for name in ("pipeline_bubble", "stage_imbalance"))


def in_the_open(scenario):
    """The scenario whose gather after the update, and whose sends, hide beside nothing, and whose host keeps nothing."""
    stack = scenario.stack.replace(overlap_param_gather=False, overlap_p2p=False)
    return scenario.replace(stack=stack, plan=scenario.plan.replace(offloaded_layers=0))


def is_no_slower_in_the_same_order(scenario, faster):
    """Whether faster hardware, which chooses another order, is no slower in that of slower hardware."""
    order, other = priced_order(scenario)[0], priced_order(faster)[0]
    if "times" not in get_schedule(scenario.plan.schedule).options or order is other:
        return False
    deal = deal_of(faster.model, faster.plan, order.rank_of_stage, order.copies)
    costs = price_in_order(plans_of(faster), deal).take(0)
    return run(program_of(faster, order, costs)).step_time_s <= estimate(scenario).step_time_s * (1 + 1e-9)


@given(seed=seeds, factor=st.sampled_from([1.02, 1.1, 1.3, 2.0, 4.0]))
def test_a_faster_part_never_slows_a_step(seed, factor):
    scenario = draw(seed)
    for cluster in faster_ones(scenario, factor):
        faster = scenario.replace(cluster=cluster)
        if is_longer(faster, scenario) and not is_no_slower_in_the_same_order(scenario, faster):
            assert not is_longer(in_the_open(faster), in_the_open(scenario))


@given(seed=seeds)
@example(seed=53)
@example(seed=22)
def test_twice_the_batch_takes_as_long_as_one_at_least_and_as_two_at_most(seed):
    """Of the first example something hides: twice its batch takes a thousandth less; of the second stages wait longer."""
    scenario = draw(seed)
    batch = 2 * scenario.training.global_batch_size
    twice = scenario.replace(training=scenario.training.replace(global_batch_size=batch))
    if is_longer(twice, scenario, 2.0):
        adding, both = (each.replace(stack=each.stack.replace(drops_gradients=False)) for each in (scenario, twice))
        assert busy_s(both) <= 2 * busy_s(adding) * (1 + 1e-9)
        assert not is_longer(both, adding, 2.02)
    if is_longer(scenario, twice):
        assert not is_longer(in_the_open(scenario), in_the_open(twice))
