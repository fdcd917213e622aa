"""One door for every file of measurements: told apart by what it holds; what is not read is refused by name."""

import gzip
import json
from pathlib import Path

import pytest
from rows import rows

from flopcast_calibration.measurement import Measurement, write_journal
from flopcast_calibration.readers import Log, read_measurements
from flopcast_calibration.readers.names import FLOP_RATES, TIMES
from sim.errors import ProfileError
from sim.specs.yaml12 import load_yaml

NCCL = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor)
#  Rank  0 Group  0 Pid 7 on node device  0 [0000:01:00] NVIDIA H200
#  Rank  1 Group  0 Pid 7 on node device  1 [0000:02:00] NVIDIA H200
#       size         count      type   redop    root     time   algbw   busbw #wrong
   100000000      25000000     float     sum      -1   1000.0  100.00  100.00      0
# Avg bus bandwidth    : 100
"""
IB_WRITE = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1000000    5000             100.00             80.00                0.010000
"""
FILES = {
    "nccl-tests": (NCCL, "collective"),
    "perftest": (IB_WRITE, "collective"),
    "mamf-finder": ("     1 |  500.0 TFLOPS @ 1024x4096x4096 | best: 1\n", "gemm"),
    "table": ("m,n,k,ms\n64,64,64,0.1\n", "gemm"),
    "nvbandwidth": ("Running host_to_device_memcpy_ce.\nx bandwidth (GB/s)\n  0\n0  25.00\n", "copy"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", ["x.txt", "x.log", "x.csv", "x.json", "x", "x.log.gz"])
def test_formats_are_told_apart_by_what_a_file_holds(tmp_path, kind, name):
    text, expected = FILES[kind]
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    log = read_measurements(path)
    assert isinstance(log, Log)
    assert [item.kind for item in log.measurements] == [expected]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_windows_writes(tmp_path, encoding):
    path = tmp_path / "x.txt"
    path.write_bytes(NCCL.replace("\n", "\r\n").encode(encoding))
    assert len(read_measurements(path).measurements) == 1


def test_a_terminals_colours_and_odd_bytes_spoil_nothing(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\x1b[32mn\xf6de\x1b[0m\n" + NCCL.replace("#  Rank", "\x1b[1m#  Rank").encode())
    assert read_measurements(path).machine == {"device": "NVIDIA H200", "hosts": 1}


def test_a_journal_keeps_its_machine_and_says_what_was_cut_off(tmp_path):
    path = tmp_path / "raw.jsonl"
    items = [Measurement("gemm", {"m": 64 * i, "n": 64, "k": 64}, 1e-5) for i in (1, 2, 3)]
    write_journal(path, {"device": "mine", "cores": 2}, items)
    whole = read_measurements(path)
    assert whole == Log({"device": "mine", "cores": 2}, tuple(items))
    path.write_text(path.read_text()[:-20])
    log = read_measurements(path)
    assert len(log.measurements) == 2
    assert "the last line was cut off while it was written" in log.notes[0]
    path.write_text(whole_lines(items))
    with pytest.raises(ProfileError, match="line 1"):
        read_measurements(path)


def whole_lines(items):
    return "".join(f'{{"kind": "{item.kind}", "shape": {{}}, "time_s": {item.time_s}}}\n' for item in items)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"Hello, world\n", "begins with 'Hello, world'; read are a journal"),
        (b"# OSU MPI-CUDA Allreduce Latency Test v7.2\n1 2\n", "OSU micro-benchmarks.*run nccl-tests"),
        (b"host:1:1 [0] NCCL INFO Bootstrap\n", "NCCL's own messages without a table"),
        (b"[CUDA Bandwidth Test] - Starting...\n", "CUDA's samples; run nvbandwidth"),
        (b"<!DOCTYPE html>\n", "a web page"),
        (b'{"a": 1}', "is JSON .with 'a'. of no format"),
        (b"[1, 2]", "is of no format that is read"),
        (b'{"results": {"MsgSize": 8}}', "perftest as JSON"),
        (b'{"results": [{"bus_bw": 8}]}', "nccl-tests as JSON; give what it prints"),
        (b"COMMS-RES size (B)\n", "PARAM comms; run nccl-tests"),
        (b'{"a": ', "is not whole JSON"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"PK\x03\x04rest", "a spreadsheet"),
        (b"\x89PNG\r\n", "a picture"),
        (b"\x1f\x8b\x08\x00broken", "not a whole gzip file"),
        (b"some\0bytes", "is not text"),
        ((NCCL + IB_WRITE).encode(), "the output of nccl-tests and perftest; split it"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path, content, says):
    path = tmp_path / "x.out"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=says):
        read_measurements(path)


def test_a_log_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("flopcast_calibration.readers.log.MEASUREMENTS", 1000)
    with pytest.raises(ProfileError, match="is larger than"):
        read_measurements(Path("/dev/zero"))
    packed = tmp_path / "x.log.gz"
    packed.write_bytes(gzip.compress(b"x" * 100_000))
    with pytest.raises(ProfileError, match="unpacks to more than"):
        read_measurements(packed)


@pytest.mark.parametrize(("options", "says"), [({"ranks": 0}, "--ranks 0"), ({"nodes": -1}, "--nodes -1")])
def test_ranks_and_nodes_that_cannot_be(tmp_path, options, says):
    path = tmp_path / "x.txt"
    path.write_text(NCCL)
    with pytest.raises(ProfileError, match=says):
        read_measurements(path, **options)


LOGS = Path(__file__).parent / "logs"
REFUSED = load_yaml(Path(__file__).parent / "refused.yaml")
MAMF_HEAD = (LOGS / "mamf-finder-head.txt").read_text(encoding="utf-8")
MAMF_ROWS = {
    each: (LOGS / f"mamf-finder-{each}.txt").read_text(encoding="utf-8")
    for each in ("one-rate", "three-rates", "columns")
}


@pytest.mark.parametrize("rates", MAMF_ROWS.values(), ids=MAMF_ROWS)
def test_mamf_finder(read, rates):
    log = read(MAMF_HEAD + rates)
    times = {item.shape["m"]: item.time_s for item in log.measurements}
    assert times == pytest.approx({1024: 2 * 1024 * 4096**2 / 500e12, 2048: 2 * 2048 * 4096**2 / 800e12})
    assert {item.shape["dtype"] for item in log.measurements} == {"float8_e4m3fn"}
    assert log.machine == {"device": "NVIDIA H200"}
    assert log.notes == ()


def test_mamf_finders_console_keeps_only_the_best(read):
    console = MAMF_ROWS["three-rates"].partition("\n\n")[2].replace("Tried 2", "Tried  3375")
    log = read(console)
    (item,) = log.measurements
    assert item.time_s == pytest.approx(2 * 2048 * 4096**2 / 800e12)
    assert item.shape["dtype"] == "bfloat16"
    assert "bfloat16" in log.notes[0]
    assert "1 of 3375 shapes" in log.notes[1]


NVBANDWIDTH = (LOGS / "nvbandwidth.txt").read_text(encoding="utf-8")


def test_nvbandwidth(read):
    log = read(NVBANDWIDTH)
    up, down, across = log.measurements
    nbytes = 512 * 2**20
    assert (up.kind, up.shape) == ("copy", {"nbytes": nbytes, "direction": "to_device"})
    assert up.time_s == pytest.approx(nbytes / 56e9)  # the median over devices
    assert down.shape["direction"] == "to_host"
    assert across.shape == {"operation": "send", "num_ranks": 2, "num_nodes": 1, "nbytes": nbytes}
    assert across.time_s == pytest.approx(nbytes / 710e9)
    assert log.machine == {"device": "NVIDIA B200"}
    assert "512 MiB are assumed" in log.notes[0]
    assert "host_to_device_bidirectional_memcpy_ce" in log.notes[1]


def test_nvbandwidths_buffer_is_what_the_command_said(read):
    log = read("$ ./nvbandwidth --bufferSize 64\n" + NVBANDWIDTH)
    assert log.measurements[0].shape["nbytes"] == 64 * 2**20
    assert not any("assumed" in note for note in log.notes)


PERFTEST = (LOGS / "perftest.txt").read_text(encoding="utf-8")


def test_perftest_in_mebibytes(read):
    log = read(PERFTEST)
    small, large = log.measurements
    assert small.shape == {"operation": "send", "num_ranks": 2, "num_nodes": 2, "nbytes": 5000 * 65536}
    assert small.time_s == pytest.approx(5000 * 65536 / (40000 * 2**20))
    assert large.time_s == pytest.approx(5000 * 8388608 / (45000 * 2**20))
    assert "messages below 65536 bytes" in log.notes[0]
    assert "all iterations of a size" in log.notes[1]


def test_perftest_in_gigabits(read):
    gigabits = PERFTEST.replace("MB/sec", "Gb/sec").replace("40000.00", "335.54").replace("45000.00", "377.49")
    assert read(gigabits).measurements[0].time_s == pytest.approx(5000 * 65536 * 8 / 335.54e9)


@pytest.mark.parametrize("verb", ["RDMA_Write", "Send"])
def test_perftest_latencies(read, verb):
    text = (
        f"                    {verb} Latency Test\n"
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
        " 2       1000          1.76           6.12         1.79                1.80             0.06            1.88                    6.12\n"
    )
    (item,) = read(text).measurements
    assert (item.shape["nbytes"], item.time_s) == (2, pytest.approx(1.79e-6))
    with pytest.raises(ProfileError, match="the latency of a read is a round trip"):
        read(text.replace(verb, "RDMA_Read"))
    with pytest.raises(ProfileError, match="no latency in usec"):
        read(text.replace("usec", "cycles"))


MAMF = (MAMF_HEAD + MAMF_ROWS["one-rate"]).replace("--dtype float8_e4m3fn", "")
HOSTILE = [  # a log, why it is refused
    (MAMF.replace("500.0 TFLOPS @ 1024", "nan TFLOPS @ 1024"), "TFLOPS = nan is not a positive number"),
    (MAMF.replace("500.0 TFLOPS @ 1024", "0.0 TFLOPS @ 1024"), "TFLOPS = 0.0 is not a positive number"),
    (MAMF.replace("@ 1024x", "@ 0x"), "m = 0 is not a positive number"),
    (MAMF.replace("torch.float8_e4m3fn", "torch.complex64"), "unknown number format 'torch.complex64'"),
    (NVBANDWIDTH.replace("720.00       N/A", "720.00"), "has 1 of 2 columns; was the log cut off"),
    (NVBANDWIDTH.replace("55.00", "-55.00"), "-55.00 is not a positive number"),
    (NVBANDWIDTH.partition("Running device_to_device")[0].replace("memcpy_ce", "memcpy_sm"), "no test that is read"),
    (NVBANDWIDTH.replace("Device 1: NVIDIA B200", "Device 1: NVIDIA A100"), "several kinds of GPU"),
    (PERFTEST.replace("MB/sec", "Gb/sec"), "is the unit Gb/sec right"),  # the header of another run
    (PERFTEST.replace("MB/sec", "KB/sec"), "unknown unit 'KB/sec'"),
    (PERFTEST.replace("BW Test", "Bidirectional BW Test"), "both directions ran at once"),
    (PERFTEST.replace("LID 0x0c", "LID 0x0b"), "both ends are the same port"),
    (PERFTEST.replace("40000.00", "nan"), "BW average = nan is not a positive number"),
    (PERFTEST.replace("40000.00\t\t   0.640000", "40000.00"), "has 4 of 5 columns; was the log cut off"),
]


@rows(("text", "why"), HOSTILE, ids=lambda row: row[1])
def test_hostile_logs(read, text, why):
    with pytest.raises(ProfileError, match=why):
        read(text)


def operator(external, name="aten::mm", dims=((4096, 1024), (1024, 2048)), kind="c10::BFloat16"):
    types = [kind] * len(dims)
    args = {"External id": external, "Input Dims": [list(dim) for dim in dims], "Input type": types}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 1.0, "dur": 9.0, "args": args}


def kernel(duration, external=None, name="nvjet_tst_128x256", **args):
    if external is not None:
        args["External id"] = external
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 5.0, "dur": duration, "args": args}


def collective(
    duration, name="allreduce", elements=(1024, 1024), dtype="BFloat16", size=8, ranks="[0, 1, 2, 3, 4, 5, 6, 7]"
):
    args = {"Collective name": name, "In msg nelems": elements[0], "Out msg nelems": elements[1]}
    args |= {"dtype": dtype, "Group size": size, "Process Group Ranks": ranks}
    return kernel(duration, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL", **args)


@pytest.fixture
def trace(tmp_path):
    def reader(events, gpus=8, world=16, zipped=False, **options):
        properties = [{"id": index, "name": "NVIDIA H100 80GB HBM3"} for index in range(gpus)]
        data = {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}
        data["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": world}
        path = tmp_path / ("rank0.json.gz" if zipped else "rank0.json")
        text = json.dumps(data).encode()
        path.write_bytes(gzip.compress(text) if zipped else text)
        return read_measurements(path, **options)

    return reader


@pytest.mark.parametrize("zipped", [False, True])
def test_multiplies_are_the_median_of_their_shape(trace, zipped):
    events = [operator(1), operator(2), operator(3), kernel(100, 1), kernel(110, 2), kernel(400, 3)]
    log = trace(events, zipped=zipped)
    (item,) = log.measurements
    assert (item.kind, item.shape) == ("gemm", {"m": 4096, "n": 2048, "k": 1024, "dtype": "bfloat16"})
    assert (item.time_s, item.repeats) == (pytest.approx(110e-6), 3)
    assert log.machine == {"device": "NVIDIA H100 80GB HBM3"}


def test_a_split_multiply_has_two_kernels(trace):
    (item,) = trace([operator(1), kernel(100, 1), kernel(20, 1, name="splitKreduce_kernel")]).measurements
    assert item.time_s == pytest.approx(120e-6)


def test_kernels_are_linked_through_the_runtime_call_too(trace):
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1}
    launch["args"] = {"External id": 7, "correlation": 99}
    (item,) = trace([operator(7), launch, kernel(50, correlation=99)]).measurements
    assert item.time_s == pytest.approx(50e-6)


def test_other_multiplies(trace):
    added = operator(1, "aten::addmm", ((8,), (32, 16), (16, 8)), "float")
    batched = operator(2, "aten::bmm", ((4, 32, 16), (4, 16, 8)), "c10::Half")
    scaled = operator(3, "aten::_scaled_mm", ((32, 16), (16, 8)), "c10::Float8_e4m3fn")
    log = trace([added, batched, scaled, *(kernel(10, external) for external in (1, 2, 3))])
    assert [(item.kind, item.shape["dtype"]) for item in log.measurements] == [
        ("gemm", "float32"),
        ("bmm", "float16"),
        ("gemm", "float8_e4m3fn"),
    ]
    assert log.measurements[1].shape["batch"] == 4


def test_collectives_are_the_shortest_of_their_shape(trace):
    log = trace([collective(90), collective(50), collective(500)])
    (item,) = log.measurements
    assert item.shape == {"operation": "all_reduce", "num_ranks": 8, "num_nodes": 1, "nbytes": 2048}
    assert (item.time_s, item.repeats) == (pytest.approx(50e-6), 3)
    assert "the shortest counts" in " ".join(log.notes)


def test_a_gathers_size_is_what_it_ends_with(trace):
    gather = collective(50, "_allgather_base", (1024, 8192))
    scatter = collective(60, "_reduce_scatter_base", (8192, 1024), "Float")
    first, second = trace([gather, scatter]).measurements
    assert (first.shape["operation"], first.shape["nbytes"]) == ("all_gather", 8192 * 2)
    assert (second.shape["operation"], second.shape["nbytes"]) == ("reduce_scatter", 8192 * 4)


def test_nodes_are_told_from_the_groups_ranks(trace):
    across = collective(50, size=2, ranks="[0, 8]")
    assert trace([across]).measurements[0].shape["num_nodes"] == 2  # eight GPUs are in the trace's node
    assert trace([across], gpus=1, nodes=4).measurements[0].shape["num_nodes"] == 2  # 16 ranks on four nodes
    log = trace([across], gpus=1)
    assert log.measurements[0].shape["num_nodes"] == 1
    assert any("one node is assumed" in note for note in log.notes)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "holds no GPU kernels"),
        ([operator(1)], "holds no GPU kernels"),
        ([kernel(10, 1)], "no matrix multiply with its shape .profile with record_shapes=True. and no collective"),
        ([{**operator(1), "args": {"External id": 1}}, kernel(10, 1)], "no matrix multiply with its shape"),
        ([operator(1, dims=((4, 4), (5, 4))), kernel(10, 1)], "no matrix multiply with its shape"),
        ([operator(1), kernel(-10, 1)], "which is none"),
        ([operator(1), {**kernel(1, 1), "dur": None}], "has no duration"),
        ([collective(10, "barrier")], "no collective with its size"),
        ([collective(10, dtype="Banana")], "no collective with its size"),
    ],
)
def test_hostile_traces(trace, events, says):
    with pytest.raises(ProfileError, match=says):
        trace(events)


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
TIMED |= {name.upper(): repr(1e-3 / unit) for name, unit in TIMES.items()}
TIMED |= {name.upper(): repr(FLOP * 1e3 / unit) for name, unit in FLOP_RATES.items()}
"""A column of time or rate, and a millisecond in it."""


def test_multiplies_by_their_columns(read):
    wrong = []
    for header, cell in TIMED.items():
        for separator in (",", "\t", ";", " | "):
            names, cells = [" M", "N ", "k", "Precision", header], ["4096", "4096.0", "4096", "torch.bfloat16", cell]
            for turn in (1, -1):  # in any order
                head, row = (separator.join(each[::turn]) for each in (names, cells))
                item = only(read(f"# of mine\n{head}\n\n{row}\n", "x.txt"))
                said = item.kind, item.shape, item.source.rpartition(" ")[2]
                if said != ("gemm", SHAPE, "4") or item.time_s != pytest.approx(1e-3):
                    wrong.append((head, item))
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


@rows(("text", "says"), REFUSED["tables"], ids=lambda row: row[1])
def test_hostile_tables(read, text, says):
    with pytest.raises(ProfileError, match=says):
        read(text, "data.csv")
