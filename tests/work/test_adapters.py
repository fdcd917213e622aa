"""Frozen weights have no gradients: what adapters multiply, hold and keep, and what packed sequences and few bits change."""

from functools import partial

import pytest
from asked import asked
from counts import layer_work

from sim import estimate
from sim.work.operations import Adapters, Block, Tensor, Weight
from sim.work.pieces import Cut, Writer
from sim.work.sums import block_works

EVERY = Adapters(16, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))


def scenario_of(training=None, plan=None, model="llama2-70b", node="gb200-tray", stack="megatron-core"):
    cluster, plan = {"name": "some", "node": node, "num_nodes": 8}, {"dp": 4, "zero_stage": 1, **(plan or {})}
    return asked(model, cluster, plan, stack=stack, batch=8, sequence=8192, **(training or {}))


LORA = {"adapter_rank": 16, "adapter_targets": ["linear_qkv", "linear_proj"]}


def test_multiplies_of_an_adapted_linear_are_those_torch_counts():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    tokens, k, n, r = 64, 48, 80, 4
    x = torch.randn(tokens, k, requires_grad=True)
    weight = torch.randn(k, n)
    down, up = torch.randn(k, r, requires_grad=True), torch.randn(r, n, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        y = x @ weight + (x @ down) @ up
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()

    def work_with(target):
        one, cut = scenario_of(), Cut(1, 1, tokens, False, adapters=Adapters(r, (target,)) if target else None)
        write, read = Writer(one.model, one.stack, cut), Tensor("context", tokens, k, 2)
        write.linear("attention output", "attn", read, [read.like("output", n)], [Weight(n, k)], cut_by="rows")
        return block_works(Block(tuple(write.operations)), one.stack)[0]

    trained, adapted, frozen = (work_with(target) for target in ("", "linear_proj", "linear_fc1"))
    assert adapted.forward.flop == forward.get_total_flops()
    assert adapted.input_grad.flop + adapted.weight_grad.flop == backward.get_total_flops()
    assert (frozen.forward.flop, frozen.weight_grad.flop) == (trained.forward.flop, 0)


NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)


def test_frozen_matrices_in_fewer_bits_take_less_memory_and_are_written_out_before_every_multiply():
    """Of Llama 2 70B all but tables and norms: 80 · (2 · 8192² + 2 · 8192 · 1024 + 3 · 8192 · 28672)."""
    matrices = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    lora = {**LORA, "precision": "bf16"}
    wide, four, eight = (estimate(scenario_of({**lora, "frozen_precision": each})) for each in (None, "nf4", "fp8"))
    assert wide.largest.weights - four.largest.weights == pytest.approx((2 - NF4) * matrices)
    assert wide.largest.weights - eight.largest.weights == pytest.approx(matrices)
    assert wide.largest.optimizer == four.largest.optimizer
    # Two micro-batches a step; each writes them out in its forward and in its backward.
    memory = four.scenario.cluster.node.gpu.memory_bandwidth_bytes_per_s * four.scenario.profile.memory.share("copy")
    written_s = 2 * 2 * matrices * (NF4 + 2) / 0.6 / memory
    assert four.step_time_s - wide.step_time_s == pytest.approx(written_s, rel=0.05)
    assert wide.step_time_s < eight.step_time_s < four.step_time_s + written_s


def test_only_adapters_have_gradients_and_an_optimizer():
    """Those side by side are all held, and each token meets one."""
    whole, lora, four = (estimate(scenario_of(each)) for each in ({}, LORA, {**LORA, "num_adapters": 4}))
    trained = 44_564_480
    for count, use in ((1, lora.largest), (4, four.largest)):
        assert use.gradients == 4 * trained * count
        assert use.optimizer == pytest.approx(12 * trained * count / 4)
        assert use.weights == whole.largest.weights + 2 * trained * count
        assert use.activations == lora.largest.activations < whole.largest.activations
    assert four.breakdown.seconds["flop_at_peak"] == lora.breakdown.seconds["flop_at_peak"]


@pytest.mark.parametrize("model", ["llama2-70b", "qwen3-30b-a3b", "qwen3-next-80b-a3b", "deepseek-v3-16b"])
def test_no_weight_is_trained_but_adapters(model):
    one = scenario_of(model=model)
    for kind in one.model.layer_kinds:
        work = layer_work(one.model, one.stack, Cut(1, 1, 4096, False, adapters=EVERY), kind)
        assert all("adapter" in item.name for item in work.weight_grad.operations)


@pytest.mark.parametrize("way", ["fp32", "autocast", "16-bit"])
def test_what_adapters_of_peft_keep_is_what_torch_saves(way):
    """Besides weights: their input in their own precision, once for every one of three, and what is narrow."""
    torch = pytest.importorskip("torch")
    tokens, k, widths, r = 64, 48, (32, 16, 16), 4
    x = torch.randn(tokens, k, dtype=torch.bfloat16, requires_grad=True)
    linears = [torch.randn(n, k, dtype=torch.bfloat16) for n in widths]
    dtype = torch.bfloat16 if way == "16-bit" else torch.float32
    drawn = partial(torch.randn, dtype=dtype, requires_grad=True)
    pairs = [(drawn(r, k), drawn(n, r)) for n in widths]
    saved = {}

    def keep(tensor):
        saved[tensor.data_ptr()] = tensor
        return tensor

    multiply = torch.nn.functional.linear
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast")
    with autocast, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for weight, (down, up) in zip(linears, pairs, strict=True):
            (multiply(x, weight) + multiply(multiply(x.to(dtype), down), up) * 2.0).to(x.dtype)
    kept = sum(tensor.nbytes for tensor in saved.values() if tensor.shape[0] == tokens)

    one = scenario_of()
    stack = one.stack.replace(peft_adapters=way)
    write = Writer(one.model, stack, Cut(1, 1, tokens, False, adapters=Adapters(r, ("linear_qkv",))))
    read = Tensor("normed", tokens, k, 2)
    outs = [read.like(name, n) for name, n in zip("qkv", widths, strict=True)]
    write.linear("query, key, value", "attn", read, outs, [Weight(n, k) for n in widths], cut_by="columns")
    ours = {tensor.name: tensor for each in write.operations for tensor in each.kept}
    assert sum(tensor.rows * tensor.columns * tensor.width for tensor in ours.values()) == kept
