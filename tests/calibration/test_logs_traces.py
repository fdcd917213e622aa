"""Traces of torch's profiler: multiplies with their shapes, collectives with their sizes."""

import gzip
import json

import pytest

from flopcast_calibration.readers import read_measurements
from sim.errors import ProfileError


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
def read(tmp_path):
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
def test_multiplies_are_the_median_of_their_shape(read, zipped):
    events = [operator(1), operator(2), operator(3), kernel(100, 1), kernel(110, 2), kernel(400, 3)]
    log = read(events, zipped=zipped)
    (item,) = log.measurements
    assert (item.kind, item.shape) == ("gemm", {"m": 4096, "n": 2048, "k": 1024, "dtype": "bfloat16"})
    assert (item.time_s, item.repeats) == (pytest.approx(110e-6), 3)
    assert log.machine == {"device": "NVIDIA H100 80GB HBM3"}


def test_a_split_multiply_has_two_kernels(read):
    (item,) = read([operator(1), kernel(100, 1), kernel(20, 1, name="splitKreduce_kernel")]).measurements
    assert item.time_s == pytest.approx(120e-6)


def test_kernels_are_linked_through_the_runtime_call_too(read):
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1}
    launch["args"] = {"External id": 7, "correlation": 99}
    (item,) = read([operator(7), launch, kernel(50, correlation=99)]).measurements
    assert item.time_s == pytest.approx(50e-6)


def test_other_multiplies(read):
    added = operator(1, "aten::addmm", ((8,), (32, 16), (16, 8)), "float")
    batched = operator(2, "aten::bmm", ((4, 32, 16), (4, 16, 8)), "c10::Half")
    scaled = operator(3, "aten::_scaled_mm", ((32, 16), (16, 8)), "c10::Float8_e4m3fn")
    log = read([added, batched, scaled, *(kernel(10, external) for external in (1, 2, 3))])
    assert [(item.kind, item.shape["dtype"]) for item in log.measurements] == [
        ("gemm", "float32"),
        ("bmm", "float16"),
        ("gemm", "float8_e4m3fn"),
    ]
    assert log.measurements[1].shape["batch"] == 4


def test_collectives_are_the_shortest_of_their_shape(read):
    log = read([collective(90), collective(50), collective(500)])
    (item,) = log.measurements
    assert item.shape == {"operation": "all_reduce", "num_ranks": 8, "num_nodes": 1, "nbytes": 2048}
    assert (item.time_s, item.repeats) == (pytest.approx(50e-6), 3)
    assert "the shortest counts" in " ".join(log.notes)


def test_a_gathers_size_is_what_it_ends_with(read):
    gather = collective(50, "_allgather_base", (1024, 8192))
    scatter = collective(60, "_reduce_scatter_base", (8192, 1024), "Float")
    first, second = read([gather, scatter]).measurements
    assert (first.shape["operation"], first.shape["nbytes"]) == ("all_gather", 8192 * 2)
    assert (second.shape["operation"], second.shape["nbytes"]) == ("reduce_scatter", 8192 * 4)


def test_nodes_are_told_from_the_groups_ranks(read):
    across = collective(50, size=2, ranks="[0, 8]")
    assert read([across]).measurements[0].shape["num_nodes"] == 2  # eight GPUs are in the trace's node
    assert read([across], gpus=1, nodes=4).measurements[0].shape["num_nodes"] == 2  # 16 ranks on four nodes
    log = read([across], gpus=1)
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
def test_hostile_traces(read, events, says):
    with pytest.raises(ProfileError, match=says):
        read(events)
