"""What experts with biases add to grouped multiplies, as torch dispatches the arithmetic: bytes and kernels."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from sim.specs import ModelSpec, StackSpec  # noqa: E402
from sim.work.experts import _biases, activation_kernels  # noqa: E402

COPIES, OUTER, INNER = 1536, 2880, 2880
EAGER = StackSpec(kernel_launch_s=0.0)
MODEL = ModelSpec(
    num_layers=2, hidden_size=OUTER, num_heads=8, vocab_size=1024, gated_mlp=True, norm="rmsnorm", bias=False,
    mlp_bias=True, num_experts=8, experts_per_token=4, expert_intermediate_size=INNER,
)  # fmt: skip


class Dispatched(TorchDispatchMode):
    """Counts launches, and the bytes that they read and write, of every operation that is not a view."""

    def __init__(self):
        super().__init__()
        self.kernels = self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        written = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
        read = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        storages = {each.untyped_storage()._cdata for each in read}
        fresh = [each for each in written if each.untyped_storage()._cdata not in storages or func._schema.is_mutable]
        if fresh and "empty" not in func.__name__:
            self.kernels += 1
            self.nbytes += sum(each.numel() * each.element_size() for each in (*read, *fresh))
        return out


def counted(work):
    with Dispatched() as seen:
        result = work()
    return result, seen


@pytest.mark.parametrize("experts", [2, 8])
def test_biases_of_the_outputs(experts):
    """Each expert's bias, weighted as its tokens are, in fp32; all joined again and cast."""
    output = torch.randn(COPIES, OUTER, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(COPIES, 1, requires_grad=True)
    biases = [torch.randn(OUTER, dtype=torch.bfloat16, requires_grad=True) for _ in range(experts)]
    counts = [COPIES // experts] * experts

    def forward():
        parts = zip(output.split(counts), biases, weights.split(counts), strict=True)
        return torch.cat([part + bias * weight for part, bias, weight in parts]).to(output.dtype)

    result, there = counted(forward)
    gradient = torch.randn_like(result)
    _, back = counted(lambda: result.backward(gradient))
    # Megatron's hook casts and adds each bias's gradient to the main one; autograd knows nothing of it.
    for ours, torchs, hooks in zip(_biases(2 * COPIES * OUTER, experts, MODEL), (there, back), (0, 2), strict=True):
        assert sum(item.nbytes for item in ours) == pytest.approx(torchs.nbytes, rel=0.01)
        assert sum(item.kernels for item in ours) == torchs.kernels + hooks * experts


def test_the_clampedactivation_kernels():
    """Both halves limited and joined again, before the kernel that multiplies them with the tokens' weights."""
    both = torch.randn(COPIES, 2 * INNER, dtype=torch.bfloat16, requires_grad=True)

    def limits():
        gate, value = both.chunk(2, -1)
        return torch.cat((gate.clamp(max=7.0), value.clamp(min=-7.0, max=7.0)), -1)

    joined, there = counted(limits)
    gradient = torch.randn_like(joined)
    _, back = counted(lambda: joined.backward(gradient))
    width = 2 * COPIES * INNER
    # The fused kernel reads two halves and writes their product; in the backward it reads three and writes two.
    for (ours,), torchs, fused in zip(activation_kernels(width, MODEL, EAGER), (there, back), (3, 5), strict=True):
        assert ours.nbytes == pytest.approx(torchs.nbytes + fused * width, rel=0.01)
        assert ours.kernels == torchs.kernels + 1
