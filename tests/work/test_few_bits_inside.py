"""Attention's multiplies in 8 bits."""

import pytest

from sim.costs.compute import ComputeModel
from sim.specs import GpuSpec, Profile, load_preset
from sim.work.operations import Cause, Kernel, Phase

GPUS = {"h100": "h100-sxm-80gb", "b200": "b200-sxm-180gb", "b300": "gb300-279gb"}


def seconds_of_core(name, columns, eight, backward=False):
    """A core of 10^15 FLOP over 4,096 tokens, in 16 bits or 8."""
    gpu = GpuSpec.read(load_preset("gpus", GPUS[name]), name)
    profile = Profile.read(load_preset("profiles", name), name)
    shape = {"n": columns, "k": columns, "length": 4096, "backward": backward}
    core = Kernel("core", Cause.ATTENTION, "attention", flop=1e15, nbytes=1.0, **shape)
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
