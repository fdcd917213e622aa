"""Scenarios as tests ask for them: sections by name, and what is usual of a training unless it is said."""

from sim import build_scenario


def asked(model, cluster, plan, *changes, stack="megatron-core", profile=None, batch=64, sequence=4096, **training):
    """A scenario of these sections, in bf16; `batch` and `sequence` count sequences and their tokens."""
    training = {"global_batch_size": batch, "sequence_length": sequence, "precision": "bf16", **training}
    given = {"model": model, "cluster": cluster, "plan": plan, "training": training, "stack": stack}
    return build_scenario(given | ({"profile": profile} if profile else {}), changes)
