"""What the columns of a plain table of measurements may be called, and what each means.

Names are compared in lower case, with spaces and brackets as underscores: `Time (us)` is `time_us`. Only in bandwidths
does the case count: GB/s and GBps are bytes, while gbps could be either and is refused.
"""

from __future__ import annotations

import re

#: a time -> its unit. [s]
TIMES = {
    **dict.fromkeys(("time_s", "time", "seconds", "latency_s", "duration_s", "sec"), 1.0),
    **dict.fromkeys(("time_ms", "ms", "milliseconds", "latency_ms", "duration_ms"), 1e-3),
    **dict.fromkeys(("time_us", "us", "microseconds", "latency_us", "duration_us"), 1e-6),
    **dict.fromkeys(("time_ns", "ns", "nanoseconds", "latency_ns", "duration_ns"), 1e-9),
}
#: a rate of computing -> its unit. [FLOP/s]
FLOP_RATES = {
    **dict.fromkeys(("tflops", "tflop/s", "tflops/s", "tflop_per_s", "tflops_per_s"), 1e12),
    **dict.fromkeys(("gflops", "gflop/s", "gflops/s", "gflop_per_s", "gflops_per_s"), 1e9),
}
#: before or after the name of a time or rate, which statistic it is, and how well that one stands for a measurement;
#: others (min, max, p99) are not read
STATISTICS = {"median": 0, "p50": 0, "": 1, "avg": 2, "mean": 2, "average": 2}
#: a bandwidth of a copy; for collectives algbw and busbw, alone in GB/s as nccl-tests has them
COPY_RATES = ("bandwidth", "bw", "throughput")
COLLECTIVE_RATES = ("algbw", "busbw")
_BYTES_PER_S = {
    "GB/s": 1e9,
    "GBps": 1e9,
    "GB_per_s": 1e9,
    "GiB/s": 2.0**30,
    "MB/s": 1e6,
    "MBps": 1e6,
    "MiB/s": 2.0**20,
    "TB/s": 1e12,
}
#: Columns for people.
REMARKS = ("source", "published", "locator", "note", "notes", "remark", "remarks", "comment")
_BITS_OR_BYTES = re.compile(r"(?:^|_)[kmgt](?:bps|b/s|b_per_s|bit/s|bits/s|bits)$", re.IGNORECASE)

#: what names the shape -> ours, by kind
SHAPES: dict[str, dict[str, str]] = {
    "gemm": {"m": "m", "n": "n", "k": "k", "layout": "layout", "operation": "operation"},
    "bmm": {
        "m": "m",
        "n": "n",
        "k": "k",
        **dict.fromkeys(("batch", "b", "batch_size", "batch_count", "batches"), "batch"),
    },
    "attention": {
        **dict.fromkeys(("heads", "num_heads", "n_heads", "nheads", "nhead"), "heads"),
        **dict.fromkeys(("length", "seq_len", "seqlen", "seq_length", "sequence_length", "context"), "length"),
        **dict.fromkeys(("head_dim", "headdim", "dim_head", "head_size"), "head_dim"),
        **dict.fromkeys(("batch", "batch_size", "bs"), "batch"),
        "causal": "causal",
        "backward": "backward",
    },
    "copy": {**dict.fromkeys(("nbytes", "bytes", "size", "size_bytes", "size_b"), "nbytes"), "direction": "direction"},
    "collective": {
        **dict.fromkeys(("operation", "collective", "op", "primitive", "coll"), "operation"),
        **dict.fromkeys(
            ("nbytes", "bytes", "size", "size_bytes", "size_b", "message_size", "msg_size", "message_bytes"), "nbytes"
        ),
        **dict.fromkeys(
            ("num_ranks", "ranks", "nranks", "n_ranks", "gpus", "num_gpus", "n_gpus", "ngpus", "world_size"),
            "num_ranks",
        ),
        **dict.fromkeys(("num_nodes", "nodes", "nnodes", "n_nodes", "hosts", "num_hosts"), "num_nodes"),
        "groups": "groups",
    },
    "memory": dict.fromkeys(("nbytes", "bytes"), "nbytes"),
    "launch": {},
    "interference": {},
}
DTYPE_NAMES = ("dtype", "precision", "type", "datatype", "data_type")
DEVICE_NAMES = ("device", "gpu", "gpu_name", "device_name", "accelerator")
DIRECTIONS = {
    **dict.fromkeys(("to_device", "h2d", "htod", "host_to_device"), "to_device"),
    **dict.fromkeys(("to_host", "d2h", "dtoh", "device_to_host"), "to_host"),
}


def plain(header: str) -> str:
    """A column's name as compared: `Time (us)` is time_us."""
    return re.sub(r"[\s(\[_]+", "_", header.strip().replace("µ", "u").lower()).strip(")]_ ")


def bandwidth(header: str) -> tuple[str, float | None] | None:
    """The quantity and unit of a bandwidth's column; no unit where bits and bytes cannot be told apart; else None.

    >>> bandwidth("busbw_GBps"), bandwidth("Bandwidth (GB/s)"), bandwidth("busbw")
    (('busbw', 1000000000.0), ('bandwidth', 1000000000.0), ('busbw', 1000000000.0))
    >>> bandwidth("gbps")
    ('bandwidth', None)
    """
    name = re.sub(r"[\s(\[_]+", "_", header.strip()).strip(")]_ ")
    for unit, bytes_per_s in _BYTES_PER_S.items():
        if name == unit or name.endswith("_" + unit):
            quantity = plain(name.removesuffix(unit)) or "bandwidth"
            return (_quantity(quantity), bytes_per_s) if _quantity(quantity) else None
    if plain(name) in COLLECTIVE_RATES:
        return plain(name), 1e9
    if _BITS_OR_BYTES.search(name):
        quantity = _quantity(plain(_BITS_OR_BYTES.sub("", name)) or "bandwidth")
        return (quantity, None) if quantity else None
    return None


def statistic(name: str) -> tuple[str, int]:
    """The name of a time or rate without its statistic, and how well that one stands for a measurement: 0 is best.

    >>> statistic("p50_ms"), statistic("latency_us_avg"), statistic("time_s")
    (('ms', 0), ('latency_us', 2), ('time_s', 1))
    """
    first, _, rest = name.partition("_")
    if rest and first in STATISTICS:
        return rest, STATISTICS[first]
    before, _, last = name.rpartition("_")
    if before and last in STATISTICS:
        return before, STATISTICS[last]
    return name, STATISTICS[""]


def _quantity(name: str) -> str:
    """algbw, busbw, or the bandwidth of a copy; "" for what is neither."""
    return name if name in COLLECTIVE_RATES else "bandwidth" if name in COPY_RATES else ""
