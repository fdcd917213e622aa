"""The loss of a policy: log-probabilities by pieces of the vocabulary, multiplied again in the backward."""

import pytest
from counts import head_work

from sim.costs.compute import ComputeModel
from sim.specs import ModelSpec, Profile, StackSpec, load_preset
from sim.specs.hardware import GpuSpec
from sim.work.operations import Adapters
from sim.work.pieces import Cut

WHOLE = StackSpec(chunked_loss=True, kernel_launch_s=0.0)
POLICY = WHOLE.replace(policy_loss_columns=2048)
LLAMA = ModelSpec(num_heads=32, hidden_size=4096, num_layers=32, vocab_size=128256)


def head(stack, *, tokens=16384, width=2, adapters=None, model=LLAMA):
    cut = Cut(1, 1, tokens, False, "none", width, adapters=adapters)
    return head_work(model, stack, cut)


def test_its_backward_multiplies_the_logits_again():
    forward = 2 * 16384 * LLAMA.vocab_size * LLAMA.hidden_size
    for stack, times in ((WHOLE, 3), (POLICY, 4)):
        work = head(stack)
        assert work.forward.flop == pytest.approx(forward)
        assert work.forward.flop + work.input_grad.flop + work.weight_grad.flop == pytest.approx(times * forward)


def test_it_makes_the_weights_gradient_of_a_frozen_head_too():
    trained, frozen = (head(POLICY, adapters=each) for each in (None, Adapters(16, ("linear_qkv",))))
    assert frozen.input_grad.flop == trained.input_grad.flop
    assert head(WHOLE, adapters=Adapters(16, ("linear_qkv",))).weight_grad.flop == 0


# PrimeIntellect-ai/prime-rl, pull request 1525: forward and backward of Llama 3 8B's head in fp32, pieces of so many
# columns, 16,384 tokens [ms]. It does not say on which GPU; that it is H100, with TF32 multiplies, is inferred.
@pytest.mark.parametrize(("columns", "measured_ms"), [(2048, 298.7), (8192, 286.8)])
def test_it_takes_what_its_authors_measured(columns, measured_ms):
    gpu = GpuSpec.read(load_preset("gpus", "h100-sxm-80gb"), "h100")
    profile = Profile.read(load_preset("profiles", "h100"), "h100")
    compute = ComputeModel(gpu, profile, "tf32", 4.0)
    work = head(WHOLE.replace(policy_loss_columns=columns), width=4)
    seconds = sum(sum(compute.phase_time(each).values()) for each in (work.forward, work.input_grad))
    assert 1e3 * seconds == pytest.approx(measured_ms, rel=0.1)


def test_pieces_of_ligers_loss():
    """As many as its kernel makes of them; each reads the head's weights twice, and reads and writes their gradient."""
    liger = StackSpec(chunked_loss=True, kernel_launch_s=0.0, fused_gradient_accumulation=False)
    model = LLAMA.replace(hidden_size=2048, vocab_size=151936, num_heads=16)
    moved, launched = [], []
    for stack in (liger, liger.replace(fused_cross_entropy=False)):
        work = head(stack, tokens=4096, model=model)
        multiplies = [
            each
            for part in (work.forward, work.input_grad, work.weight_grad)
            for each in part.operations
            if each.kind == "matmul"
        ]
        moved.append(sum(each.nbytes for each in multiplies))
        launched.append([float(each.kernels) for each in multiplies])
    assert launched == [[64] * 3, [1] * 3]  # ceil(4096 / 75) = 55 tokens, and the next power of two
    assert moved[0] - moved[1] == pytest.approx(4 * 63 * 2 * model.vocab_size * model.hidden_size)
