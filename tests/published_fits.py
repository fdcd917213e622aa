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

import numpy as np
import pandas as pd

from flopcast_calibration.fit.kernels import fit_alignment, fit_gemm
from flopcast_calibration.fit.kernels import multiplies as multiplies_of_sizes
from flopcast_calibration.fit.links import fit_all_reduce, fit_network
from flopcast_calibration.fit.solve import Draw, Fit, Prior, fit_to
from flopcast_calibration.points import multiplies_of
from flopcast_calibration.readers.table import read_each_device
from sim.costs.collectives import all_to_all_bytes
from sim.costs.compute import gemm_time
from sim.network.placement import Group
from sim.pricing.cells import layer_costs
from sim.specs import ClusterSpec, NodeSpec, Profile, Scenario, build_scenario, load_preset
from sim.specs.loading import resolve
from sim.specs.profile import GemmParams

SOURCES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
    "a100": ("dgx-a100-80gb", ("A100 SXM",), ("fp16", "bf16"), "fp16"),
    "p100": ("xc50", ("P100",), ("fp32",), "fp32"),
    "v100": ("dgx-1v", (), (), "fp16"),
    "v100-sxm3": ("dgx-1v", ("V100",), ("fp16 inputs, tensor cores", "fp16"), "fp16"),
    "h100": ("dgx-h100", ("H100 SXM", "H100"), ("bf16", "fp16"), "bf16"),
    "h200": ("dgx-h200", ("H200",), ("bf16", "fp16"), "bf16"),
    "b200": ("dgx-b200", ("B200",), ("bf16", "fp16"), "bf16"),
    "b300": ("dgx-b300", ("B300",), ("bf16", "fp16"), "bf16"),
}
"""Profile -> node preset, how the measurements' GPU names begin, their dtypes, precision."""
SMALLEST_MULTIPLY = 1e8
"""Below this the published times are launch latency of another library. [FLOP]"""
SMALLEST_REDUCE = 2.0**15
"""Below this time does not depend on size any more. [bytes]"""


def cluster_of(node: str) -> ClusterSpec:
    """One node of a preset."""
    return ClusterSpec.read(resolve({"name": node, "node": node, "num_nodes": 1}, "cluster"), node)


def multiplies(folder: Path, profile: str) -> pd.DataFrame:
    """Measured multiplies of a profile's GPU with a stated shape."""
    _, gpus, dtypes, _ = SOURCES[profile]
    rows = pd.read_csv(folder / "gemm.csv").dropna(subset=["m", "n", "k", "tflops"])
    flop = 2.0 * rows.m * rows.n * rows.k
    chosen = rows.gpu.str.startswith(gpus or "no GPU") & rows["dtype"].isin(dtypes) & ~(rows.batch > 1)
    rows = rows.assign(time_s=flop / (rows.tflops * 1e12))[chosen & (flop >= SMALLEST_MULTIPLY)]
    return multiplies_of_sizes(*(rows[name].to_numpy(float) for name in ("m", "n", "k", "time_s")))


def all_reduces(folder: Path, gpu: str) -> pd.DataFrame:
    """Measured all-reduces inside one node of one GPU."""
    rows = pd.read_csv(folder / "collectives.csv", dtype={"nodes": str}).dropna(subset=["time_us", "bytes"])
    rows = rows[(rows.gpu == gpu.upper()) & (rows.nodes == "1") & (rows.collective == "all_reduce")]
    rows = rows[rows.bytes >= SMALLEST_REDUCE]
    return pd.DataFrame({"num_ranks": rows.gpus, "nbytes": rows.bytes, "time_s": rows.time_us * 1e-6})


def refit(profile: str, folder: Path) -> dict[str, tuple[int, Fit]]:
    """Number of points and fit, for gemm and nvlink, of one shipped profile; a part without data is left out."""
    node, *_, precision = SOURCES[profile]
    cluster, fits = cluster_of(node), {}
    points, reduces = multiplies(folder, profile), all_reduces(folder, profile)
    if len(points):
        fits["gemm"] = len(points), fit_gemm(points, cluster.gpu, precision)
    if len(reduces):
        fits["nvlink"] = len(reduces), fit_all_reduce(reduces, cluster)
    return fits


def refit_alignment(folder: Path) -> tuple[int, Fit]:
    """Number of points and fit of the A100's bounds on unaligned multiplies; its other values stay.

    The table does not say the card's memory: streams of 1.41 TB/s are nine tenths of what 40 GB have.
    """
    points = multiplies_of(read_each_device(folder / "gemm_shapes.csv")["A100-SXM4"].measurements)
    profile = Profile.read(load_preset("profiles", "a100"), "a100")
    gpu = cluster_of("dgx-a100-40gb").gpu
    return len(points), fit_alignment(points, gpu, "fp16", profile.gemm, profile.memory.efficiency)


def leave_shape_out(profile: str, folder: Path, most: int = 30) -> np.ndarray:
    """Error (predicted over measured time − 1) of multiplies whose shape was left out of the fit.

    Of more than `most` shapes an even sample is left out, one at a time.
    """
    node, *_, precision = SOURCES[profile]
    gpu, points = cluster_of(node).gpu, multiplies(folder, profile)
    shapes, errors = list(points.groupby(["m", "n", "k"])), []
    for shape, own in shapes[:: max(1, len(shapes) // most)] if len(shapes) > 1 else ():
        fit = fit_gemm(points.drop(own.index), gpu, precision)
        gemm = GemmParams.model_construct(**fit.params, kernel_floor_s=2e-6)
        time_s = float(gemm_time(*shape, 1.0, precision, 2.0, gpu, gemm, 0.85))
        errors += [time_s / measured - 1.0 for measured in own.time_s]
    return np.array(errors)


LAYER = {"model": "gpt-22b", "cluster": "selene", "stack": "megatron-2022", "profile": "a100",
         "training": {"global_batch_size": 4, "sequence_length": 2048, "precision": "fp16"}}  # fmt: skip
LAYER_TIMES_MS = (
    ("none", False, 7.7, 11.9), ("none", True, 7.2, 11.8), ("full", False, 7.7, 19.5),
    ("selective", False, 7.7, 13.2), ("selective", True, 7.2, 13.1),
)  # fmt: skip
"""Recompute, sequence parallelism, forward and backward of one layer on tp 8, micro-batch 4: Korthikanti et al. 2022,
arXiv:2205.05198, table 4. With multiplies and collectives known, the forward tells what memory-bound kernels reach, and
the backward how much of the collectives compute hides."""
LAYER_PRIOR: Prior = {"memory_efficiency": Draw(0.8, 0.1, 0.3, 1.0), "hidden_share": Draw(0.6, 0.3, 0.05, 1.0)}


def layer_scenarios() -> list[Scenario]:
    """The scenarios of those layers."""
    return [
        build_scenario({**LAYER, "plan": {"tp": 8, "microbatch_size": 4, "recompute": mode, "sequence_parallel": both}})
        for mode, both, *_ in LAYER_TIMES_MS
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
    times = [1e-3 * time for row in LAYER_TIMES_MS for time in row[2:]] if measured is None else measured
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
    systems: tuple[str, ...]
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
        return cluster_of(self.node).node, profile


_XGMI = "400 Gbit/s a GPU; inside a node as NVIDIA's GPU of its time, for want of measurements"
_AWS_H100 = "NVLink's switches add: two nodes reach more than their cards would carry of a ring"
_UNNAMED = "100 Gbit/s a GPU: the lowest common rate above what was reached"
_RACKS = (
    "two racks give 64 GPUs each. NVLink's switches add at every size (half a gigabyte and more), in a tree between "
    "racks. One and two racks reach more than rings do in a rack (680 GB/s)"
)
TABLES = ("collectives.csv", "collectives_2026.csv")
NETWORKS = (
    Network("A100, EFA, 400 Gbit/s a node", ("AWS p4de",), "dgx-a100-80gb", "a100", 400.0),
    Network("H100, EFA, 3,200 Gbit/s a node", ("AWS p5.48xlarge, EFA", "AWS p5.48xlarge on EKS"), "dgx-h100", "h100",
            3200.0, in_switch=True, inferred=_AWS_H100),
    Network("H200, EFA, 3,200 Gbit/s a node", ("AWS p5en",), "dgx-h200", "h200", 3200.0),
    Network("B200, EFA, 3,200 Gbit/s a node", ("AWS P6-B200",), "dgx-b200", "b200", 3200.0),
    Network("H100, InfiniBand NDR", ("CoreWeave HGX H100",), "dgx-h100", "h100", 3200.0),
    Network("H100, network not stated", ("4 nodes x 8 H100",), "dgx-h100", "h100", 800.0, inferred=_UNNAMED),
    Network("GB200 NVL72, InfiniBand NDR", ("CoreWeave NVL72", "CoreWeave 2 NVL72", "CoreWeave 20 NVL72"), "gb200-tray",
            "b200", 1600.0, {72: 72, 128: 64, 1440: 72}, in_switch=True, always=True, inferred=_RACKS),
    Network("A100, InfiniBand HDR (Azure)", ("Azure A100-40GB nodes",), "dgx-a100-40gb", "a100", 1600.0),
    Network("MI300X, InfiniBand or RoCE", ("AMD AAC10",), "mi300x-8", "h100", 3200.0, inferred=_XGMI),
    Network("MI355X, RoCE (Pollara)", ("AMD AAC14",), "mi355x-8", "b200", 3200.0, inferred=_XGMI),
    Network("V100 and A100, Omni-Path in use", ("Jean Zay, 4x Omni",), "dgx-a100-80gb", "a100", 400.0),
)  # fmt: skip


def collectives(folder: Path) -> pd.DataFrame:
    """Rows of both tables that span nodes."""
    rows = pd.concat([pd.read_csv(folder / name, dtype={"nodes": str}) for name in TABLES], ignore_index=True)
    return rows[rows.nodes.notna() & (rows.nodes != "1")]


def read_points(folder: Path, network: Network) -> pd.DataFrame:
    """A network's all-reduces of known size. Where only bandwidths are printed, the time follows from them."""
    rows = collectives(folder).dropna(subset="bytes")
    rows = rows[(rows.collective == "all_reduce") & rows.system.str.startswith(network.systems)]
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
    yield _line("a100", "layer", 2 * len(LAYER_TIMES_MS), fit_layer())


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
