"""Readers of nccl-tests, profiler traces and tables: right values in, wrong or cut-off files refused with the place."""

import gzip
import json

import pytest

from flopcast_calibration.readers import kernel_times, read_nccl_tests, read_table
from sim.errors import ProfileError

RANKS = "\n".join(
    f"#  Rank {n:2} Group  0 Pid  {n} on   node device  {n} [0000:0{n}:00] NVIDIA A100-SXM4-80GB" for n in range(8)
)
HEADER = """#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROW = "  1073741824     268435456     float     sum      -1   8203.9  130.88  229.04      0   8190.0  131.10  229.43      0\n"
LOG = f"# Collective test starting: all_reduce_perf\n# Using devices\n{RANKS}\n#\n{HEADER}{ROW}# Out of bounds values : 0 OK\n"


def write(tmp_path, text, name="log.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_nccl_text(tmp_path):
    (item,) = read_nccl_tests(write(tmp_path, LOG))
    assert item.shape == {"operation": "all_reduce", "num_ranks": 8, "num_nodes": 1, "nbytes": 2**30}
    assert item.time_s == pytest.approx(8.19e-3)  # the faster of out of place and in place


def test_nccl_text_with_more_columns(tmp_path):
    header = HEADER.replace("#wrong     time", "#wrong  i_min  i_max  i_p99  i_cv%     time")
    row = ROW.replace("229.04      0", "229.04      0  8100.0  8300.0  8290.0  1.0")
    (item,) = read_nccl_tests(write(tmp_path, LOG.replace(HEADER, header).replace(ROW, row)))
    assert item.time_s == pytest.approx(8.19e-3)


def side(time, busbw):
    return {"time": time, "alg_bw": 1.0, "bus_bw": busbw, "nwrong": 0.0}


def as_json(**changes):
    results = [{"size": 2**30, "count": 1, "out_of_place": side(8203.9, 229.04), "in_place": side(8190.0, 229.43)}]
    return json.dumps({"args": ["all_reduce_perf"], "config": {"devices": [{}] * 8}, "results": results, **changes})


def test_nccl_json(tmp_path):
    (item,) = read_nccl_tests(write(tmp_path, as_json(), "log.json"))
    assert (item.shape["num_ranks"], item.time_s) == (8, pytest.approx(8.19e-3))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LOG.replace("229.43      0\n", "\n"), r"line 1\d has 11 of 13 columns; was the log cut off\?"),
        (LOG.replace("229.04      0", "229.04      7"), "found wrong results"),
        (LOG.replace(RANKS, ""), "lists no ranks; give their number"),
        (LOG.replace("#  Rank  7", "#  Rnk   7"), r"on 7 ranks, but 229.04 is printed; is the number of ranks right\?"),
        (LOG.replace("8203.9", "eight"), "line 1.*could not convert"),
        (LOG.replace(ROW, ""), "holds no row"),
        (LOG.replace("all_reduce_perf", "something"), "does not say which collective"),
        (LOG.replace(HEADER, ""), "before the table's header"),
        (as_json()[:-40], "is not whole JSON"),
        (as_json(results=[]), "holds no results"),
        (as_json(results=[{"size": 8}]), "result 1 lacks a value"),
        ("", "is empty"),
    ],
)
def test_wrong_nccl_logs_are_refused(tmp_path, text, says):
    with pytest.raises(ProfileError, match=says):
        read_nccl_tests(write(tmp_path, text))


def kernel(name, start, duration, category="kernel"):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration}


EVENTS = [
    kernel("ampere_bf16_s16816gemm_bf16_128x256", 0, 100),
    kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 50, 100),
    kernel("flash_fwd_kernel", 200, 30),
    kernel("vectorized_elementwise_kernel", 230, 10),
    kernel("Memcpy HtoD", 240, 5, "gpu_memcpy"),
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1000},
]


@pytest.mark.parametrize("zipped", [False, True])
def test_kineto_trace(tmp_path, zipped):
    text = json.dumps({"traceEvents": EVENTS})
    path = tmp_path / ("trace.json.gz" if zipped else "trace.json")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    times = kernel_times(path)
    assert times.by_category["matmul"] == pytest.approx(100e-6)
    assert times.by_category["collective"] == pytest.approx(100e-6)
    assert times.kernels == {"matmul": 1, "collective": 1, "attention": 1, "elementwise": 1, "copy": 1}
    assert times.span_s == pytest.approx(245e-6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"traceEvents": [', "not a whole profiler trace"),
        ('{"traceEvents": []}', "no GPU kernels"),
        ('{"traceEvents": 3}', "no list of traceEvents"),
        (json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]}), "event 0 .'k'. has no start"),
    ],
)
def test_wrong_traces_are_refused(tmp_path, text, says):
    with pytest.raises(ProfileError, match=says):
        kernel_times(write(tmp_path, text, "trace.json"))


def test_table(tmp_path):
    items = read_table(write(tmp_path, "kind,m,n,k,dtype,time_s\ngemm,8,16,32,bfloat16,1e-5\n", "data.csv"))
    assert items[0].shape == {"m": 8, "n": 16, "k": 32, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("m,n\n1,2\n", "lacks the column kind and time_s"),
        ("kind,time_s\ngem,1\n", r"line 2: unknown kind 'gem'; did you mean 'gemm'\?"),
        ("kind,m,n,k,time_s\ngemm,1,2,3,1\ngemm,1,2,3,fast\n", "line 3: time_s is not a number"),
        ("kind,m,n,k,time_s\ngemm,1,2,3,-1\n", "is not a positive time"),
        ("kind,m,n,k,time_s\ngemm,1,2,,1\n", "needs k"),
        ("kind,m,n,k,time_s\ngemm,1,2,x,1\n", "k = 'x' is not a positive number"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, text, says):
    with pytest.raises(ProfileError, match=says):
        read_table(write(tmp_path, text, "data.csv"))
