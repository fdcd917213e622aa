"""What happens inside kernels in few bits: experts' activation between their multiplies, attention's multiplies
and dropout."""

import pytest
from asked import asked
from rows import rows

from sim import estimate
from sim.costs.compute import ComputeModel
from sim.specs import GpuSpec, Profile, load_preset
from sim.work.operations import Cause, Kernel, Phase

GPUS = {"h100": "h100-sxm-80gb", "b200": "b200-sxm-180gb", "b300": "gb300-279gb"}


@rows(
    "node, framework, training, kept",
    [
        ("dgx-h100", "megatron-lm", {"precision": "fp8"}, 2),  # by rows and by columns
        ("dgx-b200", "megatron-lm", {"precision": "fp8"}, 1),  # which Blackwell reads either way
        ("dgx-b200", "megatron-lm", {"precision": "mxfp8", "high_precision_layers": 8}, 2 * (1 + 1 / 32) * 24 / 32),
        ("dgx-b200", "megatron-bridge", {"precision": "fp8"}, 1 - 2),  # and nothing in 16 bits
        ("dgx-b200", "megatron-bridge", {"precision": "nvfp4"}, 2 * (1 / 2 + 1 / 16)),
        ("dgx-h100", "torchtitan", {"precision": "fp8"}, 0),  # cast anew every time
    ],
)
def test_weights_are_kept_in_the_bits_that_are_multiplied(node, framework, training, kept):
    """Of Llama 3 8B's matrices in layers, in bytes a number beside the 16 bits of a run in bf16."""
    cluster, plan = {"name": "some", "node": node, "num_nodes": 1}, {"dp": 8, "zero_stage": 1}
    few, wide = (
        estimate(asked("llama3-8b", cluster, plan, stack=framework, **each))
        for each in (training, {"precision": "bf16"})
    )
    matrices = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert few.largest.weights - wide.largest.weights == pytest.approx(kept * matrices, abs=1)


def seconds_of_core(name, columns, eight, backward=False):
    """A core of 10^15 FLOP over 4,096 tokens, in 16 bits or 8."""
    gpu, profile = (
        GpuSpec.read(load_preset("gpus", GPUS[name]), name),
        Profile.read(load_preset("profiles", name), name),
    )
    core = Kernel(
        "core",
        Cause.ATTENTION,
        "attention",
        flop=1e15,
        nbytes=1.0,
        n=columns,
        k=columns,
        length=4096,
        backward=backward,
    )
    compute = ComputeModel(gpu, profile, "mxfp8", 2.0, fp8_attention=eight)
    return float(compute.phase_time(Phase((core,)))[core.cause])


# NVIDIA/TransformerEngine, pull request 3033: DeepSeek-V3's attention (128 heads of 192 and 128 columns, 4,096 tokens) on
# GB300, with its linears, in MXFP8 against bf16.
@pytest.mark.parametrize(("backward", "published"), [(False, 1.53), (True, 1.65)])
def test_published_gain_of_attention_in_8_bits(backward, published):
    sixteen, eight = (seconds_of_core("b300", 0.5 * (192 + 128), each, backward) for each in (False, True))
    assert sixteen / eight == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize("name", GPUS)
def test_exponentials_keep_attention_in_8_bits_below_twice_the_rate(name):
    """The narrower heads are, the larger is their part."""
    gains = [seconds_of_core(name, wide, False) / seconds_of_core(name, wide, True) for wide in (32, 64, 128, 256)]
    assert gains == sorted(gains)
    assert 1.0 < gains[0] < gains[-1] < 2.0
