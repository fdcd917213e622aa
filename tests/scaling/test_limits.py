"""The walls: the published arithmetic, inverses, and directions that must hold whatever the constants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import SpecError
from sim.scaling.loss_laws import (
    Growth,
    IdealGpu,
    best_utilisation,
    latency_bound_time,
    latency_wall,
    optimal_shape,
    require_possible,
    utilisation_in_time,
)

NINE_MONTHS = 0.75 * 365.25 * 86400
EPOCH = 700e12  # parameters: 60 million tokens a batch, nine months, 110 µs a layer


def test_epochs_arithmetic():
    tokens = 20 * EPOCH
    assert 6 * EPOCH * tokens == pytest.approx(5.9e31, rel=5e-3)
    assert optimal_shape(6 * EPOCH * tokens) == (pytest.approx(EPOCH), pytest.approx(tokens))
    steps = tokens / 60e6
    assert steps == pytest.approx(2.33e8, rel=2e-3)
    assert NINE_MONTHS / steps == pytest.approx(0.101, rel=5e-3)
    # So their model has about 920 layers; with that many, our wall is theirs.
    layers = NINE_MONTHS / steps / 110e-6
    assert latency_bound_time(EPOCH, tokens, 60e6, 110e-6, layers) == pytest.approx(NINE_MONTHS)
    assert latency_wall(NINE_MONTHS, 60e6, 110e-6, Growth(layers, EPOCH)) == pytest.approx(5.9e31, rel=5e-3)


@pytest.mark.parametrize(("latency", "published"), [(110e-6, 6e31), (400e-6, 7e30)])
def test_wall_of_our_own_shapes_lies_in_epochs_range(latency, published):
    wall = latency_wall(NINE_MONTHS, 60e6, latency)
    assert 3e30 < wall < 1e32
    assert 1 / 3 < wall / published < 3


@given(st.floats(1e6, 1e9), st.floats(1e-6, 1e-3), st.floats(1e6, 1e8), st.floats(0.0, 0.5))
def test_the_wall_is_where_the_time_is_the_duration(batch, latency, duration, exponent):
    growth = Growth(exponent=exponent)
    params, tokens = optimal_shape(latency_wall(duration, batch, latency, growth))
    time = latency_bound_time(params, tokens, batch, latency, growth.num_layers(params))
    assert time == pytest.approx(duration, rel=1e-6)


def test_growth_is_gpt3():
    assert Growth().num_layers(175e9) == 96
    assert Growth().hidden_size(175e9) == pytest.approx(12288, rel=0.01)


def test_utilisation_falls_where_published_for_batches_like_todays():
    # Erdil and Schneider-Joseph: beyond about 1e28 in three months; we claim its order of magnitude only.
    shares = {batch: [utilisation_in_time(flop, batch)[0] for flop in (1e26, 1e28, 1e30)] for batch in (1.6e7, 6e7)}
    for batch, (early, middle, late) in shares.items():
        assert early > 0.9, batch
        assert early > middle
        assert late == 0.0
    assert 0.3 < shares[6e7][1] < 0.95


def test_a_batch_that_grows_with_data_moves_the_wall():
    def largest(batch):
        return max(power for power in range(24, 34) if utilisation_in_time(10.0**power, batch)[0] > 0)

    assert largest(4e6) < largest(6e7) < largest(1e9)


@given(st.floats(10, 1e6), st.sampled_from([1e6, 1e7, 1e8]))
def test_utilisation_is_a_share(gpus, batch):
    share = best_utilisation(gpus, 1e11, batch)
    assert 0 <= share <= 1
    faster = IdealGpu(network_bandwidth_bytes_per_s=1e12)
    assert best_utilisation(gpus, 1e11, batch, faster) >= share - 1e-12


def test_one_gpu_has_nothing_to_wait_for():
    assert best_utilisation(1, 1e9, 4e6) == pytest.approx(1.0)


def test_reading_weights_for_each_microbatch():
    # The longest micro-batch is 2^15 tokens; a memory that needs 2^16 to keep up halves the speed.
    slow = IdealGpu(peak_flop_per_s=1e15, memory_bandwidth_bytes_per_s=1e15 / 2**16)
    assert best_utilisation(1, 1e9, 2.0**15, slow) == pytest.approx(0.5)


def test_data_parallel_traffic_that_does_not_hide():
    # 2^20 tokens on 2^10 GPUs, too small a model to cut: 2^10 tokens a GPU give 768 FLOP a byte.
    tiny = Growth(layers=1, params=1e5, exponent=0.0)
    machine = IdealGpu(1e15, 1e30, 1e30, 8, network_bandwidth_bytes_per_s=1e15 / 1536)
    assert best_utilisation(2**10, 1e5, 2.0**20, machine, tiny) == pytest.approx(0.5)


def test_tensor_parallelism_beyond_the_domain_pays_the_network():
    # One micro-batch leaves tensor parallelism only: 16 ways, 8 inside NVLink.
    growth = Growth(layers=1, params=12 * 4096.0**2, exponent=0.0)
    machine = IdealGpu(1e15, 1e30, nvlink_bandwidth_bytes_per_s=1e12, network_bandwidth_bytes_per_s=1e11)
    expected = 1 / (1 + 7 * 1e3 / (3 * 4096) + 1 * 1e4 / (3 * 4096))
    assert best_utilisation(16, 12 * 4096.0**2, 256, machine, growth) == pytest.approx(expected)


def test_more_gpus_than_the_batch_can_feed():
    assert best_utilisation(1e7, 1e9, 1e6) == 0.0


def test_the_impossible_says_what_is_possible():
    require_possible(1e30, NINE_MONTHS, 60e6, 110e-6)
    with pytest.raises(SpecError, match=r"The most is 2\.8e\+31 FLOP; or raise the batch to") as error:
        require_possible(1e32, NINE_MONTHS, 60e6, 110e-6)
    batch = float(str(error.value).partition("raise the batch to ")[2].split()[0])
    require_possible(1e32, NINE_MONTHS, batch * 1.01, 110e-6)
    with pytest.raises(SpecError, match="flop = nan"):
        optimal_shape(float("nan"))
