"""How a job is started on a scenario's nodes."""

from __future__ import annotations

from sim.specs.scenario import Scenario


def processes(scenario: Scenario) -> tuple[int, int]:
    """(nodes, processes on each) of the plan's GPUs."""
    gpus, each = scenario.plan.num_gpus, scenario.cluster.node.gpus_per_node
    while gpus % each:
        each -= 1
    return gpus // each, each


def launcher_lines(scenario: Scenario, program: str, behind: list[str]) -> list[str]:
    """torchrun's command; what stands behind the program follows, one a line."""
    nodes, each = processes(scenario)
    words = ["torchrun", f"--nnodes {nodes}", f"--nproc-per-node {each}"]
    if nodes > 1:
        words += ['--node-rank "$NODE_RANK"', '--master-addr "$MASTER_ADDR"', '--master-port "$MASTER_PORT"']
    first = " ".join(words)
    return [f"{first} \\", f"    {program} \\", *(f"    {word} \\" for word in behind[:-1]), f"    {behind[-1]}"]
