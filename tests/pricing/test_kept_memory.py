"""What waits in memory: activations that stages have sent, and the optimizer's state on the host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import build_scenario, estimate, load_scenario


def activations(*changes):
    of_530b = ["plan.schedule=1f1b", "plan.num_chunks=1", *changes]
    found = estimate(load_scenario("scenarios/korthikanti-2022/530b-full.yaml", of_530b)).memory
    return [use.activations for use in found]


def test_the_first_rank_keeps_one_for_every_micro_batch_in_flight_and_the_last_none():
    """Korthikanti et al. 2022, appendix B: 2 s b h p bytes on the first of p ranks."""
    kept, freed = (activations(f"stack.keeps_sent_activations={value}") for value in ("true", "false"))
    each = 2 * 2048 * 20480
    assert [more - less for more, less in zip(kept, freed, strict=True)] == pytest.approx(
        [each * (35 - rank) for rank in range(34)] + [0]
    )


QWEN3 = {
    "model": "qwen3-0.6b",
    "cluster": {"node": "rtx-a6000-8", "num_nodes": 1, "name": "one node"},
    "stack": {"framework": "prime-rl", "version": "2026-06-24"},
    "plan": {"dp": 1, "microbatch_size": 1, "recompute": "full"},
    "training": {"global_batch_size": 2, "sequence_length": 65536},
}
GIB = 2**30


def largest(dp=1, length=65536, **stack):
    changes = [f"plan.dp={dp}", f"training.global_batch_size={2 * dp}", f"training.sequence_length={length}"]
    return estimate(build_scenario(QWEN3, changes + [f"stack.{name}={value}" for name, value in stack.items()])).largest


# PrimeIntellect-ai/prime-rl:benchmarks/baselines@559b44772e of 24 June 2026, reserved on one RTX A6000 and on four. [GiB]
@pytest.mark.parametrize(("dp", "peak_gib"), [(1, 11.73), (4, 6.299)])
def test_published_peaks_of_prime_rl(dp, peak_gib):
    assert largest(dp).reserved == pytest.approx(peak_gib * GIB, rel=0.05)


def test_on_one_gpu_the_update_is_what_needs_most():
    """Weights, gradients, two moments and the roots of one: 20 bytes a parameter, and nothing of the backward."""
    use, params = largest(), 596_049_920
    held = use.weights + use.gradients + use.optimizer + use.activations + use.logits + use.working
    assert held == pytest.approx(20 * params, rel=1e-3)
    assert largest(update_temporaries=0).allocated < use.allocated
    # On four the backward's activations need more than what the update would.
    assert largest(4, update_temporaries=0) == largest(4)


@given(dp=st.sampled_from([1, 2, 4, 8]), length=st.sampled_from([1024, 8192, 65536]), copies=st.integers(0, 2))
def test_waiting_takes_the_larger_of_two_moments(dp, length, copies):
    scenario = build_scenario(
        QWEN3,
        [
            f"plan.dp={dp}", f"training.global_batch_size={2 * dp}", f"training.sequence_length={length}",
            f"stack.update_temporaries={copies}",
        ],
    )  # fmt: skip
    waits = estimate(scenario).largest
    stays = estimate(scenario.replace(plan=scenario.plan.replace(optimizer_offload=0.0))).largest
    moments = stays.optimizer - waits.optimizer
    backward = stays.total - moments
    assert waits.total <= stays.total
    assert waits.total >= backward * (1 - 1e-9) or copies  # without it the backward alone needs so much
    at_update = waits.weights + waits.gradients + waits.optimizer + moments + copies * moments / 2
    assert waits.allocated >= at_update * (1 - 1e-9)
