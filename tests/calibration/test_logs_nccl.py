"""nccl-tests and rccl-tests as they are found: several hosts, groups, runs, launchers' prefixes, copies that ran alone."""

import re

import pytest

from flopcast_calibration.readers import read_measurements
from sim.errors import ProfileError

HEADER = """#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
START = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.3\n#\n"
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n, "alltoall": lambda n: (n - 1) / n, "broadcast": lambda n: 1,
    "sendrecv": lambda n: 1, "reduce": lambda n: 1,
}  # fmt: skip


def printed(value, width=7):
    """As nccl-tests prints a number (getFloatStr)."""
    digits = len(str(int(value))) if value >= 1 else 0
    for decimals, room in ((2, width - 2), (1, width - 1), (0, width + 1)):
        if digits < room:
            return f"{value:.{decimals}f}"
    return f"{value:.1e}"


def row(program, ranks, nbytes, us, wrong="0"):
    algbw = nbytes / us * 1e-3
    side = f"{printed(us):>7} {algbw:7.2f} {algbw * FACTORS[program](ranks):7.2f} {wrong:>6}"
    return f"{nbytes:12} {nbytes // 4:12} float sum -1 {side} {side}\n"


def rank_lines(hosts=("a",), per_host=8, groups=lambda rank: 0, device="NVIDIA H100 80GB HBM3"):
    return "".join(
        f"#  Rank {rank:2} Group {groups(rank):2} Pid {100 + rank} on {hosts[rank // per_host]:>10} "
        f"device {rank % per_host:2} [0000:{rank % per_host:02x}:00] {device}\n"
        for rank in range(len(hosts) * per_host)
    )


def run(program="all_reduce", ranks=8, listed=None, sizes=(2**20, 2**30), announced=True):
    """One run of a program, whole."""
    name = f"# Collective test starting: {program}_perf\n" if announced else ""
    rows = "".join(row(program, ranks, size, 20 + size / 2e5) for size in sizes)
    return f"{name}{START}#\n# Using devices\n{rank_lines() if listed is None else listed}#\n{HEADER}{rows}{END}"


def shapes(log):
    return {tuple(value for key, value in item.shape.items() if key != "nbytes") for item in log.measurements}


def test_two_hosts_with_one_gpu_each_are_a_network(read):
    log = read(run(ranks=2, listed=rank_lines(("a", "b"), 1)))
    assert shapes(log) == {("all_reduce", 2, 2)}
    assert log.machine == {"device": "NVIDIA H100 80GB HBM3", "hosts": 2}
    assert log.notes == ()


@pytest.mark.parametrize(
    "line",
    [
        "#   Rank  {n} Pid  7{n} on  node-1 device  {n} [0x0{n}] A100-SXM4-40GB",  # before 2.13
        "#  Rank  {n} Group  0 Pid  7{n} on node-1 device  {n} [0000:0{n}:00] NVIDIA A100-SXM4-40GB",
        "#   Rank  {n} Pid  7{n} on node-1 device  {n} [0000:0{n}:00.0] AMD Instinct MI300X",  # rccl-tests
        "#  Rank  {n} on node-1 device  {n} [0x0{n}] Tesla P100-SXM2-16GB",  # the first releases
        "#  Rank  {n} Group  0 Pid  7{n} on node-1 device  {n} NVIDIA H200",  # a list typed off
    ],
)
def test_every_releases_rank_lines(read, line):
    listed = "\n".join(line.format(n=n) for n in range(4)) + "\n"
    log = read(run(ranks=4, listed=listed))
    assert shapes(log) == {("all_reduce", 4, 1)}
    assert log.machine["device"] == listed.splitlines()[0].rpartition("] ")[2].rpartition("  0 ")[2]


@pytest.mark.parametrize(
    "prefix",
    [
        "0: ",
        " 3: ",
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[prterun-node-77@1,0]<stdout>: ",
        "[0] ",
        "(head, rank=0, pid=3808) [1,0]<stdout>:",
        "worker-0  | ",
        "2026-05-01T12:00:00.123Z ",
        "2026-05-01 12:00:00,123 - INFO - ",
        "[12:00:00] 0: ",
    ],
)
def test_launchers_prefixes_are_taken_off(read, prefix):
    text = "".join(prefix + line for line in run(listed=rank_lines(("a", "b"), 4)).splitlines(keepends=True))
    assert shapes(read(text)) == {("all_reduce", 8, 2)}


def test_groups_that_ran_at_once(read):
    """NCCL_TESTS_SPLIT_MASK=0x7: eight groups, each one GPU of each of two hosts."""
    listed = rank_lines(("a", "b"), 8, groups=lambda rank: rank % 8)
    (item, _) = read(run(ranks=2, listed=listed)).measurements
    assert {**item.shape} == {"operation": "all_reduce", "num_ranks": 2, "num_nodes": 2, "nbytes": 2**20, "groups": 8}


def test_runs_one_after_another_each_with_its_own_ranks(read):
    text = (
        "$ mpirun -np 2 ./build/all_gather_perf -b 1M\n"
        + run("all_gather", 2, rank_lines(("a", "b"), 1), announced=False)
        + "$ ./build/reduce_scatter_perf -g 8\n"
        + run("reduce_scatter", 8, announced=False)
        + run("alltoall")
        + run("sendrecv", 4, rank_lines(("a", "b"), 2))
    )
    assert shapes(read(text)) == {
        ("all_gather", 2, 2), ("reduce_scatter", 8, 1), ("all_to_all", 8, 1), ("send", 4, 2),
    }  # fmt: skip


def test_tables_no_profile_has_a_place_for_are_named(read):
    log = read(run() + run("reduce"))
    assert shapes(log) == {("all_reduce", 8, 1)}
    assert "a table of reduce is left out" in log.notes[0]
    with pytest.raises(ProfileError, match="a table of reduce is left out"):
        read(run("reduce"))


def test_copies_that_knew_nothing_of_each_other(read):
    """srun without MPI=1: every task prints its own table of one rank."""
    alone = run(ranks=1, listed=rank_lines(("a",), 1))
    with pytest.raises(ProfileError, match="one rank communicates with nobody; run it on several GPUs"):
        read(alone)
    labelled = "".join(
        f"{task}: {line}" for line in alone.splitlines(keepends=True) for task in range(4)
    )  # lines of all tasks in turn
    with pytest.raises(ProfileError, match=r"4 copies .* build it with MPI"):
        read(labelled)
    together = run(listed=rank_lines(("a",), 1) + rank_lines(("b",), 1).replace("Pid 100", "Pid 500"), ranks=2)
    with pytest.raises(ProfileError, match="rank 0 is listed more than once: copies"):
        read(together)


def test_two_ranks_on_one_gpu_are_no_link_unless_hosts_share_a_name(read):
    listed = rank_lines(("one", "two"), 8).replace(" one ", " localhost ").replace(" two ", " localhost ")
    with pytest.raises(ProfileError, match=r"both on GPU 0 of host 'localhost'.*--nodes 2"):
        read(run(ranks=16, listed=listed))
    assert shapes(read(run(ranks=16, listed=listed), nodes=2)) == {("all_reduce", 16, 2)}


def test_what_the_user_says_overrides(read):
    text = run(ranks=8, listed="")
    with pytest.raises(ProfileError, match=r"lists no ranks; give their number \(--ranks 8\)"):
        read(text)
    log = read(text, ranks=8)
    assert shapes(log) == {("all_reduce", 8, 1)}
    assert "8 ranks on one node are assumed" in log.notes[0]
    assert shapes(read(text, ranks=8, nodes=2)) == {("all_reduce", 8, 2)}
    with pytest.raises(ProfileError, match="is the number of ranks right"):
        read(text, ranks=4)
    with pytest.raises(ProfileError, match="more than --ranks 2"):
        read(text, ranks=2, nodes=4)


def test_a_log_that_says_its_collective_is_not_overruled(read):
    log = read(run(), operation="all_gather")
    assert shapes(log) == {("all_reduce", 8, 1)}
    assert "--operation all_gather is not used" in log.notes[0]


def test_a_log_without_a_name_asks_for_it(read):
    """Releases before 2.17 print none, and the command line may be cut off."""
    with pytest.raises(ProfileError, match="does not say which collective it timed"):
        read(run(announced=False))


def test_rows_torn_by_other_processes_are_left_out(read):
    torn = "    2097152     524288 float sum -1node-1:77:77 [0] NCCL INFO 2097152 Bytes -> Algo 5 proto 2 time 26.7\n"
    whole = run()
    log = read(whole.replace(END, torn + "     30.5   70.1  122.7      0\n" + END))
    assert len(log.measurements) == 2
    assert "rows that are not whole" in log.notes[0]


def test_a_run_that_was_stopped_says_so(read):
    text = run().replace(END, "  2147483648     5368709")
    log = read(text)
    assert len(log.measurements) == 2
    assert any("ends without its summary" in note for note in log.notes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("  72.69", "    nan"), "a bus bandwidth of nan is none"),
        (lambda text: text.replace("   25.24", "   -25.2"), "time -25.2 is not positive"),
        (lambda text: text.replace("H100 80GB HBM3", "A100-SXM4-80GB", 1), "several kinds of GPU"),
        (lambda text: text.replace("nGpus 1", "nGpus 3"), "8 ranks are listed, but each process has 3"),
        (lambda text: re.sub(r"(?m)^( .* float .*) +\S+ +\S+$", r"\1", text), r"has 1\d of 13 columns; was the log cut off\?"),
        (lambda text: text.replace("  72.69      0", "  72.69      7", 1), "found wrong results"),
        (lambda text: text.replace("#  Rank  7", "#  Rnk   7"), r"on 7 ranks, but .* is the number of ranks right\?"),
        (lambda text: re.sub(r"(?m)^( .* float +\w+ +\S+) +\S+", r"\1 eight", text), "line 1.*could not convert"),
        (lambda text: re.sub(r"(?m)^ .* float .*\n", "", text), "holds no row"),
        (lambda text: text.replace(HEADER, ""), "before the table's header"),
    ],
)  # fmt: skip
def test_hostile_logs(read, change, says):
    text = run()
    assert change(text) != text
    with pytest.raises(ProfileError, match=says):
        read(change(text))


def test_a_log_that_is_one_long_word_is_read_in_time_that_grows_with_it(tmp_path):
    """A search from every letter to the end of the word would take minutes."""
    from time import process_time

    log = tmp_path / "damaged.txt"
    log.write_text("# Collective test starting: all_reduce_perf\n" + 3_000_000 * "a" + "\n")
    start = process_time()
    with pytest.raises(ProfileError):
        read_measurements(log)
    assert process_time() - start < 5.0


def test_the_first_releases_print_milliseconds(read):
    text = (
        "# Using devices\n#   Rank  0 on  node device  0 [0x84] P100\n#   Rank  1 on  node device  1 [0x85] P100\n\n"
        "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n"
        "    33554432       8388608   float     sum    5.235   6.41   6.41    0e+00    5.230   6.42   6.42    0e+00\n"
    )
    (item,) = read(text, operation="all_reduce").measurements
    assert item.time_s == pytest.approx(5.23e-3)
