"""One door for every file of measurements: told apart by what it holds; what is not read is refused by name."""

import gzip
from pathlib import Path

import pytest

from flopcast_calibration.measurement import Measurement, write_journal
from flopcast_calibration.readers import Log, read_measurements
from sim.errors import ProfileError

NCCL = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor)
#  Rank  0 Group  0 Pid 7 on node device  0 [0000:01:00] NVIDIA H200
#  Rank  1 Group  0 Pid 7 on node device  1 [0000:02:00] NVIDIA H200
#       size         count      type   redop    root     time   algbw   busbw #wrong
   100000000      25000000     float     sum      -1   1000.0  100.00  100.00      0
# Avg bus bandwidth    : 100
"""
PERFTEST = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1000000    5000             100.00             80.00                0.010000
"""
FILES = {
    "nccl-tests": (NCCL, "collective"),
    "perftest": (PERFTEST, "collective"),
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
        ((NCCL + PERFTEST).encode(), "the output of nccl-tests and perftest; split it"),
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
