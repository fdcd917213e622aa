"""Fields that a row of a table of runs does not state and its authors tuned: micro-batch, chunks, recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from flopcast_calibration.readers.csv_values import Row, Unmodelled, is_moe, whole
from sim.specs.framework_files import layouts_of

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

Habits = Mapping[str, Any]
"""How a framework's recipes fill in a layout: `layouts` of its file."""

MICROBATCHES = (1, 2, 4, 8, 16)
"""Micro-batch sizes to choose from where a row gives none."""


def plans_with_unstated_fields(
    row: Row,
    framework: str,
    plan: dict[str, Any],
    model: dict[str, Any],
    training: dict[str, Any],
    inferred: list[str],
) -> Iterator[dict[str, Any]]:
    """The plan with every value of the fields that the row does not state: micro-batch, chunks, recomputation."""
    replica = training["global_batch_size"] // plan["dp"]
    if replica == 0:
        raise Unmodelled(f"global_batch_seqs = {training['global_batch_size']} is smaller than dp = {plan['dp']}")
    habits = layouts_of(framework)
    sizes = _microbatch_sizes(row, habits, plan["pp"], replica, inferred)
    schedule = _schedule(row, habits, plan["pp"], inferred)
    chunks = _chunks(row, habits, schedule, plan["pp"], model["num_layers"], inferred)
    degrees = _expert_degrees(row, plan, model, inferred)
    for mode, size, count, degree in product(_recompute_modes(row, habits, inferred), sizes, chunks, degrees):
        if count > 1 and replica // size % plan["pp"]:
            continue
        kind = schedule
        if schedule in ("1f1b", "interleaved"):
            kind = "interleaved" if count > 1 else "1f1b"
        choice = {"microbatch_size": size, "num_chunks": count, "schedule": kind, "recompute": mode}
        yield {**plan, **choice, **degree}


def _expert_degrees(
    row: Row, plan: Mapping[str, Any], model: Mapping[str, Any], inferred: list[str]
) -> list[dict[str, int]]:
    """Expert-parallel degrees to choose from: at least a node's GPUs share the experts."""
    width, experts = plan["tp"] * plan["cp"] * plan["dp"], model.get("num_experts", 0)
    if row.get("ep") or not experts or "ep" not in plan:
        return [{}]
    some = [2**power for power in range(3, 10) if width % 2**power == 0 and experts % 2**power == 0]
    if some:
        inferred.append(f"ep: the row gives none; the fastest of {', '.join(map(str, some))} that fits")
    return [{"ep": each} for each in some] or [{}]


def _microbatch_sizes(row: Row, habits: Habits, pp: int, replica: int, inferred: list[str]) -> list[int]:
    """Sizes of a micro-batch to choose from. [sequences]

    replica : what a replica takes in a step. [sequences]
    """
    if row.get("micro_batch_seqs"):
        return [whole(row, "micro_batch_seqs")]
    if pp > 1 and habits.get("microbatches") == "stages" and replica % pp == 0:
        inferred.append(f"micro_batch_seqs {replica // pp}: as many micro-batches as stages ({habits['source']})")
        return [replica // pp]
    inferred.append(f"micro_batch_seqs: the fastest of {', '.join(map(str, MICROBATCHES))} that fits")
    return [size for size in MICROBATCHES if replica % size == 0]


def _schedule(row: Row, habits: Habits, pp: int, inferred: list[str]) -> str:
    """The schedule, by our name."""
    schedule = row.get("schedule", "").lower()
    # Tables of recipes do not say "interleaved" where they leave out the number of chunks.
    if schedule in ("", "1f1b") and habits.get("interleaved") is True and pp > 1 and not row.get("vp_stages"):
        schedule = "interleaved"
        inferred.append(f"schedule interleaved: the framework's recipes for pipelines ({habits['source']})")
    elif not schedule and pp > 1:
        inferred.append("schedule 1f1b: the row gives none")
    if schedule not in SCHEDULES:
        raise Unmodelled(f"schedule {schedule!r} is not one of {', '.join(filter(None, SCHEDULES))}")
    return SCHEDULES[schedule]


def _chunks(row: Row, habits: Habits, schedule: str, pp: int, layers: int, inferred: list[str]) -> list[int]:
    """Numbers of model chunks a rank to choose from."""
    if row.get("vp_stages"):
        return [whole(row, "vp_stages") if pp > 1 else 1]
    if schedule != "interleaved" or pp == 1:
        return [1]
    usual = habits.get("interleaved", True)
    if usual is not True:
        inferred.append(f"vp_stages {usual}: what the framework takes where no split is given ({habits['source']})")
        return [usual]
    inferred.append("vp_stages: the fastest number of chunks that divides the layers")
    # Up to one layer a chunk ("set to maximum": NVIDIA/NeMo-Framework-Launcher, conf/training/gpt3/175b.yaml).
    return [count for count in range(2, (layers + 2) // pp + 1) if -layers % (pp * count) < 3] or [1]


def _recompute_modes(row: Row, habits: Habits, inferred: list[str]) -> list[str]:
    """What may be recomputed, the mildest first."""
    recompute = row.get("recompute", "")
    if recompute:
        if recompute not in ("none", "selective", "per_op", "full"):
            raise Unmodelled(f"recompute {recompute!r} is not one of none, selective, per_op, full")
        if recompute == "selective" and "selective_is" in habits:
            recompute = habits["selective_is"]
            inferred.append(f"recompute {recompute}: what the framework calls selective ({habits['source']})")
        return [recompute]
    of_experts = habits.get("recompute_of_experts") if is_moe(row) else None
    modes: list[str] = of_experts or habits.get("recompute", ["none", "full"])
    inferred.append(
        f"recompute: {' where it fits, else '.join(modes)}"
        if len(modes) > 1
        else f"recompute {modes[0]}: the framework's recipes ({habits['source']})"
    )
    return modes
