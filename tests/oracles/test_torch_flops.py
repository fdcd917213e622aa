"""FLOPs of layers, head and whole steps are those torch counts when it runs the same matrices on the meta device."""

import pytest
from counts import layer_work

from sim.specs import ModelSpec, ParallelPlan, StackSpec, TrainingSpec
from sim.work.pieces import Cut
from sim.work.sums import hardware_flop, model_flop

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils import checkpoint, flop_counter  # noqa: E402

MATH = StackSpec(attention="math", kernel_launch_s=0.0)
FLASH = StackSpec(attention="flash", kernel_launch_s=0.0)
GPT = {"num_layers": 2, "vocab_size": 512, "max_sequence_length": 4096}
LLAMA = {
    "num_layers": 3, "vocab_size": 640, "gated_mlp": True, "position": "rotary", "norm": "rmsnorm", "bias": False,
    "tied_embeddings": False,
}  # fmt: skip
MODELS = {
    "gpt": ModelSpec(**GPT, hidden_size=256, num_heads=8),
    "gpt-wide-mlp": ModelSpec(**GPT, hidden_size=192, num_heads=16, intermediate_size=1000),
    "gpt-wide-heads": ModelSpec(**GPT, hidden_size=128, num_heads=8, head_dim=48),
    "llama": ModelSpec(**LLAMA, hidden_size=256, num_heads=8, intermediate_size=688),
    "llama-grouped": ModelSpec(**LLAMA, hidden_size=512, num_heads=32, num_kv_heads=8, intermediate_size=1376),
    "llama-one-kv-head": ModelSpec(**LLAMA, hidden_size=128, num_heads=8, num_kv_heads=1, intermediate_size=320),
}
SHAPES = [(1, 64), (3, 40)]
each_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
each_shape = pytest.mark.parametrize(("batch", "sequence"), SHAPES)


class Layer(nn.Module):
    """One layer as matrices: any number of key/value heads, MLP gated or not, the attention core recomputed or not."""

    def __init__(self, model, core_again=False):
        super().__init__()
        self.model, self.core_again = model, core_again
        h, d, bias = model.hidden_size, model.head_dim, model.bias
        self.query = nn.Linear(h, model.num_heads * d, bias)
        self.key_value = nn.Linear(h, 2 * model.num_kv_heads * d, bias)
        self.output = nn.Linear(model.num_heads * d, h, bias)
        self.up = nn.Linear(h, model.intermediate_size, bias)
        self.gate = nn.Linear(h, model.intermediate_size, bias) if model.gated_mlp else None
        self.down = nn.Linear(model.intermediate_size, h, bias)
        self.norms = nn.ModuleList(nn.LayerNorm(h) if model.norm == "layernorm" else nn.RMSNorm(h) for _ in range(2))

    def core(self, q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / self.model.head_dim**0.5, -1) @ v

    def attention(self, x):
        batch, sequence, _ = x.shape

        def heads(y, count):
            return y.view(batch, sequence, count, self.model.head_dim).transpose(1, 2)

        key, value = self.key_value(x).chunk(2, -1)
        copies = self.model.num_heads // self.model.num_kv_heads
        k, v = (heads(y, self.model.num_kv_heads).repeat_interleave(copies, 1) for y in (key, value))
        q = heads(self.query(x), self.model.num_heads)
        context = (
            checkpoint.checkpoint(self.core, q, k, v, use_reentrant=False) if self.core_again else self.core(q, k, v)
        )
        return self.output(context.transpose(1, 2).reshape(batch, sequence, -1))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        inner = (
            self.up(y) * torch.nn.functional.silu(self.gate(y)) if self.gate else torch.nn.functional.gelu(self.up(y))
        )
        return x + self.down(inner)


class Transformer(nn.Module):
    """Embedding, layers, head and loss; recomputation as the plan says."""

    def __init__(self, model, recompute):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
        self.layers = nn.ModuleList(Layer(model, recompute == "selective") for _ in range(model.num_layers))
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint.checkpoint(layer, x, use_reentrant=False) if self.recompute == "full" else layer(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def count(run):
    """FLOPs that torch counts in `run()`. Recomputation goes to its end, as it does in training frameworks."""
    with flop_counter.FlopCounterMode(display=False) as counter, checkpoint.set_checkpoint_early_stop(False):
        run()
    return counter.get_total_flops()


def count_block(build, x):
    """Forward, input gradient and weight gradient of a module, by freezing its weights in one of two runs."""
    with torch.device("meta"):
        module = build()
        forward = count(lambda: module(x))
        full = count(lambda: module(x).sum().backward())
        frozen = count(lambda: module.requires_grad_(False)(x).sum().backward())
    return forward, frozen - forward, full - frozen


def cut_to(tp, batch, sequence, recompute="none"):
    return Cut(tp, batch, sequence, sequence_parallel=False, recompute=recompute)


def phases(work):
    return work.forward.flop, work.input_grad.flop, work.weight_grad.flop


@each_shape
@each_model
def test_layer_forward_input_gradient_and_weight_gradient(model, batch, sequence):
    x = torch.empty(batch, sequence, model.hidden_size, device="meta", requires_grad=True)
    counted = count_block(lambda: Layer(model), x)
    assert phases(layer_work(model, MATH, cut_to(1, batch, sequence))) == counted


@each_model
@pytest.mark.parametrize(
    ("batch", "sequence", "recompute"),
    [pytest.param(2, 32, "none", marks=pytest.mark.thorough), (1, 48, "selective"), (3, 16, "full")],
)
def test_whole_step(model, batch, sequence, recompute):
    with torch.device("meta"):
        transformer = Transformer(model, recompute)
        tokens = torch.zeros(batch, sequence, dtype=torch.long)
        forward = count(lambda: transformer(tokens))
        step = count(lambda: transformer(tokens).backward())
    training = TrainingSpec(global_batch_size=batch, sequence_length=sequence)
    assert model_flop(model, training) == 3 * forward
    assert hardware_flop(model, training, ParallelPlan(recompute=recompute)) == step
    # What recomputation adds is what the layers say they run again.
    again = layer_work(model, MATH, cut_to(1, batch, sequence, recompute)).recompute.flop
    assert step - 3 * forward == model.num_layers * again


@each_shape
@pytest.mark.parametrize("name", ["gpt", "gpt-wide-heads", "llama"])
def test_flash_attention_runs_five_multiplies_backward_and_is_credited_four(name, batch, sequence):
    model = MODELS[name]
    heads = (batch, model.num_heads, sequence, model.head_dim)
    math, flash = (layer_work(model, stack, cut_to(1, batch, sequence)) for stack in (MATH, FLASH))
    (forward,) = (operation for operation in flash.forward.operations if operation.kind == "attention")
    (backward,) = (operation for operation in flash.input_grad.operations if operation.kind == "attention")
    # torch counts whole squares of scores, of which the kernels compute half.
    assert 2 * forward.flop == flop_counter.sdpa_flop_count(heads, heads, heads)
    assert 2 * backward.flop == flop_counter.sdpa_backward_flop_count(heads, heads, heads, heads)
    assert flash.forward.model_flop == math.forward.flop
    assert flash.input_grad.model_flop == math.input_grad.flop
