"""What each switch is worth: every field of the stack and every mechanism switched off, over the published rows that ship.

    python -m tests.ablate                        # all of them: about ten minutes on two cores
    python -m tests.ablate --every 10             # one layout in ten
    python -m tests.ablate slice_s cuda_graphs    # these alone

A switch needs a run: a field of the stack exists because a published run, a paper's number or an importer of a common file
needs it. A field that moves nothing is a constant beside its formula, or goes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any, Literal, NamedTuple, get_args, get_origin

from flopcast_calibration.from_runs import predict
from flopcast_validation.run import published_runs
from sim import Scenario, StackSpec, estimate
from sim.errors import FlopcastError

Changes = dict[str, Any]
"""Path of a field -> its value."""
UNPHYSICAL = ("name", "framework", "version", "fitted_families")
ALONG = {"cuda_graphs": {"stack.cuda_graph_scope": ()}, "cuda_graph_scope": {"stack.cuda_graphs": "none"}}
"""What goes with a field, as it makes no sense without it."""
MECHANISMS: dict[str, Changes] = {
    "switches of the network": {"cluster.network": None},
    "the host's launches": {f"stack.{name}_launch_s": 0.0 for name in ("kernel", "backward", "collective")}
    | {"profile.host.kernel_launch_s": None, "profile.host.graph_launch_s": 0.0},
    "overlap takes from compute": {f"profile.{link}.hidden_share": 1.0 for link in ("nvlink", "network")},
    "trees of two domains": {f"profile.{link}.two_domain_trees": False for link in ("nvlink", "network")},
    "sums in switches": {f"profile.{link}.in_switch_efficiency": None for link in ("nvlink", "network")},
    "latency of collectives": {f"profile.{link}.{part}_latency_s": 0.0 for link in ("nvlink", "network") for part in ("base", "hop")},
    "waves of a multiply's tiles": {"profile.gemm.wave_quantisation": 0.0},
    "short sequences in attention": {"profile.attention.half_length": 0.0},
    "narrow heads in attention": {"profile.attention.half_columns": 0.0},
    "kernels bound by memory told apart": {"profile.memory.operations": {}},
    "collectives told apart": {f"profile.{link}.operations": {} for link in ("nvlink", "network")},
    "sustained clock": {"cluster.node.gpu.sustained_clock": 1.0},
    "recomputation": {"plan.recompute": "none", "plan.recompute_modules": ()},
    "sequence parallelism": {"plan.sequence_parallel": False},
    "groups of micro-batches": {"plan.microbatch_group": None},
    "activations in host memory": {"plan.offloaded_layers": 0},
    "optimizer in host memory": {"plan.optimizer_offload": 0.0},
    "sharding within groups": {"plan.sharding_group": None},
    "resharding after the forward": {"plan.reshard_after_forward": False},
    "expert tensor parallelism": {"plan.etp": 1},
    "dropout": {"model.dropout": 0.0},
    "multi-token prediction": {"model.num_mtp_layers": 0},
    "norms of queries and keys": {"model.query_key_norm": "none"},
    "scaled rotary positions": {"model.rotary_scaled": False},
    "gate of attention": {"model.attention_gate": False},
    "gate of shared experts": {"model.shared_expert_gate": False},
    "norm of embeddings": {"model.embedding_norm": False},
    "tied embeddings": {"model.tied_embeddings": False},
    "biases": {f"model.{name}bias": False for name in ("", "norm_", "qkv_", "attention_output_", "mlp_", "head_")},
    "latent experts": {"model.expert_latent_size": 0},
    "groups of experts": {"model.expert_groups_per_token": 1, "model.num_expert_groups": 1},
    "packed sequences": {"training.packed_length": None},
    "layers in high precision": {"training.high_precision_layers": 0},
    "activations in 32 bits": {"training.fp32_activations": False},
    "adapters": {"training.adapter_rank": 0},
    "uneven experts": {"training.expert_skew": 0.0, "training.expert_load": ()},
    "capacity of experts": {"training.expert_capacity_factor": None, "training.pad_to_capacity": False},
}  # fmt: skip


class Layout(NamedTuple):
    """A layout of published rows: how many rows, what they were taken for, the step [s] and the fullest rank [bytes]."""

    rows: int
    scenario: Scenario
    step_time_s: float
    memory_bytes: float


layouts: list[Layout] = []
"""What the processes that are forked below change."""


def read_layouts(every: int) -> list[Layout]:
    """Return one in so many of the layouts of the published rows that ship."""
    published = [run for run in published_runs() if run.choices]
    rows, runs = Counter(id(run.choices) for run in published), {id(run.choices): run for run in published}
    found = []
    for key in list(runs)[::every]:
        try:
            answer = predict(runs[key])
        except FlopcastError:
            continue
        found.append(Layout(rows[key], answer.scenario, answer.step_time_s, answer.largest.total))
    return found


def off(name: str) -> Any:
    """Return the value that switches a field of the stack off: none, false, the first, or the least."""
    info = StackSpec.model_fields[name]
    if not info.is_required() and info.default is None:
        return None
    if info.annotation is bool:
        return False
    if get_origin(info.annotation) is Literal:
        return get_args(info.annotation)[0]
    if get_origin(info.annotation) is tuple:
        return ()
    least = [
        getattr(rule, "ge", None) if hasattr(rule, "ge") else 1
        for rule in info.metadata
        if hasattr(rule, "ge") or hasattr(rule, "gt")
    ]
    return max(least, default=0)


def changed(scenario: Scenario, changes: Changes) -> Scenario:
    """Return the scenario with fields set; itself where they are so already."""
    for path, value in changes.items():
        *records, field = path.split(".")
        chain: list[Any] = [scenario]
        for record in records:
            chain.append(getattr(chain[-1], record))
        if getattr(chain[-1], field) == value:
            continue
        new = chain[-1].replace(**{field: value})
        for owner, record in zip(chain[-2::-1], records[::-1], strict=True):
            new = owner.replace(**{record: new})
        scenario = new
    return scenario


def ablate(named: tuple[str, str, Changes]) -> str:
    """Return a line on a change: rows that it concerns, those that move by more than 1 %, and the largest move."""
    name, way, changes = named
    concerned, refused, moves = 0, 0, {"time": (0, 0.0), "memory": (0, 0.0)}
    for rows, scenario, step_time_s, memory_bytes in layouts:
        try:
            other = changed(scenario, changes)
            if other is scenario:
                continue
            concerned += rows
            answer = estimate(other)
        except FlopcastError:
            refused += rows
            continue
        for what, now, then in (
            ("time", answer.step_time_s, step_time_s),
            ("memory", answer.largest.total, memory_bytes),
        ):
            count, largest = moves[what]
            moves[what] = count + rows * (abs(now / then - 1) > 0.01), max(largest, abs(now / then - 1))
    cells = "  ".join(f"{count:5} {largest:7.1%}" for count, largest in moves.values())
    return f"{name:34} {way:24.24} {concerned:5} {refused:5}  {cells}"


def changes_of(name: str) -> Iterator[tuple[str, str, Changes]]:
    """Yield how a field of the stack, or a mechanism, is switched off, and set to each of its commonest values."""
    if name in MECHANISMS:
        yield name, "off", MECHANISMS[name]
        return
    values = Counter[Any]()
    for layout in layouts:
        values[getattr(layout.scenario.stack, name)] += layout.rows
    path = f"stack.{name}"
    yield name, f"off: {off(name)}", {**ALONG.get(name, {}), path: off(name)}
    for value, rows in values.most_common(3) if len(values) > 1 else ():
        if value != off(name):
            yield name, f"as in {rows} rows: {value}", {path: value}


def main() -> int:
    """Print a line for each change, as they are found."""
    names = [name for name in StackSpec.model_fields if name not in UNPHYSICAL] + list(MECHANISMS)
    parser = argparse.ArgumentParser(
        prog="python -m tests.ablate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=names, help="fields of the stack, or mechanisms")
    parser.add_argument("--every", type=int, default=1, help="one layout in so many")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args()
    layouts[:] = read_layouts(given.every)
    print(
        f"{sum(layout.rows for layout in layouts)} rows of {len(layouts)} layouts; moved by more than 1 %, and largest move"
    )
    print(f"{'':34} {'':24} {'rows':>5} {'not':>5}  {'time':>13}  {'memory':>13}")
    every = [change for name in given.names for change in changes_of(name)]
    with get_context("fork").Pool(given.jobs) as pool:
        for line in pool.imap(ablate, every, chunksize=1):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
