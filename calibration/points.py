"""Measurements become the points that fits use; those that no fit uses are listed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, get_args

import numpy as np
import pandas as pd

from flopcast_calibration.fit.links import COLUMNS
from flopcast_calibration.measurement import Measurement, MeasurementSet
from flopcast_calibration.readers.names import FACTS
from sim.costs.compute import STATE_SHARE
from sim.errors import ProfileError, nearest
from sim.specs import ClusterSpec
from sim.specs.profile import FlashVersion
from sim.units import show
from sim.work.attention import padded_head
from sim.work.operations import Layout
from sim.work.recurrent import recurrent_core

_SORTS = {name: name for name in ("copy", "add", "norm", "softmax", "dropout", "adam")} | {"gelu": "activation"}
_DTYPES: dict[str, str] = FACTS["precisions"]
LAYOUTS = get_args(Layout)
#: Attention kernels by torch's names (`torch.nn.attention.SDPBackend`) -> `flash_version` of a stack, fastest first.
BACKENDS: dict[str, FlashVersion] = {
    "CUDNN_ATTENTION": "cudnn",
    "FLASH_ATTENTION": "2",
    "EFFICIENT_ATTENTION": "efficient",
}
STATE_TOKENS = 8192
"""Shorter sequences wait for the host that launches the kernels which carry a state."""
_ROUNDING = 1.03
"""Above a limit by this factor a measurement is refused: clocks above the nominal one, few printed digits."""
_IN_NETWORK = (
    "faster than the cards carry in rings: the network's switches add (SHARP), or the cards carry more (--network). No "
    "estimate has SHARP; a log of all_gather tells what the cards reach"
)
BESIDE = "beside a multiply"
_WHOLE = ("all_reduce", "send")
"""Operations whose whole buffer passes every member; of the others its own part stays where it is."""


def _frame(columns: str, rows: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    """Rows as a table, whose columns are there even if it has none."""
    return pd.DataFrame(list(rows), columns=columns.split())


def gemm_points(data: MeasurementSet) -> dict[str, pd.DataFrame]:
    """Measured multiplies of one GPU, batched ones (as math attention runs them) included, by precision.

    The precision that training mostly runs in comes first: it says what all the parameters are.
    """
    found: dict[str, list[Measurement]] = {}
    for item in [*data.of("gemm"), *data.of("bmm")]:
        if not _of_many(item):
            found.setdefault(precision_of(item), []).append(item)
    usual = ("bf16", "fp16", *sorted(found, key=lambda name: -len(found[name])))
    return {name: multiplies_of(found[name]) for name in dict.fromkeys(usual) if name in found}


def multiplies_of(items: Iterable[Measurement]) -> pd.DataFrame:
    """Measured multiplies; of two row-major matrices where a layout is not said. An unknown one is a ProfileError."""
    rows = []
    for item in items:
        layout = str(item.shape.get("layout", "nn"))
        if layout not in LAYOUTS:
            raise ProfileError(f"{item.source or item.kind}: layout {layout!r} is none of {', '.join(LAYOUTS)}")
        sizes = (item.number(axis) for axis in "mnk")
        rows.append((*sizes, item.time_s, float(item.shape.get("batch", 1)), layout))
    return _frame("m n k time_s batch layout", rows)


def together_points(data: MeasurementSet, precision: str) -> pd.DataFrame:
    """Measured multiplies that all GPUs of a node ran at once."""
    return multiplies_of(item for item in data.of("gemm") if _of_many(item) and precision_of(item) == precision)


def _of_many(item: Measurement) -> bool:
    return int(item.shape.get("num_ranks", 1)) > 1


def precision_of(item: Measurement) -> str:
    """Precision of a measured multiply. A dtype that no GPU multiplies is a ProfileError."""
    dtype = str(item.shape.get("dtype", "bfloat16"))
    if dtype not in _DTYPES:
        raise ProfileError(f"{item.source or item.kind}: unknown dtype {dtype!r}{nearest(dtype, _DTYPES)}")
    return _DTYPES[dtype]


def memory_points(data: MeasurementSet) -> pd.DataFrame:
    """Measured memory-bound operations."""
    sorts = ((item, _SORTS.get(str(item.shape.get("operation")), "copy")) for item in data.of("memory"))
    return _frame("nbytes time_s sort", ((item.number("nbytes"), item.time_s, sort) for item, sort in sorts))


def attention_kernel(data: MeasurementSet) -> FlashVersion | None:
    """The fused attention kernel that the profile's values describe: the fastest that was measured."""
    there = {str(item.shape.get("backend")) for item in data.of("attention")}
    return next((version for backend, version in BACKENDS.items() if backend in there), None)


def attention_points(data: MeasurementSet) -> pd.DataFrame:
    """Measured fused attention by that kernel, by the FLOPs it executes.

    Whether a causal kernel skips the masked half is told from the times of the longest sequences, as short ones take
    as long either way: on GPUs it does, on CPUs it may not. Where it does, training's causal shapes count alone, for
    what is skipped costs some of the rate.
    """
    kernel = attention_kernel(data)
    items = [item for item in data.of("attention") if BACKENDS.get(str(item.shape.get("backend"))) == kernel]
    times, causal = _by_shape(items), [item for item in items if item.shape.get("causal")]
    twins = [(item, twin) for item in causal if (twin := times.get(_shape_of(item, causal=0)))]
    longest = max((item.shape["length"] for item, _ in twins), default=0)
    ratios = [item.time_s / twin for item, twin in twins if item.shape["length"] == longest]
    skips = not ratios or float(np.median(ratios)) < 0.75
    chosen = causal if skips and causal else items
    return _frame("flop length backward columns time_s", (_attention(item, skips) for item in chosen))


def _attention(item: Measurement, skips: bool) -> tuple[float, float, bool, float, float]:
    heads, length, head_dim = (item.number(name) for name in ("heads", "length", "head_dim"))
    backward = bool(item.shape.get("backward", 0))
    share = 0.5 if item.shape.get("causal") and skips else 1.0
    version = BACKENDS.get(str(item.shape.get("backend")))
    columns = padded_head(int(head_dim), version) if version else head_dim
    flop = 4.0 * heads * length**2 * columns * share * (2.5 if backward else 1.0)
    return flop, length, backward, columns, item.time_s


def state_points(data: MeasurementSet) -> pd.DataFrame:
    """Measured kernels that carry a state along the sequence, whose FLOPs are those of an H100's share of peak.

    An unknown kernel is a ProfileError.
    """
    rows = []
    for item in data.of("recurrent"):
        kernel, backward = str(item.shape.get("kernel")), bool(item.shape.get("backward"))
        if kernel not in STATE_SHARE:
            raise ProfileError(f"{item.source or item.kind}: unknown kernel {kernel!r}{nearest(kernel, STATE_SHARE)}")
        sizes = (item.number(name) for name in ("length", "heads", "key_heads", "head_dim", "state"))
        carried = recurrent_core(kernel, *sizes, width=2)[backward]
        if item.number("length") >= STATE_TOKENS:
            rows.append((carried.flop / STATE_SHARE[kernel][backward], item.time_s))
    return _frame("flop time_s", rows)


def attention_speeds(data: MeasurementSet) -> dict[FlashVersion, float]:
    """Speed of the other kernels that were measured over that one's, on the same causal shapes."""
    kernel = attention_kernel(data)
    found: dict[FlashVersion, list[float]] = {}
    usual = _by_shape(item for item in data.of("attention") if BACKENDS.get(str(item.shape.get("backend"))) == kernel)
    for item in data.of("attention"):
        version, twin = BACKENDS.get(str(item.shape.get("backend"))), usual.get(_shape_of(item))
        unpadded = item.number("head_dim") in (64, 128)  # no kernel pads these
        if version not in (None, kernel) and twin and item.shape.get("causal") and unpadded:
            found.setdefault(version, []).append(twin / item.time_s)
    return {version: float(np.median(ratios)) for version, ratios in found.items()}


def _by_shape(items: Iterable[Measurement]) -> dict[str, float]:
    return {_shape_of(item): item.time_s for item in items}


def _shape_of(item: Measurement, **other: int) -> str:
    """The shape whatever kernel ran it."""
    return json.dumps({**item.shape, "backend": "", **other}, sort_keys=True)


def launch_points(data: MeasurementSet, *, graph: bool = False) -> pd.DataFrame:
    """Measured launches by the host, or kernels that a CUDA graph launches."""
    items = [item for item in data.of("launch") if ("graph" in item.shape) == graph]
    kernels = (item.number("kernels") if graph else float(item.shape.get("kernels", 1)) for item in items)
    rows = ((count, item.time_s, "kernels" in item.shape) for count, item in zip(kernels, items, strict=True))
    return _frame("kernels time_s framework", rows)


def copy_points(data: MeasurementSet) -> pd.DataFrame:
    """Measured copies between host and device."""
    there = ((item, item.shape.get("direction", "to_device") == "to_device") for item in data.of("copy"))
    return _frame("nbytes to_device time_s", ((item.number("nbytes"), to, item.time_s) for item, to in there))


def domains_of(item: Measurement, cluster: ClusterSpec) -> int:
    """NVLink domains that a measurement spans: its nodes, or racks where NVLink joins several nodes."""
    ranks, nodes = int(item.shape.get("num_ranks", 1)), int(item.shape.get("num_nodes", 1))
    if cluster.nvlink_domain_gpus > cluster.node.gpus_per_node:
        return min(nodes, math.ceil(ranks / cluster.nvlink_domain_gpus))
    return min(nodes, ranks)


def link_points(data: MeasurementSet, cluster: ClusterSpec) -> pd.DataFrame:
    """Measurements over several ranks that say something about links, by the library's own choice of algorithm.

    Beside the COLUMNS of points: the operation (BESIDE of collectives that ran beside multiplies, with gemm_s and
    collective_s of each alone), the NVLink domains that it spans, and the groups that ran at once.
    """
    rows = []
    for item in data.measurements:
        if item.kind in ("collective", "interference") and why_not(item, data, cluster) is None:
            operation = str(item.shape["operation"]) if item.kind == "collective" else BESIDE
            ranks, domains, alone = (
                int(item.number("num_ranks")),
                domains_of(item, cluster),
                {**item.shape, **item.extra},
            )
            rate, nbytes = cluster.inter_node_bandwidth_bytes_per_s, item.number("nbytes")
            times = (float(alone.get(name, math.nan)) for name in ("gemm_s", "collective_s"))
            points = (ranks, math.ceil(ranks / domains), rate, nbytes, item.time_s)
            rows.append((*points, operation, domains, _groups(item), *times))
    return _frame(" ".join((*COLUMNS, "operation domains groups gemm_s collective_s")), rows)


def _groups(item: Measurement) -> int:
    return int(item.shape.get("groups", 1))


def why_not(item: Measurement, data: MeasurementSet, cluster: ClusterSpec) -> str | None:
    """Why a measurement over several ranks says nothing about links; None where it does."""
    ranks, nodes = int(item.shape.get("num_ranks", 1)), int(item.shape.get("num_nodes", 1))
    if item.shape.get("algorithm"):
        return f"by {item.shape['algorithm']}, which was asked for and may not be what jobs get"
    if nodes > 1 and ranks < 2 * _groups(item) and ranks < nodes:
        return f"on {ranks} ranks of {nodes} nodes"
    if ranks > nodes * cluster.node.gpus_per_node:
        return f"on more ranks than the {cluster.node.gpus_per_node} of node {cluster.node.name!r}"
    if nodes == 1 and _groups(item) > 1:
        return "of several groups in a node at once"
    if _added_by_network(item, data, cluster):
        return _IN_NETWORK
    cores = data.machine.get("cores") if data.machine.get("device_kind") == "cpu" else None
    if cores and ranks > nodes * cores:
        return f"on more ranks than the machine's {cores} cores (they time the scheduler)"
    return None


def _added_by_network(item: Measurement, data: MeasurementSet, cluster: ClusterSpec) -> bool:
    """Whether an all-reduce, or a larger one of the same ranks, is faster than rings over all of a domain's cards.

    Between two domains trees are faster than rings too; between more only switches of the network that add are
    (Graham et al. 2016, "Scalable Hierarchical Aggregation Protocol", COMHPC).
    """
    domains = domains_of(item, cluster)
    if item.shape.get("operation") != "all_reduce" or domains <= 2:
        return False
    ranks = int(item.shape["num_ranks"])
    cards = math.ceil(ranks / domains) * cluster.inter_node_bandwidth_bytes_per_s
    alike = data.of("collective", operation="all_reduce", num_ranks=ranks)
    moved = 2 * (ranks - 1) / ranks
    return any(moved * each.number("nbytes") > _ROUNDING * cards * each.time_s for each in alike)


def check_rates(data: MeasurementSet, cluster: ClusterSpec) -> None:
    """Refuse what this hardware cannot do: another device, another number of ranks or nodes, another unit.

    The ProfileError names the measurement, the limit, and what may be wrong.
    """
    if data.machine.get("device_kind") == "cpu":
        return  # a processor's peak and its loopback are in no datasheet
    gpu = cluster.gpu
    for item in data.measurements:
        where = item.source or f"a {item.kind} measurement"
        if item.kind in ("gemm", "bmm"):
            precision = precision_of(item)
            rate = (
                2.0 * math.prod(item.number(axis) for axis in "mnk") * float(item.shape.get("batch", 1)) / item.time_s
            )
            peak = gpu.peak_flop_per_s.get(precision)
            if peak is not None and rate > _ROUNDING * peak:
                raise ProfileError(
                    f"{where}: {show(rate, 'FLOP/s')} is above the {precision} peak of {gpu.name}, "
                    f"{show(peak, 'FLOP/s')}; was it this device (--node), this precision (dtype), and the time in the "
                    "unit of its column?"
                )
        elif item.kind == "collective" and why_not(item, data, cluster) in (None, _IN_NETWORK):
            _check_link(where, item, domains_of(item, cluster), cluster)


def _check_link(where: str, item: Measurement, domains: int, cluster: ClusterSpec) -> None:
    """No collective is faster than the bytes that have to pass: switches that add, every card of a domain in use."""
    operation = str(item.shape.get("operation"))
    ranks, nbytes = int(item.number("num_ranks")), item.number("nbytes")
    members = 1 if domains == 1 else math.ceil(ranks / domains)
    moved = nbytes if operation in _WHOLE else nbytes * (ranks - members) / ranks
    shared_by = members if domains > 1 and operation not in ("send", "all_to_all") else 1
    node = cluster.node
    if domains == 1:
        name, limit = "NVLink", node.nvlink_bandwidth_bytes_per_s
        remedy = "was it this node (--node), and are the numbers of hosts and ranks right (--nodes, --ranks)?"
    else:
        alone = node.nic_bandwidth_bytes_per_s if operation == "send" and _groups(item) == 1 else 0.0
        name, limit = "the network", max(alone, cluster.inter_node_bandwidth_bytes_per_s)
        remedy = (
            "give the bandwidth of all of a node's cards (--network '3200 Gbit/s'), or the node that it was (--node)"
        )
    if moved / shared_by / item.time_s > _ROUNDING * limit:
        raise ProfileError(
            f"{where}: {operation} of {show(nbytes, 'B')} on {ranks} ranks in {1e6 * item.time_s:,.4g} us is more than "
            f"{name} of {node.name!r} carries ({show(limit, 'B/s')} a GPU); {remedy}"
        )
