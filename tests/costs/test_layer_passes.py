"""Passes of a layer: tensor parallelism piece by piece beside multiplies, and halves of a backward, each by itself."""

import numpy as np
import pytest
from asked import asked
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.block import AT_PEAK, FORWARD, piece_by_piece
from sim.costs.collectives import all_gather
from sim.network.placement import Group
from sim.pricing.cells import layer_costs
from sim.pricing.layouts import cost_model
from sim.work.operations import Collective
from tests.rows import rows


def scenario(model="llama3-70b", stack="torchtitan", tp=8, recompute="full", asynchronous=True, **plan):
    plan = {"tp": tp, "dp": 64 // tp, "sequence_parallel": tp > 1, "recompute": recompute, **plan}
    stack = {"preset": stack, "version": "2024-09", "async_tensor_parallel": asynchronous}
    return asked(model, "superpod-h100", plan, stack=stack, profile="h100", batch=64 // tp, sequence=8192)


def both(**given):
    return [layer_costs(scenario(asynchronous=flag, **given)) for flag in (False, True)]


@rows("model, gain", [("llama3-8b", 0.29), ("llama3-70b", 0.20)])
def test_forwards_gain_what_pytorch_measured(model, gain):
    # discuss.pytorch.org/t/209487: up to about 29 and 20 % faster forwards on H100 with tp 8, and 8 % faster steps.
    off, on = ([float(sum(each.values())) for each in costs.passes[:2]] for costs in both(model=model))
    assert off[FORWARD] / on[FORWARD] - 1 == pytest.approx(gain, rel=0.2)
    assert 1.057 < sum(off) / sum(on) < 1.16


def test_a_gather_hides_behind_all_pieces_but_one():
    costs, group = cost_model(scenario()), Group(8, 8)
    gather = Collective("gather", "all_gather", 1e8, multiply="multiply", pieces=8)
    whole = float(all_gather(1e8, group, costs.fabric))

    def exposed(multiply_s, item=gather, group=group):
        return float(piece_by_piece(item, np.float64(multiply_s), costs.compute, group, costs.fabric))

    assert exposed(whole * 8 / 7 * 1.01) == pytest.approx(0, abs=1e-12)
    assert exposed(whole / 2) == pytest.approx(whole - whole / 2 * 7 / 8)
    assert exposed(whole, gather._replace(multiply="")) == pytest.approx(whole)
    assert exposed(1.0, group=Group(16, 8)) == pytest.approx(float(all_gather(1e8, Group(16, 8), costs.fabric)))


def halved(hidden=1024, tp=1, zero=0, schedule="zb_h1", experts=False, recompute="none", overlap=True, dp=2):
    model = {
        "num_layers": 4, "hidden_size": hidden, "num_heads": 16, "vocab_size": 32000, "max_sequence_length": 2048,
    }  # fmt: skip
    if experts:
        model |= {"num_experts": 8, "experts_per_token": 2}
    plan = {
        "tp": tp, "pp": 2, "dp": dp, "schedule": schedule, "zero_stage": zero, "recompute": recompute,
        "sequence_parallel": tp > 1,
    }  # fmt: skip
    stack = {"preset": "megatron-core", "overlap_tp_backward": overlap}
    return asked(model, "superpod-h100", plan, stack=stack, profile="h100", batch=8 * dp, sequence=2048)


def halves(given):
    return [float(sum(each.values())) for each in layer_costs(given).passes[:AT_PEAK]]


def with_gpu(given, **factors):
    node = given.cluster.node
    gpu = node.gpu
    changes = {"memory_bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s * factors.get("memory", 1.0)}
    changes["peak_flop_per_s"] = {name: peak * factors.get("peak", 1.0) for name, peak in gpu.peak_flop_per_s.items()}
    faster = node.replace(gpu=gpu.replace(**changes))
    faster = faster.replace(nvlink_bandwidth_bytes_per_s=node.nvlink_bandwidth_bytes_per_s * factors.get("nvlink", 1.0))
    return given.replace(cluster=given.cluster.replace(node=faster))


@given(
    hidden=st.sampled_from([256, 512, 1024, 2048, 4096, 8192]), tp=st.sampled_from([1, 2, 8]), experts=st.booleans(),
    recompute=st.sampled_from(["none", "full", "selective"]), overlap=st.booleans(),
    part=st.sampled_from(["peak", "memory", "nvlink"]), factor=st.floats(1.01, 8.0),
)  # fmt: skip
def test_no_pass_grows_when_a_part_is_faster(hidden, tp, experts, recompute, overlap, part, factor):
    one = halved(hidden, tp, experts=experts, recompute=recompute, overlap=overlap)
    for before, after in zip(halves(one), halves(with_gpu(one, **{part: factor})), strict=True):
        assert after <= before * (1 + 1e-12)
