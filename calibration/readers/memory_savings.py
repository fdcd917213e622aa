"""Memory savings: what a row says of them in words, and what a run must have done to fit where its row says nothing.

A run that was measured fitted. Where a row's layout does not, the mildest change of what it leaves open counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flopcast_calibration.readers.csv_values import Row, is_moe
from flopcast_calibration.readers.frameworks import FrameworkOfRow
from sim.specs.framework_files import layouts_of

MemorySaving = tuple[dict[str, Any], str]
"""Changes of a plan that save memory, and the rule that allows them."""


def offloaded_layers(row: Row, framework: FrameworkOfRow, layers: int, inferred: list[str]) -> dict[str, int]:
    """The plan's field for layers whose activations the row, or its authors' script, keeps in host memory."""
    said = row.get("plan.offloaded_layers", "")
    if row.get("offloaded_layers") == "all":
        return {"offloaded_layers": layers}
    if said.isdigit():
        return {"offloaded_layers": int(said)}
    if framework.host_checkpoints:
        inferred.append(f"offloaded_layers {layers}: the authors' script keeps checkpoints in host memory")
        return {"offloaded_layers": layers}
    return {}


def memory_savings(row: Row, framework: str, plan: Mapping[str, Any], layers: int) -> Iterator[MemorySaving]:
    """Changes of the plan that a row leaves open, the mildest first, each with the rule that lists it."""
    unsaid = "the row gives none, and does not fit without"
    if not row.get("zero_stage") and plan["zero_stage"] == 0 and plan["dp"] > 1:
        yield {"zero_stage": 1}, f"zero_stage 1: {unsaid}"
    for some, rule in _offloading(row, framework, plan, layers):
        yield {"offloaded_layers": some}, f"offloaded_layers {some}: {rule}; {unsaid}"
    doubtful = row.get("doubtful", "")
    if doubtful == "recompute" and row.get("recompute") == "none":
        for mode in ("selective", "full"):
            yield {"recompute": mode}, f"recompute {mode}: recompute none is a configuration's, and does not fit"
    if is_moe(row) and not row.get("recompute"):
        habits = layouts_of(framework)
        for names in habits.get("recompute_modules_of_experts", ()):
            said = f"recompute_modules {', '.join(names)}: the framework's recipes ({habits['source']}); {unsaid}"
            yield {"recompute": "selective", "recompute_modules": tuple(names)}, said
        for mode in ("selective", "full"):
            yield {"recompute": mode}, f"recompute {mode}: {unsaid}"
    if doubtful == "micro_batch_seqs":
        size = plan_size = int(float(row["micro_batch_seqs"]))
        while size % 2 == 0:
            size //= 2
            yield (
                {"microbatch_size": size},
                f"microbatch_size {size}: the source's {plan_size} is what a replica sees in a step, and does not fit",
            )


def _offloading(row: Row, framework: str, plan: Mapping[str, Any], layers: int) -> Iterator[tuple[int, str]]:
    """Layers that keep their activations in host memory, the fewest first, and what allows it."""
    if plan.get("offloaded_layers"):
        return
    habits, grace = layouts_of(framework), row.get("gpu", "").startswith("GB")
    shares = habits.get("offload", ()) if row.get("recompute") == "full" else ()
    # Hosts of Grace hand memory over at 450 GB/s.
    for share in shares or (habits.get("offload_to_grace", ()) if grace else ()):
        yield int(share * layers), f"the framework's recipes ({habits['source']})"
