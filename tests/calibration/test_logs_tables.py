"""Plain tables of other people's making: the kind told from the columns, units, rates, number formats."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopcast_calibration.readers import read_measurements
from flopcast_calibration.readers.names import DTYPES, FLOP_RATES, TIMES
from sim.errors import ProfileError


def only(log):
    (item,) = log.measurements
    return item


FLOP = 2 * 4096 * 4096 * 4096
SHAPE = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16"}


TIMED = {
    "time_s": "0.001", "time": "0.001", "Time (ms)": "1", "latency_us": "1000", "time [µs]": "1e3", "p50_ms": "1",
    "time_ns": "1000000", "tflops": str(FLOP * 1e-9), "TFLOP/s": str(FLOP * 1e-9), "GFLOPS": str(FLOP * 1e-6),
    "avg_tflops": str(FLOP * 1e-9),
}  # fmt: skip
"""A column of time or rate, and a millisecond in it."""


def test_multiplies_by_their_columns(read):
    wrong = []
    for header, cell in TIMED.items():
        for separator in (",", "\t", ";", " | "):
            names, cells = [" M", "N ", "k", "Precision", header], ["4096", "4096.0", "4096", "torch.bfloat16", cell]
            item = only(read(f"# of mine\n{separator.join(names)}\n\n{separator.join(cells)}\n", "x.txt"))
            said = item.kind, item.shape, item.source.rpartition(" ")[2]
            if said != ("gemm", SHAPE, "4") or item.time_s != pytest.approx(1e-3):
                wrong.append((header, separator, item))
    assert wrong == []


def test_batched_multiplies(read):
    log = read("batch,m,n,k,dtype,us\n1,64,64,64,half,5\n16,64,64,64,fp16,9\n")
    assert [(item.kind, item.shape.get("batch")) for item in log.measurements] == [("gemm", None), ("bmm", 16)]


def test_attention(read):
    item = only(read("batch,num_heads,seqlen,headdim,causal,dtype,tflops\n2,16,2048,128,True,bf16,400\n"))
    assert item.kind == "attention"
    assert item.shape == {"heads": 32, "length": 2048, "head_dim": 128, "causal": 1, "dtype": "bfloat16"}
    assert item.time_s == pytest.approx(4 * 32 * 2048**2 * 128 / 2 / 400e12)


def test_collectives(read):
    text = "Op,Size (B),GPUs,Nodes,algbw\nAllReduce,1073741824,16,2,100\nall-gather,1048576,8,1,50\n"
    first, second = read(text).measurements
    assert first.shape == {"operation": "all_reduce", "nbytes": 2**30, "num_ranks": 16, "num_nodes": 2}
    assert first.time_s == pytest.approx(2**30 / 100e9)
    assert second.shape["operation"] == "all_gather"


def test_bus_bandwidths_are_of_the_operation_and_ranks(read):
    item = only(read("collective,bytes,world_size,nodes,busbw_GB/s\nall_reduce,1000000,4,1,150\n"))
    assert item.time_s == pytest.approx(1e6 * 1.5 / 150e9)


def test_what_a_table_of_collectives_does_not_say_the_user_does(read):
    text = "size,time_us\n1048576,100\n"
    item = only(read(text, operation="all_to_all", ranks=8, nodes=2))
    assert item.shape == {"operation": "all_to_all", "nbytes": 2**20, "num_ranks": 8, "num_nodes": 2}
    log = read(text, operation="all_to_all", ranks=8)
    assert only(log).shape["num_nodes"] == 1
    assert "one is assumed" in log.notes[0]
    with pytest.raises(ProfileError, match="lacks columns that say the kind"):
        read(text)
    with pytest.raises(ProfileError, match="needs num_ranks"):
        read(text, operation="all_to_all")


def test_copies(read):
    log = read("direction,bytes,Bandwidth (GB/s)\nH2D,1000000000,25\ndevice to host,1000000000,20\n")
    assert [item.shape["direction"] for item in log.measurements] == ["to_device", "to_host"]
    assert log.measurements[0].time_s == pytest.approx(0.04)


def test_columns_that_nothing_reads_are_named_and_a_device_is_kept(read):
    log = read("gpu,m,n,k,library,p99_ms,ms\nH200,64,64,64,cublas,9,0.01\nH200,64,64,64,mine,9,0.02\n")
    assert log.machine == {"device": "H200"}
    assert log.notes[0].endswith("columns that nothing reads: library, p99_ms")
    assert "1 shapes occur more than once" in log.notes[1]
    assert set(log.measurements[0].shape) == {"m", "n", "k"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("m,n,k,tflops\n64,64,64,0\n", "line 2: tflops = 0 is not a positive number"),
        ("m,n,k,tflops\n64,64,64,nan\n", "line 2: tflops = nan is not a positive number"),
        ("m,n,k,ms\n64,64,64,1\n64,64,64,inf\n", "line 3: ms = inf is not a positive number"),
        ("m,n,k,ms\n64,64,64,-1\n", "line 2: ms = -1 is not a positive number"),
        ("m,n,k,ms\n64,64,64,OOM\n", "line 2: ms = 'OOM' is not a number"),
        ("m,n,k,ms\n64,64,64,\n", "line 2: no cell has a time"),
        ("m,n,k,ms\n64,0,64,1\n", "line 2: n = 0 is not a positive number"),
        ("m,n,k,ms\n64,1.5,64,1\n", "line 2: n = 1.5 is not a positive number"),
        ("m,n,k,ms\n64,64,64,1\n64,64", "line 3 has 2 cells, the header 4; was the file cut off?"),
        ("m,n,k,dtype,ms\n64,64,64,banana,1\n", "unknown number format 'banana'"),
        ("m,n,k,dtype,ms\n64,64,64,bfloat,1\n", "did you mean 'bfloat16'"),
        ("m,n,k,time_ms,tflops\n4096,4096,4096,1,900\n", r"time_ms is 0.001 s, but tflops means .* unit wrong"),
        ("m,n,k,time_s\n8192,8192,8192,1.5e-9\n", "which no machine has; is its unit wrong"),
        ("m,n,k,layout\n64,64,64,nt\n", "lacks a time"),
        ("m,n,k,ms,ms\n64,64,64,1,1\n", "the column ms occurs twice"),
        ("gpu,m,n,k,ms\nA100,64,64,64,1\nH100,64,64,64,1\n", "on several machines .A100, H100."),
        ("op,size,ranks,gbps\nall_reduce,1048576,8,100\n", "'gbps' may be bits or bytes; rename it"),
        ("op,size,ranks,busbw_gbps\nall_reduce,1048576,8,100\n", "'busbw_gbps' may be bits or bytes"),
        ("op,size,ranks,time,algbw\nall_reduce,1073741824,8,8203.9,130.88\n", "time is 8204 s, but algbw means 0.0082"),
        ("op,size,ranks,time\nall_reduce,1073741824,8,8203.9\n", "which no machine has"),
        ("op,size,ranks,us\nall_reduce,1048576,1,10\n", "one rank communicates with nobody"),
        ("op,size,ranks,nodes,us\nall_reduce,1048576,2,4,10\n", "4 nodes are more than 2 ranks"),
        ("op,size,ranks,us\nall_redcue,1048576,8,10\n", "unknown collective 'all_redcue'; did you mean 'all_reduce'"),
        ("op,size,ranks,us\nreduce,1048576,8,10\n", "no profile has a place for reduce"),
        ("op,size,ranks,gpus,us\nall_reduce,1048576,8,4,10\n", "two columns mean num_ranks, and say 8 and 4"),
        ("direction,size,GB/s\nsideways,1048576,10\n", "unknown direction 'sideways'"),
        ("m,n,k,ms\n", "a header and no rows"),
        ("tp,pp,dp,mfu\n1,1,8,0.4\n", "calibrate from-runs"),
    ],
)
def test_hostile_tables(read, text, says):
    with pytest.raises(ProfileError, match=says):
        read(text, "data.csv")


@given(
    rows=st.lists(
        st.tuples(*[st.integers(1, 2**15)] * 3, st.sampled_from(sorted(DTYPES)), st.floats(1.0, 1e3)), min_size=1
    ),
    column=st.sampled_from(sorted({**TIMES, **FLOP_RATES})),
    separator=st.sampled_from(",;\t"),
    order=st.permutations(range(5)),
)
def test_what_is_written_is_read(tmp_path_factory, rows, column, separator, order):
    """Any order of columns, separator and unit: the same measurements (of a rate that a machine could have)."""
    names = ("M", "N", "K", "DType", column.upper())
    lines = [separator.join(names[i] for i in order)]
    times = []
    for m, n, k, dtype, teraflops in rows:
        times.append(2 * m * n * k / (teraflops * 1e12))
        unit = TIMES.get(column)
        written = times[-1] / unit if unit else teraflops * 1e12 / FLOP_RATES[column]
        cells = (str(m), str(n), str(k), dtype, repr(written))
        lines.append(separator.join(cells[i] for i in order))
    path = tmp_path_factory.mktemp("table") / "x.csv"
    path.write_text("\n".join(lines) + "\n")
    found = read_measurements(path).measurements
    assert [tuple(item.shape[name] for name in ("m", "n", "k", "dtype")) for item in found] == [
        (m, n, k, DTYPES[dtype]) for m, n, k, dtype, _ in rows
    ]
    assert all(math.isclose(item.time_s, time, rel_tol=1e-9) for item, time in zip(found, times, strict=True))
