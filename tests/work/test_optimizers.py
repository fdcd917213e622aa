"""Optimizers' states and Muon's multiplies beside those of torch, on a real model."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from sim.specs import ModelSpec, StackSpec, TrainingSpec  # noqa: E402
from sim.work.operations import Weight  # noqa: E402
from sim.work.optimizer import MOMENT_BYTES, orthogonalisation, state_bytes  # noqa: E402
from sim.work.sums import matrices, model_blocks, moments, params  # noqa: E402

STACK = StackSpec(kernel_launch_s=0.0)
DENSE = ModelSpec(
    num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, intermediate_size=160, vocab_size=512, gated_mlp=True,
    position="rotary", norm="rmsnorm", bias=False, tied_embeddings=False,
)  # fmt: skip


def training(**changes):
    return TrainingSpec(global_batch_size=1, sequence_length=8, **changes)


def of_model(optimizer):
    """(parameters, moments, matrices that Muon takes and how often) of the whole model on one GPU."""
    blocks = [(block.operations, count) for count, block in model_blocks(DENSE)]
    held = sum(count * params(block) for block, count in blocks)
    numbers = sum(count * moments(block, optimizer) for block, count in blocks)
    return held, numbers, [(each, count) for block, count in blocks for each in matrices(block)]


@pytest.fixture(scope="module")
def llama():
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=160,
        vocab_size=512, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    return model


def bytes_of(*optimizers):
    """Of an optimizer's tensors, step counters apart."""
    found = 0
    for optimizer in optimizers:
        optimizer.step()
        for state in optimizer.state.values():
            found += sum(t.numel() * t.element_size() for n, t in state.items() if torch.is_tensor(t) and n != "step")
    return found


def of_torch(name, llama):
    inside = [p for n, p in llama.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    rest = [p for p in llama.parameters() if all(p is not other for other in inside)]
    return {
        "adam": lambda: [torch.optim.AdamW(llama.parameters())],
        "sgd": lambda: [torch.optim.SGD(llama.parameters(), momentum=0.9)],
        "adafactor": lambda: [torch.optim.Adafactor(llama.parameters())],
        "muon": lambda: [torch.optim.Muon(inside), torch.optim.AdamW(rest)],
    }[name]()


@pytest.mark.parametrize("name", ["adam", "sgd", "adafactor", "muon"])
def test_states_are_as_large_as_those_of_torch(name, llama):
    params, moments, _ = of_model(name)
    assert params == sum(each.numel() for each in llama.parameters())
    found = state_bytes(params, moments, training(precision="fp32", optimizer=name), STACK)
    assert found == bytes_of(*of_torch(name, llama))


def test_muon_multiplies_over_a_whole_model_as_often_as_torch(llama):
    optimizer = of_torch("muon", llama)[0]
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    _, _, matrices = of_model("muon")
    ours = sum(count * each.flop for matrix, count in matrices for each in orthogonalisation(matrix))
    assert ours == counter.get_total_flops()
    m, n = 64, 160
    assert sum(o.flop for o in orthogonalisation(Weight(n, m))) == 5 * (4 * m * m * n + 2 * m**3)


def test_moments_in_fewer_bits():
    per_param = {
        ("adam", "fp32", "fp32"): 12, ("adam", "bf16", "fp32"): 8, ("adam", "fp8", "fp16"): 4,
        ("adam", "int8", "fp32"): 4 + 2 * (1 + 4 / 256), ("adam", "int8", "none"): 2 * (1 + 4 / 256), ("sgd", "bf16", "none"): 2,
    }  # fmt: skip
    for (name, moment, master), expected in per_param.items():
        job = training(optimizer=name, moment_precision=moment, master_precision=master)
        params, moments, _ = of_model(name)
        assert state_bytes(params, moments, job, STACK) / params == pytest.approx(expected)
    assert MOMENT_BYTES["int8"] == pytest.approx(1.015625)
