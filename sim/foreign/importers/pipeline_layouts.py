"""What each stage of a pipeline holds, in Megatron's letters, and how many of its layers run again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from sim.foreign.importers.ledger import Ledger, Section


def layout_of(layers: Sequence[int], mtps: int = 0) -> str:
    """The shortest way to write stages of so many layers: `Et*3|(t*4|)*14t*3mL`.

    layers : of each stage, in the order that a micro-batch goes through them. The first has the embedding, the last
        the head, and before it modules of multi-token prediction.
    """
    stages = [_layers(count) for count in layers]
    stages[0] = f"E{stages[0]}"
    last = f"{stages.pop()}{'m' * mtps}L"
    runs = [(stage, len(list(same))) for stage, same in groupby(stages)]
    return "".join(f"({stage}|)*{times}" if times > 1 else f"{stage}|" for stage, times in runs) + last


def _layers(count: int) -> str:
    return f"t*{count}" if count > 2 else "t" * count


def take_repeated(plan: Section, number: int, layers: int, source: str) -> None:
    """Recompute so many whole layers of the `layers` of a stage."""
    if number in (0, layers):
        plan.took("recompute", "full" if number else "none", source)
        return
    plan.took("recompute", "full", source)
    plan.took("recompute_method", "block", source)
    plan.took("recompute_num_layers", number, f"{source}, of {layers} layers")


def note_flushes(ledger: Ledger, key: str, local: int, dp: int, batch: int) -> None:
    """Note that a pipeline drains after every `local` sequences of a replica, where a step has several such rounds.

    Every round is a step without its update: torch.distributed.pipelining sums gradients, and FSDP gathers weights
    again, whenever a schedule ends (torch/distributed/pipelining/schedules.py, `last_backward`; NeMo AutoModel's
    defer_fsdp_grad_sync puts the sums off to the last). No order of all micro-batches with one reduction is that.
    """
    rounds = batch // (local * dp)
    if rounds > 1:
        name = key.rpartition(".")[2]
        why = (
            f"the pipeline drains after each of {rounds} rounds of {name} {local}, which are priced as one: at most "
            f"{rounds} times the step of --set training.global_batch_size={local * dp}, less {rounds - 1} updates"
        )
        ledger.ignore(key, local, why, matters=True)
