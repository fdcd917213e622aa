"""Logs of mamf-finder, nvbandwidth and perftest, in the grammar these programs print."""

from pathlib import Path

import pytest
from rows import rows

from sim.errors import ProfileError

LOGS = Path(__file__).parent / "logs"
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
