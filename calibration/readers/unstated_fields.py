"""Fields that a row of a table of runs does not state and its authors tuned: micro-batch, chunks, recomputation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from calibration.readers.csv_values import Row, Unmodelled, is_moe, whole

SCHEDULES: dict[str, str] = {
    "": "1f1b",
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved": "interleaved",
    "interleaved 1f1b": "interleaved",
    "zb-1p": "zb_h1",
    "zb-h1": "zb_h1",
    "zb-2p": "zb_h2",
    "zb-h2": "zb_h2",
    "zb-v": "zb_v",
    "dualpipe": "dualpipe",
}

MICROBATCHES = (1, 2, 4, 8, 16)
"""Micro-batch sizes to choose from where a row gives none."""


def plans_with_unstated_fields(
    row: Row, plan: dict[str, Any], model: dict[str, Any], training: dict[str, Any], inferred: list[str]
) -> Iterator[dict[str, Any]]:
    """The plan with every value of the fields that the row does not state: micro-batch, chunks, recomputation."""
    replica = training["global_batch_size"] // plan["dp"]
    if replica == 0:
        raise Unmodelled(f"global_batch_seqs = {training['global_batch_size']} is smaller than dp = {plan['dp']}")
    sizes = _microbatch_sizes(row, plan["pp"], replica, inferred)
    schedule = _schedule(row, plan["pp"], inferred)
    chunks = _chunks(row, schedule, plan["pp"], model["num_layers"], inferred)
    for mode in _recompute_modes(row, inferred):
        for size in sizes:
            for count in chunks:
                if count > 1 and replica // size % plan["pp"]:
                    continue
                kind = schedule
                if schedule in ("1f1b", "interleaved"):
                    kind = "interleaved" if count > 1 else "1f1b"
                yield {**plan, "microbatch_size": size, "num_chunks": count, "schedule": kind, "recompute": mode}


def _is_nvidia(row: Row) -> bool:
    """Whether the framework is one whose recipes for performance are NVIDIA's, or like them."""
    framework = row.get("framework", "")
    return bool(re.search(r"NeMo(?! AutoModel)|Megatron-Core|Megatron-Bridge|Meta in-house", framework))


def _microbatch_sizes(row: Row, pp: int, replica: int, inferred: list[str]) -> list[int]:
    """Sizes of a micro-batch to choose from. [sequences]

    replica : what a replica takes in a step. [sequences]
    """
    if row.get("micro_batch_seqs"):
        return [whole(row, "micro_batch_seqs")]
    if pp > 1 and "torchtitan" in row.get("framework", "") and replica % pp == 0:
        # pytorch/torchtitan:torchtitan/parallelisms/pipelining_utils.py: pipeline_parallel_microbatches defaults to
        # pipeline_parallel_degree.
        inferred.append(f"micro_batch_seqs {replica // pp}: torchtitan takes as many micro-batches as stages")
        return [replica // pp]
    inferred.append(f"micro_batch_seqs: the fastest of {', '.join(map(str, MICROBATCHES))} that fits")
    return [size for size in MICROBATCHES if replica % size == 0]


def _schedule(row: Row, pp: int, inferred: list[str]) -> str:
    """The schedule, by our name."""
    schedule = row.get("schedule", "").lower()
    # Tables of recipes do not say "interleaved" where they leave out the number of chunks.
    if schedule in ("", "1f1b") and _is_nvidia(row) and pp > 1 and not row.get("vp_stages"):
        schedule = "interleaved"
        inferred.append("schedule interleaved: the framework's recipes for pipelines")
    elif not schedule and pp > 1:
        inferred.append("schedule 1f1b: the row gives none")
    if schedule not in SCHEDULES:
        raise Unmodelled(f"schedule {schedule!r} is not one of {', '.join(filter(None, SCHEDULES))}")
    return SCHEDULES[schedule]


def _chunks(row: Row, schedule: str, pp: int, layers: int, inferred: list[str]) -> list[int]:
    """Numbers of model chunks a rank to choose from."""
    if row.get("vp_stages"):
        return [whole(row, "vp_stages") if pp > 1 else 1]
    if schedule != "interleaved" or pp == 1:
        return [1]
    if "torchtitan" in row.get("framework", ""):
        inferred.append("vp_stages 2: what torchtitan takes where no split is given (pipelining_utils.py)")
        return [2]
    inferred.append("vp_stages: the fastest number of chunks that divides the layers")
    # Up to one layer a chunk ("set to maximum": NVIDIA/NeMo-Framework-Launcher, conf/training/gpt3/175b.yaml).
    return [count for count in range(2, (layers + 2) // pp + 1) if -layers % (pp * count) < 3] or [1]


def _recompute_modes(row: Row, inferred: list[str]) -> list[str]:
    """What may be recomputed, the mildest first."""
    recompute, framework = row.get("recompute", ""), row.get("framework", "")
    fsdp2 = re.search(r"torchtitan|FSDP2", framework + row.get("notes", ""))
    if recompute:
        if recompute not in ("none", "selective", "full"):
            raise Unmodelled(f"recompute {recompute!r} is not one of none, selective, full")
        if recompute == "selective" and fsdp2:
            recompute = "per_op"
            inferred.append("recompute per_op: what torchtitan calls selective")
        return [recompute]
    modes = ["none"] if _is_nvidia(row) else ["none", "per_op", "full"] if fsdp2 else ["none", "full"]
    inferred.append(
        "recompute none: the framework's default"
        if _is_nvidia(row)
        else f"recompute: {' where it fits, else '.join(modes)}"
    )
    if is_moe(row) and "AutoModel" in framework:
        inferred.append("recompute none: the framework's recipes for experts")
        return ["none"]
    return modes
