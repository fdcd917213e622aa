"""Halves of a backward, each by itself: passes of their own, of which neither grows when something becomes faster."""

from asked import asked
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.block import AT_PEAK
from sim.pricing.cells import layer_costs


def scenario(hidden=1024, tp=1, zero=0, schedule="zb_h1", experts=False, recompute="none", overlap=True, dp=2):
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
    one = scenario(hidden, tp, experts=experts, recompute=recompute, overlap=overlap)
    for before, after in zip(halves(one), halves(with_gpu(one, **{part: factor})), strict=True):
        assert after <= before * (1 + 1e-12)
