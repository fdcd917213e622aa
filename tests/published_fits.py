"""Fits to measurements that others published, behind values of the shipped presets.

    python -m tests.published_fits FOLDER          # values of profiles, and errors on multiplies left out
    python -m tests.published_fits FOLDER networks # all-reduces across nodes, each network's fit and its errors

FOLDER holds tables that do not ship: gemm.csv, gemm_shapes.csv, collectives.csv and collectives_2026.csv. The values
printed for A100 and V100 are those in `sim/presets/profiles`, except for the multiplies of V100 SXM2, which are those of
`calibrate fit` on its rows of gemm_shapes.csv. The other GPUs have too few public points, or reduce in the switch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flopcast_calibration.fit.kernels import fit_alignment, fit_gemm
from flopcast_calibration.fit.links import fit_all_reduce, fit_network
from flopcast_calibration.fit.solve import Draw, Fit, Prior, fit_to
from flopcast_calibration.node import measured_cluster
from flopcast_calibration.points import multiplies_of
from flopcast_calibration.readers.table import read_each_device
from sim.costs.collectives import all_to_all_bytes
from sim.costs.compute import gemm_time
from sim.network.placement import Group
from sim.pricing.cells import layer_costs
from sim.specs import ClusterSpec, NodeSpec, Profile, Scenario, build_scenario, load_preset
from sim.specs.loading import resolve
from sim.specs.profile import GemmParams
from sim.specs.yaml12 import load_yaml

FACTS: dict[str, Any] = load_yaml(Path(__file__).with_suffix(".yaml"))
SOURCES: dict[str, dict[str, Any]] = FACTS["profiles"]
"""Profile -> where its measurements are in the tables."""
SMALLEST_MULTIPLY = 1e8
"""Below this the published times are launch latency of another library. [FLOP]"""
SMALLEST_REDUCE = 2.0**15
"""Below this time does not depend on size any more. [bytes]"""


def multiplies(folder: Path, profile: str) -> pd.DataFrame:
    """Measured multiplies of a profile's GPU with a stated shape."""
    source = SOURCES[profile]
    rows = pd.read_csv(folder / "gemm.csv").dropna(subset=["m", "n", "k", "tflops"])
    flop = 2.0 * rows.m * rows.n * rows.k
    chosen = rows.gpu.str.startswith(tuple(source["gpus"])) & rows["dtype"].isin(source["dtypes"]) & ~(rows.batch > 1)
    rows = rows.assign(time_s=flop / (rows.tflops * 1e12))[chosen & (flop >= SMALLEST_MULTIPLY)]
    return rows[["m", "n", "k", "time_s"]].astype(float).assign(batch=1.0, layout="nn")


def all_reduces(folder: Path, gpu: str) -> pd.DataFrame:
    """Measured all-reduces inside one node of one GPU."""
    rows = pd.read_csv(folder / "collectives.csv", dtype={"nodes": str}).dropna(subset=["time_us", "bytes"])
    rows = rows[(rows.gpu == gpu.upper()) & (rows.nodes == "1") & (rows.collective == "all_reduce")]
    rows = rows[rows.bytes >= SMALLEST_REDUCE]
    return pd.DataFrame({"num_ranks": rows.gpus, "nbytes": rows.bytes, "time_s": rows.time_us * 1e-6})


def refit(profile: str, folder: Path) -> dict[str, tuple[int, Fit]]:
    """Number of points and fit, for gemm and nvlink, of one shipped profile; a part without data is left out."""
    cluster, fits = measured_cluster({}, SOURCES[profile]["node"]), {}
    points, reduces = multiplies(folder, profile), all_reduces(folder, profile)
    if len(points):
        fits["gemm"] = len(points), fit_gemm(points, cluster.gpu, SOURCES[profile]["precision"])
    if len(reduces):
        fits["nvlink"] = len(reduces), fit_all_reduce(reduces, cluster)
    return fits


def refit_alignment(folder: Path) -> tuple[int, Fit]:
    """Number of points and fit of the A100's bounds on unaligned multiplies; its other values stay.

    The table does not say the card's memory: streams of 1.41 TB/s are nine tenths of what 40 GB have.
    """
    points = multiplies_of(read_each_device(folder / "gemm_shapes.csv")["A100-SXM4"].measurements)
    profile = Profile.read(load_preset("profiles", "a100"), "a100")
    gpu = measured_cluster({}, "dgx-a100-40gb").gpu
    return len(points), fit_alignment(points, gpu, "fp16", profile.gemm, profile.memory.efficiency)


def leave_shape_out(profile: str, folder: Path, most: int = 30) -> np.ndarray:
    """Error (predicted over measured time − 1) of multiplies whose shape was left out of the fit.

    Of more than `most` shapes an even sample is left out, one at a time.
    """
    precision = SOURCES[profile]["precision"]
    gpu, points = measured_cluster({}, SOURCES[profile]["node"]).gpu, multiplies(folder, profile)
    shapes, errors = list(points.groupby(["m", "n", "k"])), []
    for shape, own in shapes[:: max(1, len(shapes) // most)] if len(shapes) > 1 else ():
        fit = fit_gemm(points.drop(own.index), gpu, precision)
        gemm = GemmParams.model_construct(**fit.params, kernel_floor_s=2e-6)
        time_s = float(gemm_time(*shape, 1.0, precision, 2.0, gpu, gemm, 0.85))
        errors += [time_s / measured - 1.0 for measured in own.time_s]
    return np.array(errors)


LAYER_PRIOR: Prior = {"memory_efficiency": Draw(0.8, 0.1, 0.3, 1.0), "hidden_share": Draw(0.6, 0.3, 0.05, 1.0)}


def layer_scenarios() -> list[Scenario]:
    """The scenarios of those layers."""
    return [
        build_scenario(
            {**FACTS["layer"], "plan": {"tp": 8, "microbatch_size": 4, "recompute": mode, "sequence_parallel": both}}
        )
        for mode, both, *_ in FACTS["layer_times_ms"]
    ]


def layer_times(scenarios: Sequence[Scenario], params: Mapping[str, float]) -> np.ndarray:
    """Forward and backward of one layer of each, with values laid over their profiles. [s]"""
    times = []
    for scenario in scenarios:
        profile = scenario.profile
        memory = profile.memory.model_copy(update={"efficiency": params["memory_efficiency"]})
        nvlink = profile.nvlink.model_copy(update={"hidden_share": params["hidden_share"]})
        profile = profile.model_copy(update={"memory": memory, "nvlink": nvlink})
        passes = layer_costs(scenario.model_copy(update={"profile": profile})).passes[:2]
        times += [sum(each.values()) for each in passes]
    return np.array(times)


def fit_layer(measured: Sequence[float] | None = None) -> Fit:
    """Memory efficiency and NVLink's hidden share from one-layer times: the published ones, or others. [s]"""
    scenarios = layer_scenarios()
    times = [1e-3 * time for row in FACTS["layer_times_ms"] for time in row[2:]] if measured is None else measured
    # Ten averaged kernel times, printed to two or three digits.
    return fit_to(lambda params: layer_times(scenarios, params), np.array(times), LAYER_PRIOR, noise=0.01)


@dataclass(frozen=True)
class Network:
    """A published network, and what its rows leave out.

    systems : their names in the table begin so.
    node_gbit_per_s : of the network, per node and direction.
    domain_gpus : GPUs of an NVLink domain that take part, by number of GPUs where it is not the node's.
    in_switch, always : NVLink's switches add where that is the fastest; in every row.
    inferred : what of this the source does not say.
    """

    name: str
    systems: Sequence[str]
    node: str
    profile: str
    node_gbit_per_s: float
    domain_gpus: Mapping[int, int] = field(default_factory=dict)
    in_switch: bool = False
    always: bool = False
    inferred: str = ""

    @property
    def machine(self) -> tuple[NodeSpec, Profile]:
        """Its node, and the profile whose NVLink it has."""
        profile = Profile.read(load_preset("profiles", self.profile), self.profile)
        if not self.in_switch:
            profile = profile.replace(nvlink=profile.nvlink.replace(in_switch_efficiency=None))
        return measured_cluster({}, self.node).node, profile


TABLES = ("collectives.csv", "collectives_2026.csv")
NETWORKS = [Network(**fields) for fields in FACTS["networks"]]


def collectives(folder: Path) -> pd.DataFrame:
    """Rows of both tables that span nodes."""
    rows = pd.concat([pd.read_csv(folder / name, dtype={"nodes": str}) for name in TABLES], ignore_index=True)
    return rows[rows.nodes.notna() & (rows.nodes != "1")]


def read_points(folder: Path, network: Network) -> pd.DataFrame:
    """A network's all-reduces of known size. Where only bandwidths are printed, the time follows from them."""
    rows = collectives(folder).dropna(subset="bytes")
    rows = rows[(rows.collective == "all_reduce") & rows.system.str.startswith(tuple(network.systems))]
    gpus = rows.gpus.astype(int)
    per_node = -(-gpus // rows.nodes.astype(int))
    points = {
        "num_ranks": gpus,
        "per_domain": gpus.map(network.domain_gpus).fillna(per_node),
        "network_bytes_per_s": network.node_gbit_per_s * 1e9 / 8 / per_node,
        "nbytes": rows.bytes,
        "time_s": (rows.time_us * 1e-6).fillna(rows.bytes / (rows.algbw_GBps * 1e9)),
    }
    return pd.DataFrame(points).dropna()


@dataclass(frozen=True)
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


def score(network: Network, points: pd.DataFrame) -> Score:
    """Fit everything, then leave halves of the sizes and numbers of GPUs out in turn."""
    node, profile = network.machine

    def fit(some: pd.DataFrame) -> Fit:
        return fit_network(some, node, profile, in_switch=network.in_switch, always=network.always)

    def unseen(group: pd.Series) -> np.ndarray:
        halves = [(fit(points[group == one]), fit(points[group != one])) for one in sorted(set(group))]
        return np.concatenate([np.expm1(left_out.misfit(rest.params)) for left_out, rest in halves])

    whole, sizes = fit(points), points.nbytes.rank(method="dense") % 2
    of_counts = unseen(points.num_ranks) if points.num_ranks.nunique() > 1 else np.zeros(0)
    return Score(network, whole.params, np.expm1(whole.residuals), unseen(sizes), of_counts)


def all_to_all_efficiencies(folder: Path) -> dict[str, float]:
    """Share of the cards that published peaks of all-to-all over 32 GPUs reach, by GPU."""
    machines, rows, found = {"A100": "superpod-a100", "H100": "superpod-h100"}, collectives(folder), {}
    for row in rows[(rows.collective == "all_to_all") & rows.gpu.isin(machines)].itertuples():
        cluster = ClusterSpec.read(resolve(machines[row.gpu], "cluster"), row.gpu)
        gpus, nbytes = int(row.gpus), 1e9
        inside, outside = all_to_all_bytes(nbytes, Group(gpus, cluster.nvlink_domain_gpus))
        rates = cluster.node.nvlink_bandwidth_bytes_per_s, cluster.inter_node_bandwidth_bytes_per_s
        busbw = (gpus - 1) / gpus * nbytes / max(inside / rates[0], outside / rates[1])
        found[row.gpu] = float(row.busbw_GBps) * 1e9 / busbw
    return found


def profiles_report(folder: Path) -> Iterator[str]:
    """Every profile's refitted values, and the errors on multiplies of shapes left out."""
    for profile in SOURCES:
        for part, (count, fit) in refit(profile, folder).items():
            yield _line(profile, part, count, fit)
        errors = leave_shape_out(profile, folder)
        yield f"{profile} gemm, shape left out: {len(errors)} points, {_shown(errors)}"
    yield _line("a100", "alignment", *refit_alignment(folder))
    yield _line("a100", "layer", 2 * len(FACTS["layer_times_ms"]), fit_layer())


def networks_report(folder: Path) -> Iterator[str]:
    """Errors of the time of all-reduces across nodes, and every network's values."""
    scores = [score(network, read_points(folder, network)) for network in NETWORKS]
    kinds = {"fitted": "fitted", "sizes": "sizes left out", "counts": "GPUs left out"}
    for each in scores:
        errors = ", ".join(f"{words} {_shown(getattr(each, kind))}" for kind, words in kinds.items())
        note = f"; inferred: {each.network.inferred}" if each.network.inferred else ""
        yield f"{each.network.name}: {len(each.fitted)} rows, {errors}: {_values(each.params)}{note}"
    for kind, words in kinds.items():
        yield f"all, {words}: {_shown(np.concatenate([getattr(each, kind) for each in scores]))}"
    for gpu, share in all_to_all_efficiencies(folder).items():
        yield f"{gpu}: the peak of all-to-alls over 32 GPUs is {share:.1%} of the cards"


def _line(profile: str, part: str, count: int, fit: Fit) -> str:
    return f"{profile} {part}: {count} points, median error {fit.median_error:.1%}: {_values(fit.params)}"


def _values(params: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in params.items())


def _shown(errors: np.ndarray) -> str:
    size = np.abs(errors)
    return f"median {np.median(size):.1%}, 90th percentile {np.quantile(size, 0.9):.1%}" if len(size) else "none"


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "")
    if not all((folder / name).is_file() for name in ("gemm.csv", "gemm_shapes.csv", *TABLES)):
        sys.exit(__doc__)
    for line in (networks_report if "networks" in sys.argv[2:] else profiles_report)(folder):
        print(line, flush=True)
