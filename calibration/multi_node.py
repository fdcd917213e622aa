"""All-reduces across nodes: a fit for every published network, scored on what it has not seen.

    python -m flopcast_calibration.multi_node FOLDER

FOLDER holds collectives.csv and collectives_2026.csv (system, nodes, gpus, collective, bytes, algbw_GBps, busbw_GBps,
time_us). Each half of the sizes is predicted by a fit to the other half, each number of GPUs by a fit to the others.
The fits are those of `flopcast calibrate fit`.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flopcast_calibration.fit.network import NetworkPoint, fit_network
from flopcast_calibration.fit.solve import Fit
from sim.costs.collectives import all_to_all_bytes
from sim.network.placement import Group
from sim.specs import ClusterSpec, Profile, load_preset
from sim.specs.loading import resolve


@dataclass(frozen=True, slots=True)
class Network:
    """A published network, and what its rows leave out.

    systems : their names in the table begin so.
    cluster : node preset or cluster description; NVLink is its profile's.
    node_gbit_per_s : of the network, per node and direction.
    domain_gpus : GPUs of an NVLink domain that take part, by number of GPUs where it is not the node's.
    in_switch, always : NVLink's switches add where that is the fastest; in every row.
    inferred : what of this the source does not say.
    """

    name: str
    systems: tuple[str, ...]
    node: str
    profile: str
    node_gbit_per_s: float
    domain_gpus: Mapping[int, int] = field(default_factory=dict)
    in_switch: bool = False
    always: bool = False
    inferred: str = ""


_XGMI = "400 Gbit/s a GPU; inside a node as NVIDIA's GPU of its time, for want of measurements"
#: Where the published rows are.
TABLES = ("collectives.csv", "collectives_2026.csv")
NETWORKS = (
    Network("A100, EFA, 400 Gbit/s a node", ("AWS p4de",), "dgx-a100-80gb", "a100", 400.0),
    Network(
        "H100, EFA, 3,200 Gbit/s a node",
        ("AWS p5.48xlarge, EFA", "AWS p5.48xlarge on EKS"),
        "dgx-h100",
        "h100",
        3200.0,
        in_switch=True,
        inferred="NVLink's switches add: two nodes reach more than their cards would carry of a ring",
    ),
    Network("H200, EFA, 3,200 Gbit/s a node", ("AWS p5en",), "dgx-h200", "h200", 3200.0),
    Network("B200, EFA, 3,200 Gbit/s a node", ("AWS P6-B200",), "dgx-b200", "b200", 3200.0),
    Network("H100, InfiniBand NDR", ("CoreWeave HGX H100",), "dgx-h100", "h100", 3200.0),
    Network(
        "H100, network not stated",
        ("4 nodes x 8 H100",),
        "dgx-h100",
        "h100",
        800.0,
        inferred="100 Gbit/s a GPU: the lowest common rate above what was reached",
    ),
    Network(
        "GB200 NVL72, InfiniBand NDR",
        ("CoreWeave NVL72", "CoreWeave 2 NVL72", "CoreWeave 20 NVL72"),
        "gb200-tray",
        "b200",
        1600.0,
        {72: 72, 128: 64, 1440: 72},
        in_switch=True,
        always=True,
        inferred="two racks give 64 GPUs each. NVLink's switches add at every size (half a gigabyte and more), in a "
        "tree between racks. One and two racks reach more than rings do in a rack (680 GB/s)",
    ),
    Network("A100, InfiniBand HDR (Azure)", ("Azure A100-40GB nodes",), "dgx-a100-40gb", "a100", 1600.0),
    Network("MI300X, InfiniBand or RoCE", ("AMD AAC10",), "mi300x-8", "h100", 3200.0, inferred=_XGMI),
    Network("MI355X, RoCE (Pollara)", ("AMD AAC14",), "mi355x-8", "b200", 3200.0, inferred=_XGMI),
    Network("V100 and A100, Omni-Path in use", ("Jean Zay, 4x Omni",), "dgx-a100-80gb", "a100", 400.0),
)


@dataclass(frozen=True, slots=True)
class Score:
    """Errors (predicted over measured time − 1) of one network.

    fitted : on the rows that the fit has seen, all of them.
    sizes : each half of the sizes predicted by a fit to the other.
    counts : each number of GPUs predicted by a fit to the others; empty where there is only one.
    """

    network: Network
    params: dict[str, float]
    fitted: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray


def read_points(folder: Path, network: Network) -> list[NetworkPoint]:
    """Its all-reduces of known size. Where only bandwidths are printed, the time follows from bytes/time."""
    points = []
    for row in _rows(folder):
        known = row["collective"] == "all_reduce" and row["bytes"] and (row["time_us"] or row["algbw_GBps"])
        if known and row["system"].startswith(network.systems) and row["nodes"] != "1":
            nbytes, gpus = float(row["bytes"]), int(row["gpus"])
            time = float(row["time_us"]) * 1e-6 if row["time_us"] else nbytes / (float(row["algbw_GBps"]) * 1e9)
            per_node = math.ceil(gpus / int(row["nodes"]))
            rate = network.node_gbit_per_s * 1e9 / 8 / per_node
            points.append(NetworkPoint(gpus, network.domain_gpus.get(gpus, per_node), rate, nbytes, time))
    return points


def _rows(folder: Path) -> Iterator[dict[str, str]]:
    for name in TABLES:
        with (folder / name).open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)


def score(network: Network, points: Sequence[NetworkPoint]) -> Score:
    """Fit everything, then leave halves of the sizes and numbers of GPUs out in turn."""
    node = ClusterSpec.read(resolve({"name": "node", "node": network.node, "num_nodes": 1}, "cluster"), "node").node
    profile = Profile.read(load_preset("profiles", network.profile), network.profile)
    if not network.in_switch:
        profile = profile.replace(nvlink=profile.nvlink.replace(in_switch_efficiency=None))

    def fit(some: Sequence[NetworkPoint]) -> Fit:
        return fit_network(some, node, profile, in_switch=network.in_switch, always=network.always)

    def unseen(groups: Sequence[Sequence[NetworkPoint]]) -> np.ndarray:
        errors = []
        for left_out in groups:
            seen = [point for point in points if point not in left_out]
            misfit = fit(left_out).misfit
            assert misfit is not None
            errors.append(np.expm1(misfit(fit(seen).params)))
        return np.concatenate(errors)

    whole = fit(points)
    sizes = sorted({point.nbytes for point in points})
    halves = [[point for point in points if point.nbytes in set(sizes[start::2])] for start in (0, 1)]
    counts = sorted({point.num_ranks for point in points})
    by_count = [[point for point in points if point.num_ranks == count] for count in counts]
    return Score(
        network,
        whole.params,
        np.expm1(whole.residuals),
        unseen(halves),
        unseen(by_count) if len(counts) > 1 else np.zeros(0),
    )


def all_to_all_efficiencies(folder: Path) -> dict[str, float]:
    """Share of the cards that published peaks of all-to-all over 32 GPUs reach, by GPU."""
    machines = {"A100": "superpod-a100", "H100": "superpod-h100"}
    found = {}
    for row in _rows(folder):
        if row["collective"] == "all_to_all" and row["nodes"] not in ("", "1") and row["gpu"] in machines:
            preset = machines[row["gpu"]]
            cluster = ClusterSpec.read(resolve(load_preset("clusters", preset), "cluster"), preset)
            gpus, nbytes = int(row["gpus"]), 1e9
            inside, outside = all_to_all_bytes(nbytes, Group(gpus, cluster.nvlink_domain_gpus))
            rates = cluster.node.nvlink_bandwidth_bytes_per_s, cluster.inter_node_bandwidth_bytes_per_s
            busbw = (gpus - 1) / gpus * nbytes / max(inside / rates[0], outside / rates[1])
            found[row["gpu"]] = float(row["busbw_GBps"]) * 1e9 / busbw
    return found


def report(folder: Path) -> Iterator[str]:
    """The table as text."""
    yield "All-reduces across nodes: error of the time, median and 90th percentile"
    yield f"  {'network':34} {'rows':>4} {'fitted':>15} {'sizes left out':>15} {'GPUs left out':>15}"
    scores = [score(network, read_points(folder, network)) for network in NETWORKS]
    for each in scores:
        columns = " ".join(f"{_show(errors):>15}" for errors in (each.fitted, each.sizes, each.counts))
        yield f"  {each.network.name:34} {len(each.fitted):4} {columns}"
    every = [np.concatenate([getattr(each, name) for each in scores]) for name in ("fitted", "sizes", "counts")]
    yield f"  {'all':34} {len(every[0]):4} {' '.join(f'{_show(errors):>15}' for errors in every)}"
    for each in scores:
        values = ", ".join(f"{name} {value:.3g}" for name, value in each.params.items())
        note = f"; inferred: {each.network.inferred}" if each.network.inferred else ""
        yield f"  {each.network.name}: {values}{note}"
    shares = all_to_all_efficiencies(folder)
    peaks = ", ".join(f"{gpu} {share:.1%}" for gpu, share in shares.items())
    yield f"  all-to-all over 32 GPUs, peak: {peaks} of the cards"


def _show(errors: np.ndarray) -> str:
    if not len(errors):
        return "-"
    return f"{np.median(np.abs(errors)):.1%}, {np.quantile(np.abs(errors), 0.9):.1%}"


def main() -> None:
    """Print the fits to the tables in a folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else None
    if folder is None or not all((folder / name).is_file() for name in TABLES):
        sys.exit(
            f"give the folder with {', '.join(TABLES)}: tables of all-reduces across nodes that others published, "
            "which do not ship"
        )
    print(*report(folder), sep="\n")


if __name__ == "__main__":
    main()
