"""What stages have sent and keep until the backward."""

import pytest

from sim import build_scenario, estimate, load_scenario

FIGURE_17 = {
    "model": "gpt-145.6b", "cluster": "selene", "stack": {"preset": "megatron-2021", "fused_softmax": False},
    "profile": "a100", "plan": {"tp": 8, "pp": 16, "dp": 1, "microbatch_size": 1},
    "training": {"global_batch_size": 16, "sequence_length": 2048, "precision": "fp16"},
}  # fmt: skip


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


@pytest.mark.parametrize(("batch", "recompute", "fits"), [(8, "none", True), (16, "none", False), (256, "full", True)])
def test_with_as_many_micro_batches_as_ranks_or_fewer_memory_grows_with_the_batch(batch, recompute, fits):
    """Narayanan et al. 2021, figure 17: without recomputation only small batches."""
    changes = [f"training.global_batch_size={batch}", f"plan.recompute={recompute}"]
    assert estimate(build_scenario(FIGURE_17, changes)).fits == fits
