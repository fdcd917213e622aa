"""What a row of a table of runs leaves open and its authors tuned: micro-batch, schedule, chunks, recomputation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from calibration.readers.cells import Row, Unmodelled, is_moe, whole

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


def open_choices(
    row: Row, plan: dict[str, Any], model: dict[str, Any], training: dict[str, Any], inferred: list[str]
) -> Iterator[dict[str, Any]]:
    """The plan with every value of what the row leaves open: micro-batch, chunks, recomputation."""
    replica = training["global_batch_size"] // plan["dp"]
    if replica == 0:
        raise Unmodelled(f"global_batch_seqs = {training['global_batch_size']} is smaller than dp = {plan['dp']}")
    if row.get("micro_batch_seqs"):
        sizes = [whole(row, "micro_batch_seqs")]
    elif plan["pp"] > 1 and "torchtitan" in row.get("framework", "") and replica % plan["pp"] == 0:
        # pytorch/torchtitan:torchtitan/parallelisms/pipelining_utils.py: pipeline_parallel_microbatches defaults to
        # pipeline_parallel_degree.
        sizes = [replica // plan["pp"]]
        inferred.append(f"micro_batch_seqs {sizes[0]}: torchtitan takes as many micro-batches as stages")
    else:
        sizes = [size for size in MICROBATCHES if replica % size == 0]
        inferred.append(f"micro_batch_seqs: the fastest of {', '.join(map(str, MICROBATCHES))} that fits")
    schedule = row.get("schedule", "").lower()
    nvidia = re.search(r"NeMo(?! AutoModel)|Megatron-Core|Megatron-Bridge|Meta in-house", row.get("framework", ""))
    # Tables of recipes do not say "interleaved" where they leave out the number of chunks.
    if schedule in ("", "1f1b") and nvidia and plan["pp"] > 1 and not row.get("vp_stages"):
        schedule = "interleaved"
        inferred.append("schedule interleaved: the framework's recipes for pipelines")
    elif not schedule and plan["pp"] > 1:
        inferred.append("schedule 1f1b: the row gives none")
    if schedule not in SCHEDULES:
        raise Unmodelled(f"schedule {schedule!r} is not one of {', '.join(filter(None, SCHEDULES))}")
    pp = plan["pp"]
    if row.get("vp_stages"):
        chunks = [whole(row, "vp_stages") if pp > 1 else 1]
    elif SCHEDULES[schedule] == "interleaved" and pp > 1 and "torchtitan" in row.get("framework", ""):
        chunks = [2]
        inferred.append("vp_stages 2: what torchtitan takes where no split is given (pipelining_utils.py)")
    elif SCHEDULES[schedule] == "interleaved" and pp > 1:
        dealt = model["num_layers"]
        # Up to one layer a chunk ("set to maximum": NVIDIA/NeMo-Framework-Launcher, conf/training/gpt3/175b.yaml).
        chunks = [count for count in range(2, (dealt + 2) // pp + 1) if -dealt % (pp * count) < 3] or [1]
        inferred.append("vp_stages: the fastest number of chunks that divides the layers")
    else:
        chunks = [1]
    recompute = row.get("recompute", "")
    if recompute and recompute not in ("none", "selective", "full"):
        raise Unmodelled(f"recompute {recompute!r} is not one of none, selective, full")
    fsdp2 = re.search(r"torchtitan|FSDP2", row.get("framework", "") + row.get("notes", ""))
    if recompute == "selective" and fsdp2:
        recompute = "per_op"
        inferred.append("recompute per_op: what torchtitan calls selective")
    modes = [recompute] if recompute else ["none", "per_op", "full"] if fsdp2 else ["none", "full"]
    if not recompute and nvidia:
        modes = ["none"]
        inferred.append("recompute none: the framework's default")
    elif not recompute:
        inferred.append(f"recompute: {' where it fits, else '.join(modes)}")
    if is_moe(row) and "AutoModel" in row.get("framework", "") and not recompute:
        modes = ["none"]
        inferred.append("recompute none: the framework's recipes for experts")
    for mode in modes:
        for size in sizes:
            for count in chunks:
                if count > 1 and replica // size % pp:
                    continue
                looped = SCHEDULES[schedule] in ("1f1b", "interleaved")
                kind = "interleaved" if count > 1 and looped else SCHEDULES[schedule]
                kind = "1f1b" if kind == "interleaved" and count == 1 else kind
                yield {**plan, "microbatch_size": size, "num_chunks": count, "schedule": kind, "recompute": mode}
