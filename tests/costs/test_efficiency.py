"""Kernels: tiles and waves as the vendor's guide counts them, attention as measured, bounds that no shape passes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.costs.compute import ComputeModel, clock_gain, gemm_time
from sim.specs import GpuSpec, Profile, load_preset, preset_names
from sim.work.attention import padded_head
from sim.work.operations import Cause, Kernel, Phase
from tests.rows import rows

A100 = GpuSpec.read(load_preset("gpus", "a100-sxm-80gb"), "a100")
H100 = GpuSpec.read(load_preset("gpus", "h100-sxm-80gb"), "h100")
PROFILES = {name: Profile.read(load_preset("profiles", name), name) for name in preset_names("profiles")}
PROFILE = PROFILES["a100"]
ALIGNED = PROFILE.gemm.replace(alignment={})
# Only tiles and waves: no overhead, and small tiles so slow that the largest is always chosen.
TEXTBOOK = ALIGNED.replace(
    max_efficiency=1.0, k_overhead=0.0, tile_exponent=10.0, wave_quantisation=1.0, kernel_floor_s=0.0
)


def time_of(m, n, k, *, batch=1, gpu=A100, gemm=PROFILE.gemm, memory_efficiency=PROFILE.memory.efficiency, layout="nn"):
    return gemm_time(m, n, k, batch, "fp16", 2.0, gpu, gemm, memory_efficiency, layout=layout)


def kernel_s(compute, kernel):
    """Time of one kernel on the GPU. [s]"""
    return compute.phase_time(Phase((kernel,)))[kernel.cause]


def waves(m, n, gpu, gemm=TEXTBOOK):
    """How many times a wave of the largest tile a multiply takes."""
    gpu = gpu.replace(memory_bandwidth_bytes_per_s=1e20)  # bytes do not matter here
    one_wave = 2 * 256 * 128 * 4096 * gpu.num_sms / gpu.peak("fp16")
    return float(time_of(m, n, 4096, gpu=gpu, gemm=gemm)) / one_wave


# NVIDIA, Matrix Multiplication Background User's Guide: 108 SMs of an A100; 109 tiles leave 107 of them idle.
def test_one_tile_more_than_the_gpu_has_sms_takes_a_second_wave():
    assert waves(256 * 108, 128, A100) == pytest.approx(1)
    assert waves(256 * 109, 128, A100) == pytest.approx(2)
    assert 109 / (108 * waves(256 * 109, 128, A100)) == pytest.approx(0.505, abs=5e-4)


def test_the_corner_of_the_roofline_is_round():
    """Where bytes take as long as multiplies, a kernel takes √2 times as long; far from there, as long as the longer."""

    def time(nbytes):
        return float(gemm_time(8192, 8192, 8192, 1, "fp16", 2.0, A100, TEXTBOOK, 1.0, nbytes))

    compute = time(1.0)
    for share, longer in ((1e-6, 1.0), (1.0, 2**0.5), (10.0, 101**0.5)):
        nbytes = share * compute * A100.memory_bandwidth_bytes_per_s
        assert time(nbytes) == pytest.approx(longer * compute)


dims = st.integers(1, 60000)
shapes = st.tuples(dims, dims, dims, st.sampled_from([1, 1, 4, 96]))
names = st.sampled_from(sorted(PROFILES))


@settings(max_examples=13)
@given(name=names, shape=shapes)
def test_never_above_peak_never_faster_than_bytes_never_below_the_floor(name, shape):
    m, n, k, batch = shape
    gemm, share = PROFILES[name].gemm, PROFILES[name].memory.efficiency
    seconds = time_of(m, n, k, batch=batch, gemm=gemm, memory_efficiency=share)
    assert 2.0 * m * n * k * batch / seconds <= A100.peak("fp16") * gemm.max_efficiency * (1 + 1e-12)
    nbytes = 2.0 * batch * (m * k + k * n + m * n)
    assert nbytes / seconds <= A100.memory_bandwidth_bytes_per_s * share * (1 + 1e-12)
    assert seconds >= gemm.kernel_floor_s


@settings(max_examples=13)
@given(name=names, shape=shapes, which=st.integers(0, 3), more=st.integers(0, 5000))
def test_a_larger_multiply_never_takes_less_time(name, shape, which, more):
    gemm = PROFILES[name].gemm.replace(alignment={})
    larger = [size + more * (place == which) for place, size in enumerate(shape)]
    assert time_of(*larger[:3], batch=larger[3], gemm=gemm) >= time_of(*shape[:3], batch=shape[3], gemm=gemm)


# cookbook@27dff48, sizing/results/transformer_data/vocab_v_sweep.out and vocab_h_sweep.out: TFLOP/s of 8,192 rows.
@pytest.mark.parametrize(
    ("n", "k", "tflops"),
    [
        (14336, 51136, 255.4), (14336, 51137, 76.1), (14336, 51138, 136.9), (14336, 51140, 138.4),
        (14336, 51144, 227.9), (14272, 51200, 253.7), (14290, 51200, 172.8),
    ],
)  # fmt: skip
def test_published_multiplies_one_column_apart(n, k, tflops):
    card = GpuSpec.read(load_preset("gpus", "a100-sxm-40gb"), "a100")
    assert 2 * 8192 * n * k / float(time_of(8192, n, k, gpu=card)) / 1e12 == pytest.approx(tflops, rel=0.09)


@settings(max_examples=13)
@given(name=names, shape=shapes, which=st.integers(0, 2), layout=st.sampled_from(["nn", "nt", "tn"]))
def test_padding_never_costs_more_than_its_work(name, shape, which, layout):
    """The next size that one more factor of two divides takes at most as much longer as its tiles, or its bytes, do."""
    gemm, padded = PROFILES[name].gemm, list(shape)
    padded[which] += shape[which] & -shape[which]
    fast, bare = A100.replace(memory_bandwidth_bytes_per_s=1e25), gemm.replace(alignment={}, kernel_floor_s=0.0)

    def more(value):
        return float(value(*padded[:3], padded[3]) / value(*shape[:3], shape[3]))

    tiles = more(lambda m, n, k, b: time_of(m, n, k, batch=b, gpu=fast, gemm=bare))
    nbytes = more(lambda m, n, k, b: m * k + k * n + m * n)
    longer = more(lambda m, n, k, b: time_of(m, n, k, batch=b, gemm=gemm, layout=layout))
    assert longer <= max(tiles, nbytes) * (1 + 1e-9)


def model(gpu=A100, profile=PROFILE, precision="fp16", launch=0.0):
    return ComputeModel(gpu, profile, precision, 2.0, launch)


def test_random_numbers_of_dropout_take_what_attention_with_it_took_longer():
    """GPT-2 medium's attention takes 7.84 ms of a step on an H100; at the rate of Llama 3.2 1B's, of heads of 64 columns
    too, and by the rise of shorter sequences it were 5.3 (calibration/data/h100-steps.csv, attention_s)."""
    scores = 8 * 16 * 1024 * 1024 / 2
    core, drawn = (Kernel("flash", Cause.ATTENTION, "attention", n=64, k=64, length=1024, draws=n) for n in (0, scores))
    compute = model(H100, PROFILES["h100"])
    assert 24 * 2 * (kernel_s(compute, drawn) - kernel_s(compute, core)) == pytest.approx(7.84e-3 - 5.3e-3, rel=0.05)


CLOCK = PROFILES["h200"].clock


@given(st.floats(0, 5), st.floats(0.3, 1.0), st.floats(0.5, 1.5), st.floats(0.2, 3.0))
def test_a_boards_power_is_what_its_limit_allows(others, multiplying, limit, width):
    """What multiplies draw more than the limit, other kernels draw less, until the clock is at its highest."""
    clock = CLOCK.replace(multiplying=multiplying)
    usual = (1 - multiplying) / multiplying
    assert clock_gain(usual, clock) == pytest.approx(1)
    assert clock_gain(others, clock) <= clock_gain(others + 0.1, clock) + 1e-12
    assert clock_gain(others, clock, limit) <= clock_gain(others, clock, limit + 0.1) + 1e-12
    # A wider board, of whose multiplies others take the more time, computes no less.
    wider = clock_gain(1.1 * others, clock, limit, 1.1 * width)
    assert clock_gain(others, clock, limit, width) <= 1.1 * wider * (1 + 1e-9)
    gain = float(clock_gain(others, CLOCK, limit, width))
    allowed, drawn_by_others = limit * (1 / gain + others), min(clock.others_power, limit) * others
    drawn = (clock.idle_power + (1 - clock.idle_power) * width * gain**clock.exponent) / gain + drawn_by_others
    assert drawn == pytest.approx(allowed, rel=1e-3) or (gain == CLOCK.most and drawn < allowed)


@rows(
    "version, columns, as_long_as",
    [("2", 80, 96), ("cudnn", 80, 128), ("efficient", 160, 256), ("flex", 96, 128), ("3", 64, 64), ("2", 288, 288)],
)
def test_a_head_takes_as_long_as_the_kernels_next_size(version, columns, as_long_as):
    """Each head's time, not each FLOP's: 80 columns are no faster than 96 or 128."""

    def seconds(wide):
        padded = padded_head(wide, version)
        core = Kernel("core", Cause.ATTENTION, "attention", flop=1e9 * wide, n=wide, k=padded, length=4096)
        compute = ComputeModel(H100, PROFILES["h200"], "bf16", 2.0, flash_version=version)
        return kernel_s(compute, core)

    assert seconds(columns) == pytest.approx(seconds(as_long_as), rel=1e-3)


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
