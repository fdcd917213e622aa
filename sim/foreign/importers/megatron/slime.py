"""Supervised fine-tuning by slime, whose trainer sets some of Megatron-LM's arguments and packs samples by tokens.

Defaults are those of THUDM/slime: slime/utils/arguments.py and slime/backends/megatron_utils/arguments.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.foreign.importers.keys import Arguments
from sim.foreign.importers.ledger import Section

_MOST_SAMPLES = 4096
"""Samples of one micro-batch that are looked at."""


def is_fine_tuning(words: Sequence[str]) -> bool:
    """Whether a command is slime's supervised fine-tuning, not training by reinforcement."""
    return "--loss-type sft_loss" in " ".join(words).replace("=", " ").replace("_type", "-type")


def take_trainer(arguments: Arguments) -> list[str]:
    """Take slime's own arguments, and set those of Megatron-LM that its trainer sets; a launcher's words for as many
    processes. Raises SpecError: no length of the samples."""
    if "seq-length" not in arguments:
        raise arguments.ledger.error(
            "slime takes samples as long as they are, and --seq-length is missing; add it to the command, "
            "with the mean number of tokens of your samples"
        )
    nodes, each = arguments.raw("actor-num-nodes") or ["1"], arguments.raw("actor-num-gpus-per-node") or ["8"]
    arguments.has("loss-type", "actor-num-nodes", "actor-num-gpus-per-node")
    sets = ["use-distributed-optimizer", *(["bf16"] if "fp16" not in arguments else [])]
    arguments.ledger.assume("arguments", " ".join(f"--{name}" for name in sets), "slime sets them itself")
    for name in sets:
        arguments.replace(name, [])
    if "num-experts" in arguments and arguments.raw("moe-token-dispatcher-type") in (None, ["allgather"]):
        arguments.replace("moe-token-dispatcher-type", ["alltoall"])
    samples = (arguments.whole("rollout-batch-size") or 1) * (arguments.whole("n-samples-per-prompt") or 1)
    steps, rollouts = arguments.whole("num-steps-per-rollout"), arguments.whole("num-rollout")
    if steps is not None:
        arguments.replace("global-batch-size", [str(max(1, samples // steps))])
    if rollouts is not None:
        arguments.replace("train-samples", [str(rollouts * samples)])
    return ["--nnodes", *nodes, "--nproc-per-node", *each]


def pack_samples(plan: Section, training: Section, arguments: Arguments) -> None:
    """Take as many samples at once as the tokens of a micro-batch hold (slime/utils/dp_schedule.py), of a number that
    divides a replica's."""
    if not arguments.has("use-dynamic-batch-size"):
        return
    tokens = arguments.needed("max-tokens-per-gpu") * plan.get("cp", 1)
    held, each = tokens // training["sequence_length"], training["global_batch_size"] // plan["dp"]
    sizes = range(min(held, each, _MOST_SAMPLES), 1, -1)
    fits = next((size for size in sizes if each % size == 0), 1)
    why = f"{held} samples have --max-tokens-per-gpu · cp = {tokens:,} tokens, and a replica has {each} a step"
    plan.assume("microbatch_size", fits, why)
