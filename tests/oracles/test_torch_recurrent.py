"""Layers that carry a state hold the parameters and run the multiplies of small torch modules of the same kinds.

Each module goes through the sequence in chunks, as the kernels do, and gives what the recurrence gives token by token.
"""

import pytest

from sim.specs import ModelSpec, StackSpec
from sim.work.layers import layer_operations
from sim.work.pieces import Cut
from sim.work.sums import params

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils import flop_counter  # noqa: E402

BATCH, SEQUENCE, HIDDEN, HEADS, COLUMNS, STATE, TAPS = 2, 256, 48, 4, 16, 8, 4


class Recurrent(nn.Module):
    """Projections in, a short convolution, the state, a gated norm, a projection out."""

    def __init__(self, groups, state, chunk):
        super().__init__()
        self.state, self.chunk, self.widths = state, chunk, (state, state, COLUMNS)
        self.values, self.keys = HEADS * COLUMNS, groups * state
        self.mixed = self.values + 2 * self.keys
        self.out = self.linear(self.values, HIDDEN)
        self.rate = nn.Parameter(torch.rand(HEADS))

    def linear(self, rows, columns):
        return nn.Linear(rows, columns, bias=False)

    def convolution(self, bias):
        return nn.Conv1d(self.mixed, self.mixed, TAPS, groups=self.mixed, padding=TAPS - 1, bias=bias)

    def forward(self, x, core):
        """What the layer gives, with the state carried by `core`."""
        mixed, decay, strength, gate = self.parts(x)
        mixed = functional.silu(self.convolved(mixed.mT)[..., :SEQUENCE].mT)
        parts = mixed.split((self.keys, self.keys, self.values), -1)
        q, k, v = (
            part.unflatten(-1, (-1, width)).transpose(1, 2) for part, width in zip(parts, self.widths, strict=True)
        )
        y = core(functional.normalize(q, dim=-1), functional.normalize(k, dim=-1), v, decay, strength, self.chunk)
        y = functional.rms_norm(y + self.direct * v, (COLUMNS,)) * self.gain
        return self.out((y.transpose(1, 2) * gate).flatten(2))

    direct = 0.0


class Mamba2(Recurrent):
    """Dao and Gu 2024, arXiv:2405.21060, section 7: one projection in, and a gain for every column."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.into = self.linear(HIDDEN, self.mixed + self.values + HEADS)
        self.convolved, self.gain = self.convolution(bias=True), nn.Parameter(torch.ones(HEADS, 1, COLUMNS))
        self.step, self.skip = nn.Parameter(torch.rand(HEADS)), nn.Parameter(torch.rand(HEADS, 1, 1))

    @property
    def direct(self):
        return self.skip

    def parts(self, x):
        mixed, gate, steps = self.into(x).split((self.mixed, self.values, HEADS), -1)
        steps = functional.softplus(steps + self.step).mT
        return mixed, -self.rate[:, None] * steps, None, functional.silu(gate).unflatten(-1, (HEADS, -1))


class GatedDeltaNet(Recurrent):
    """Yang et al. 2024, arXiv:2412.06464, section 3: what the state holds of a key is replaced."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.into, self.gates = self.linear(HIDDEN, self.mixed + self.values), self.linear(HIDDEN, 2 * HEADS)
        self.convolved, self.gain = self.convolution(bias=False), nn.Parameter(torch.ones(COLUMNS))
        self.step = nn.Parameter(torch.rand(HEADS))

    def parts(self, x):
        mixed, gate = self.into(x).split((self.mixed, self.values), -1)
        decay, strength = self.gates(x).mT.chunk(2, 1)
        decay = -self.rate[:, None] * functional.softplus(decay + self.step[:, None])
        return mixed, decay, strength.sigmoid(), functional.silu(gate).unflatten(-1, (HEADS, -1))


class KimiDeltaAttention(Recurrent):
    """Kimi Team 2025, arXiv:2510.26692, section 3: a decay for every column of a key, by a narrow projection."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.into, self.strength = self.linear(HIDDEN, self.mixed), self.linear(HIDDEN, HEADS)
        narrow, wide = (HIDDEN, COLUMNS), (COLUMNS, HEADS * self.state)
        self.decay, self.gate = (nn.Sequential(self.linear(*narrow), self.linear(*wide)) for _ in range(2))
        self.convolved, self.gain = self.convolution(bias=False), nn.Parameter(torch.ones(COLUMNS))
        self.step = nn.Parameter(torch.rand(HEADS * self.state))

    def parts(self, x):
        decay = functional.softplus(self.decay(x) + self.step).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        gate = self.gate(x).sigmoid().unflatten(-1, (HEADS, -1))
        return self.into(x), -self.rate[:, None, None] * decay, self.strength(x).sigmoid().mT, gate


def by_token(q, k, v, decay, strength, _):
    """The state, one token after the other."""
    q, k = (each.repeat_interleave(HEADS // each.shape[1], 1) for each in (q, k))
    decay = decay if decay.dim() == 4 else decay[..., None]
    state, given = torch.zeros(BATCH, HEADS, k.shape[-1], COLUMNS, dtype=v.dtype), []
    for t in range(SEQUENCE):
        state = decay[:, :, t].exp()[..., None] * state
        new = v[:, :, t]
        if strength is not None:
            new = strength[:, :, t, None] * (new - torch.einsum("bhnp,bhn->bhp", state, k[:, :, t]))
        state = state + k[:, :, t, :, None] * new[:, :, None]
        given.append(torch.einsum("bhnp,bhn->bhp", state, q[:, :, t]))
    return torch.stack(given, 2)


def by_chunk(q, k, v, decay, strength, chunk):
    """The state chunk by chunk, as products of matrices."""
    state, given = torch.zeros(BATCH, HEADS, k.shape[-1], COLUMNS, dtype=v.dtype), []
    for begin in range(0, SEQUENCE, chunk):
        part = slice(begin, begin + chunk)
        queries, keys = (each[:, :, part].repeat_interleave(HEADS // each.shape[1], 1) for each in (q, k))
        gone = decay[:, :, part].cumsum(2)
        if gone.dim() == 4:  # every column of a key decays by itself
            between, left, right = 1.0, keys * gone.exp(), keys * (-gone).exp()
            scores = (queries * gone.exp()) @ right.mT
        else:
            between, left, right = (gone[..., None] - gone[..., None, :]).tril().exp(), keys, keys
            scores = (q[:, :, part] @ k[:, :, part].mT).repeat_interleave(HEADS // q.shape[1], 1) * between
            gone = gone[..., None]
        new, last = v[:, :, part], gone[:, :, -1:]
        if strength is not None:
            by, one = strength[:, :, part, None], torch.eye(chunk, dtype=v.dtype)
            system = one + ((by * left) @ right.mT * between).tril(-1)
            solved = torch.linalg.solve_triangular(system, one, upper=False)
            new = solved @ (by * new) - (solved @ (by * keys * gone.exp())) @ state
        given.append((queries * gone.exp()) @ state + scores.tril() @ new)
        state = last.exp().mT * state + (keys * (last - gone).exp()).mT @ new
    return torch.cat(given, 2)


@pytest.mark.parametrize(
    ("mixer", "module", "groups", "state", "chunk"),
    [
        ("mamba2", Mamba2, 2, STATE, 128),
        pytest.param("gated_delta_net", GatedDeltaNet, 2, STATE, 64, marks=pytest.mark.thorough),
        pytest.param("kimi_delta_attention", KimiDeltaAttention, HEADS, COLUMNS, 64, marks=pytest.mark.thorough),
    ],
)
def test_parameters_and_multiplies(mixer, module, groups, state, chunk):
    model = ModelSpec(
        num_layers=1, hidden_size=HIDDEN, num_heads=4, vocab_size=64, layer_types=[mixer], mlp_layer_types=["none"],
        linear_num_heads=HEADS, linear_head_dim=COLUMNS, linear_num_key_heads=groups, linear_key_head_dim=state,
        linear_conv_kernel=TAPS,
    )  # fmt: skip
    layer = layer_operations(model, StackSpec(kernel_launch_s=0.0), Cut(1, BATCH, SEQUENCE, False))
    counted = [each for each in layer if each.name != "norm"]
    torch.manual_seed(1)
    real = module(groups, state, chunk).double()
    x = torch.randn(BATCH, SEQUENCE, HIDDEN, dtype=torch.float64)
    with flop_counter.FlopCounterMode(display=False) as counter, torch.no_grad():
        given = real(x, by_chunk)
    with torch.no_grad():
        torch.testing.assert_close(given, real(x, by_token))
    assert params(counted) == sum(each.numel() for each in real.parameters())
    multiplies = ("mm", "bmm", "addmm", "baddbmm")
    run = sum(flop for each, flop in counter.get_flop_counts()["Global"].items() if each.__name__ in multiplies)
    assert sum(kernel.flop for each in counted for kernel in each.forward) == run
