"""Options of commands that price whole runs: failures, storage, money, energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.scaling.run import Terms

Mtbf = Annotated[
    str | None, typer.Option("--mtbf", help="Between failures of one GPU; Llama 3's 50,677 h if not given.")
]
Restart = Annotated[str, typer.Option("--restart", help="From a failure to the next step.")]
Spares = Annotated[int | None, typer.Option("--spares", help="Spare nodes; as many as it takes if not given.")]
WriteBandwidth = Annotated[str, typer.Option("--write-bandwidth", help="Of the storage, all ranks together.")]
Price = Annotated[float, typer.Option("--price", help="Of a GPU-hour.")]
Pue = Annotated[float, typer.Option("--pue", help="Building's power over the machines'.")]


def terms_of(
    mtbf: str | None, restart: str, spares: int | None, write_bandwidth: str, price: float, pue: float, node_gpus: int
) -> Terms:
    """The options as a record."""
    from sim.reliability import GPU_MTBF_S, Failures
    from sim.scaling.run import Terms
    from sim.units import parse

    failures = Failures(
        GPU_MTBF_S if mtbf is None else parse(mtbf, "s"),
        parse(restart, "s"),
        gpus_per_node=node_gpus,
        spare_nodes=spares,
    )
    return Terms(failures, parse(write_bandwidth, "bytes_per_s"), price_per_gpu_hour=price, pue=pue)
