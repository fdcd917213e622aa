"""Answers of whole scenarios and of random plans of every schedule, to be compared after a change of the assembly.

    python tests/golden/freeze.py tests/golden/answers.json --plans 2             # freeze anew what the test compares
    python tests/golden/freeze.py /tmp/before.json --plans 100                    # before a change: thousands
    python tests/golden/freeze.py /tmp/before.json --plans 100 --compare          # after it: what differs, most first

`answers.json` beside this file holds a few hundred; a test compares with them. A change of the physics changes answers
on purpose: then freeze anew and say in the commit which moved, and why.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.engines import ENGINES
from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.schedules import get_schedule, schedule_names
from sim.specs import Scenario, build_scenario, load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TOLERANCE = 1e-9
STACKS = ("megatron-2019", "megatron-2021", "megatron-2022", "megatron-core", "deepspeed-zero3", "torchtitan")
OVERLAPS = ("overlap_p2p", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp_backward", "overlap_context")


def answer(scenario: Scenario, engine: str = "dag", *, contention: bool = False) -> dict[str, Any]:
    """What is frozen of an estimate: step, causes, memory of every rank, notes."""
    found = estimate(scenario, engine, contention=contention)
    return {
        "step_time_s": found.step_time_s,
        "interval_s": list(found.step_time_interval_s),
        "breakdown_s": {name: seconds for name, seconds in found.breakdown.seconds.items() if seconds > 1e-12},
        "memory_bytes": [use.total for use in found.memory],
        "fullest_rank_bytes": found.largest.to_dict(),
        "assumptions": list(found.assumptions),
    }


def scenarios() -> Iterator[tuple[str, Scenario]]:
    """Every scenario that ships."""
    for path in sorted(SCENARIOS.rglob("*.yaml")):
        yield str(path.relative_to(SCENARIOS)), load_scenario(path)


def frozen_scenarios() -> Iterator[tuple[str, dict[str, Any]]]:
    """Answers of all scenarios by the engines that can run them."""
    for name, scenario in scenarios():
        for engine in sorted(ENGINES):
            try:
                yield f"{name} {engine}", answer(scenario, engine)
            except FlopcastError as error:
                yield f"{name} {engine}", {"error": str(error)}
        try:
            yield f"{name} contention", answer(scenario, contention=True)
        except FlopcastError as error:
            yield f"{name} contention", {"error": str(error)}


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


def frozen_plans(number: int, seed: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Answers of so many random plans of each schedule, and of each a few by the closed form and with contention."""
    for schedule in sorted(schedule_names()):
        draw, found, tried = random.Random(f"{schedule} {seed}"), 0, 0
        while found < number and tried < 40 * number:
            tried += 1
            described = random_scenario(draw, schedule)
            try:
                scenario = build_scenario(described)
                yield f"{schedule} {tried}", answer(scenario)
            except FlopcastError:
                continue
            found += 1
            for engine, contention in (("closed_form", False), ("dag", True)):
                if found % 4 and contention:
                    continue
                try:
                    frozen = answer(scenario, engine, contention=contention)
                except (FlopcastError, ZeroDivisionError):
                    continue
                yield f"{schedule} {tried} {'contention' if contention else engine}", frozen


def frozen(plans: int) -> dict[str, dict[str, Any]]:
    """Everything that is frozen."""
    return {**dict(frozen_scenarios()), **dict(frozen_plans(plans))}


def differences(then: Any, now: Any, path: str = "") -> Iterator[tuple[float, str]]:
    """(by how much, where) of all that differs by more than TOLERANCE, relative to the larger."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in dict.fromkeys((*then, *now)):
            if name in then and name in now:
                yield from differences(then[name], now[name], f"{path}/{name}")
            else:
                yield float("inf"), f"{path}/{name}: {'gone' if name in then else 'new'}"
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (first, second) in enumerate(zip(then, now, strict=True)):
            yield from differences(first, second, f"{path}/{number}")
    elif isinstance(then, (int, float)) and isinstance(now, (int, float)):
        apart = abs(then - now) / max(abs(then), abs(now), 1e-30)
        # A cause may be the small difference of large numbers: seconds below a billionth of a second are none.
        if apart > TOLERANCE and abs(then - now) > 1e-12:
            yield apart, f"{path}: {then!r} -> {now!r}"
    elif then != now:
        yield float("inf"), f"{path}: {then!r} -> {now!r}"


def main() -> int:
    """Freeze or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--plans", type=int, default=10, help="random plans of each schedule")
    parser.add_argument("--compare", action="store_true")
    given = parser.parse_args()
    if not given.compare:
        given.file.write_text(json.dumps(frozen(given.plans), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    then = json.loads(given.file.read_text(encoding="utf-8"))
    found = sorted(differences(then, frozen(given.plans)), reverse=True)
    for apart, where in found[:40]:
        print(f"{apart:.2e}  {where}")
    print(f"{len(then):,} answers frozen, {len(found):,} numbers differ")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
