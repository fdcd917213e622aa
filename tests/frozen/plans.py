"""Random plans of every schedule, small enough to run by every engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from sim import simulate
from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.schedules import get_schedule, schedule_names
from sim.specs import Scenario, build_scenario
from tests.frozen.asking import described

STACKS = ("megatron-2019", "megatron-2021", "megatron-2022", "megatron-core", "deepspeed-zero3", "torchtitan")
OVERLAPS = ("overlap_p2p", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp_backward", "overlap_context")


def random_scenario(draw: random.Random, schedule: str) -> dict[str, Any]:
    """A description of a small run under a schedule; it may break rules."""
    chosen = get_schedule(schedule)
    pp = draw.choice([1, 2, 2, 3, 4, 4, 6, 8])
    pp += pp % 2 * (schedule in ("chimera", "dualpipe"))
    chunks = draw.choice([1, 2, 3, 4]) if chosen.chunks == "many" else 1 if chosen.chunks == "one" else chosen.chunks
    chunks += chunks % 2 * (schedule == "hanayo")
    tp, dp, cp = draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4]), draw.choice([1, 1, 1, 2])
    count = draw.choice([1, 2, 3, 5, pp, 2 * pp, 3 * pp, 4 * pp + 2, 8 * pp, 64])
    count += count % chosen.copies
    size = draw.choice([1, 2, 4])
    experts = draw.random() < 0.25
    layers = pp * chunks * draw.choice([1, 2, 3]) + draw.choice([0, 0, 0, 1])
    model: dict[str, Any] = {
        "num_layers": pp * chunks if schedule == "modular" else layers,
        "hidden_size": draw.choice([1024, 4096]), "num_heads": 16, "num_kv_heads": draw.choice([4, 16]),
        "vocab_size": draw.choice([8192, 51200]), "gated_mlp": draw.random() < 0.5,
        "tied_embeddings": draw.random() < 0.5, "dropout": draw.choice([0.0, 0.1]),
    }  # fmt: skip
    if experts:
        model |= {"num_experts": 16, "experts_per_token": 2, "expert_intermediate_size": 1024, "gated_mlp": True,
                  "num_dense_layers": draw.choice([0, 0, 1])}  # fmt: skip
    plan = {
        "tp": tp, "pp": pp, "dp": dp, "cp": cp, "schedule": schedule, "num_chunks": chunks, "microbatch_size": size,
        "recompute": draw.choice(["none", "selective", "full"]), "zero_stage": draw.choice([0, 1, 2, 3]),
        "sequence_parallel": tp > 1 and (experts or draw.random() < 0.5), "ep": draw.choice([1, 2, 4]) if experts else 1,
        "uneven_layers": bool(layers % (pp * chunks)), "embedding_as_layer": draw.random() < 0.1,
        "head_as_layer": draw.random() < 0.1, "offloaded_layers": draw.choice([0, 0, 0, 1]),
    }  # fmt: skip
    if "slices" in chosen.options:
        plan["sequence_slices"] = draw.choice([1, 2, 4])
    if "group" in chosen.options and draw.random() < 0.3:
        plan["microbatch_group"] = draw.choice([pp, 2 * pp])
    hopper = draw.random() < 0.4
    stack = {"preset": draw.choice(STACKS), **{name: draw.random() < 0.5 for name in OVERLAPS}}
    training = {
        "global_batch_size": dp * count * size, "sequence_length": draw.choice([512, 2048]),
        "precision": draw.choice(["bf16", "bf16", "fp8"]) if hopper else draw.choice(["fp16", "bf16"]),
    }  # fmt: skip
    cluster = draw.choice(["superpod-h100"]) if hopper else "selene"
    return {"model": model, "cluster": cluster, "plan": plan, "training": training, "stack": stack}


def random_plans(number: int) -> dict[str, Callable[[], Any]]:
    """Return a job for each schedule's first few random plans that keep the rules."""
    return {f"{schedule} {place}": partial(_played, schedule, place)
            for place in range(number) for schedule in sorted(schedule_names())}  # fmt: skip


def _played(schedule: str, place: int) -> dict[str, Any]:
    """Return a plan's answers by the engines; of some by events, by shared links and with noise as well."""
    scenario = _that_runs(schedule, place)
    found = {"dag": described(estimate(scenario))}
    ways: dict[str, Callable[[], Any]] = {}
    if place % 4 == 1:
        ways["des"] = lambda: described(estimate(scenario, "des"))
        ways["jitter"] = lambda: list(simulate(scenario, jitter=0.05, seeds=3).step_times_s)
    if place % 4 == 2:
        ways["shared links"] = lambda: list(simulate(scenario, jitter=0.05, seeds=2, contention=True).step_times_s)
    for name, way in ways.items():
        try:
            found[name] = way()
        except (FlopcastError, ZeroDivisionError) as error:
            found[name] = {"error": str(error)}
    return found


def _that_runs(schedule: str, place: int) -> Scenario:
    draw = random.Random(f"{schedule} {place}")
    for _ in range(1000):
        try:
            scenario = build_scenario(random_scenario(draw, schedule))
            estimate(scenario)
        except FlopcastError:
            continue
        return scenario
    raise AssertionError(f"none of 1,000 random plans of {schedule} keeps the rules")
