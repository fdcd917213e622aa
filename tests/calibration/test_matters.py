"""Which numbers of the hardware and the profile a step depends on."""

from functools import partial
from pathlib import Path

import pytest

from flopcast_calibration.commands.matters import effects
from sim import estimate, load_scenario

SCENARIO = Path(__file__).parents[2] / "scenarios" / "korthikanti-2022" / "22b-selective.yaml"


def test_every_number_is_tried_and_moves_the_step_the_right_way():
    load = partial(load_scenario, SCENARIO)
    tried: list[str] = []
    found = effects(load(), lambda override: load([override]), tried.append)
    changes = {each.path: each.change for each in found}
    refused = {said.removeprefix("trying ") for said in tried} - set(changes)
    assert {path.rpartition(".")[2] for path in refused} <= {"oversubscription"}  # 1 is the least
    assert len(changes) > 60
    assert next(iter(changes)) in (
        "cluster.node.gpu.peak.fp16",
        "profile.gemm.max_efficiency",
        "cluster.node.gpu.sustained_clock",
    )
    longer = ("cluster.node.gpu.memory_bandwidth", "cluster.node.nvlink_bandwidth", "profile.nvlink.efficiency")
    assert all(changes[path] > 0.001 for path in longer)
    assert changes["profile.nvlink.base_latency"] < 0 == changes["cluster.node.gpu.memory"]
    first = found[0]
    less = estimate(load([f"{first.path}={0.9 * first.value!r} {first.unit}".strip()])).step_time_s
    assert less / estimate(load()).step_time_s - 1.0 == pytest.approx(first.change)
