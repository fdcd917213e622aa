"""Activations a layer keeps are those torch keeps: every tensor that autograd saves, each storage once."""

import pytest
from counts import attention_core_bytes, layer_activation_bytes

from sim.specs import ModelSpec, StackSpec
from sim.work.memory import logits_bytes
from sim.work.operations import Adapters
from sim.work.pieces import Cut

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

MODEL = ModelSpec(
    name="llama", num_layers=2, hidden_size=256, num_heads=8, intermediate_size=688, vocab_size=640,
    gated_mlp=True, position="rotary", norm="rmsnorm", bias=False, tied_embeddings=False,
)  # fmt: skip
EAGER = StackSpec(fused_norm=False, fused_bias_activation=False, fused_rotary=False, kernel_launch_s=0.0)
CUTS = pytest.mark.parametrize(("batch", "sequence"), [(1, 64), (2, 96)])


class Norm(nn.Module):
    """RMS norm step by step, in fp32 with an fp32 weight."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        """Normalised over the last axis, in the precision of x."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight).to(x.dtype)


class Linear(nn.Module):
    """A linear; or a frozen one with two narrow ones beside it, or none."""

    def __init__(self, rows, columns, rank=None):
        super().__init__()
        pairs = [(rows, columns), *([(rows, rank), (rank, columns)] if rank else [])]
        self.all = nn.ModuleList([nn.Linear(*pair, bias=False, dtype=torch.bfloat16) for pair in pairs])
        self.all[0].requires_grad_(rank is None)

    def forward(self, x):
        """What both give."""
        y = self.all[0](x)
        return y + 2.0 * self.all[2](self.all[1](x)) if len(self.all) > 1 else y


class Layer(nn.Module):
    """A LLaMA layer step by step around fused attention; or a frozen one, with adapters beside linears of some names."""

    def __init__(self, model, adapters=None):
        super().__init__()
        self.model = model
        h, inner = model.hidden_size, model.intermediate_size
        shapes = {
            "linear_qkv": (h, 3 * h), "linear_proj": (h, h), "linear_fc1": (h, 2 * inner), "linear_fc2": (inner, h),
        }  # fmt: skip

        def rank_of(name):
            return adapters and adapters.rank * (name in adapters.targets)

        self.norms = nn.ModuleList([Norm(h), Norm(h)]).requires_grad_(adapters is None)
        self.linears = nn.ModuleDict({name: Linear(*shape, rank_of(name)) for name, shape in shapes.items()})

    def forward(self, x, cosine, sine):
        """One layer; cosine and sine are the rotation's."""
        y = self.norms[0](x)
        q, k, v = (self.heads(each) for each in self.linears["linear_qkv"](y).chunk(3, -1))
        q, k, v = rotated(q, cosine, sine), rotated(k, cosine, sine), v.contiguous()  # a view would keep all three
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.linears["linear_proj"](context.transpose(1, 2).flatten(2))
        gate, up = self.linears["linear_fc1"](self.norms[1](x)).chunk(2, -1)
        return x + self.linears["linear_fc2"](functional.silu(gate) * up)

    def heads(self, x):
        """Laid out as batch, head, position, number."""
        return x.unflatten(-1, (-1, self.model.head_dim)).transpose(1, 2)


def rotated(x, cosine, sine):
    """Rotary positions step by step."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def saved_bytes(run, inputs, constants):
    """What autograd keeps of a forward besides parameters and other constants."""
    constant = {each.untyped_storage().data_ptr() for each in constants}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in constant:
            kept[storage.data_ptr()] = storage  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(*inputs)
    return sum(storage.nbytes() for storage in kept.values())


EVERY = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


@CUTS
@pytest.mark.parametrize("targets", [None, EVERY, EVERY[:2], EVERY[2:3], EVERY[3:]])
def test_an_eager_layer(batch, sequence, targets):
    """All of it, but the two norms' 16-bit inputs, which the sums of an eager norm in fp32 let go."""
    adapters = targets and Adapters(4, targets)
    layer = Layer(MODEL, adapters)
    x = torch.randn(batch, sequence, MODEL.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    angles = tuple(torch.randn(sequence, MODEL.head_dim, dtype=torch.bfloat16) for _ in range(2))
    measured = saved_bytes(layer, (x * 1, *angles), (*angles, *layer.parameters()))
    counted = layer_activation_bytes(MODEL, EAGER, Cut(1, batch, sequence, False, adapters=adapters))
    inputs = 2 * 2 * batch * sequence * MODEL.hidden_size
    statistics = 2 * 4 * batch * sequence  # an fp32 number a row and norm
    assert counted == pytest.approx(measured - statistics + inputs, rel=2e-3)


def gelu_new(x):
    """GELU as Hugging Face wrote it out."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


@CUTS
def test_an_activation_written_out(batch, sequence):
    """tanh and the factors of both products stay besides what one kernel keeps."""
    model = MODEL.replace(gated_mlp=False)
    x = torch.randn(batch * sequence, model.intermediate_size, dtype=torch.bfloat16, requires_grad=True)
    whole, apart = (
        saved_bytes(lambda x, run=run: run(x) @ torch.ones(model.intermediate_size, 1, dtype=x.dtype), (x * 1,), ())
        for run in (functional.gelu, gelu_new)
    )
    fused, written_out = (
        layer_activation_bytes(model, EAGER.replace(fused_activation=fused), Cut(1, batch, sequence, False))
        for fused in (True, False)
    )
    assert written_out - fused == pytest.approx(apart - whole, rel=1e-6)


@CUTS
def test_attention_in_fp32(batch, sequence):
    """Step by step nothing is cast: probabilities, the mask of their dropout, and what it leaves."""
    model = MODEL.replace(dropout=0.1)
    scores = torch.randn(batch, model.num_heads, sequence, sequence, requires_grad=True)
    values = torch.randn(batch, model.num_heads, sequence, model.head_dim, requires_grad=True)

    def core(scores, values):
        return functional.dropout(torch.softmax(scores / 4.0, -1), 0.1) @ values

    measured = saved_bytes(core, (scores * 1, values), (values,))
    stack = EAGER.replace(attention="math", fused_softmax=False)
    counted = attention_core_bytes(model, stack, Cut(1, batch, sequence, False, width=4))
    assert counted == pytest.approx(measured - 3 * scores.numel())  # a CPU's mask has 4 bytes, a GPU's one


@CUTS
def test_the_loss_of_whole_logits(batch, sequence):
    """In torch the forward alone keeps the fp32 log-probabilities; the backward's gradients come on top."""
    logits = torch.randn(batch * sequence, MODEL.vocab_size, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(batch * sequence, dtype=torch.long)
    kept = saved_bytes(lambda x, to: functional.cross_entropy(x.float(), to), (logits * 1, labels), (labels,))
    fused, apart = (
        logits_bytes(MODEL, EAGER.replace(fused_cross_entropy=fused), Cut(1, batch, sequence, False))
        for fused in (True, False)
    )
    assert apart - fused == pytest.approx(kept, abs=64)
