"""What is measured on one device: which kernels in which shapes, by what the device can do."""

from __future__ import annotations

from flopcast_calibration.bench.formats import format_cases
from flopcast_calibration.bench.kernels import (
    MEMORY_OPERATIONS,
    Case,
    adam_case,
    attention_case,
    bmm_case,
    copy_case,
    framework_case,
    gemm_case,
    gemm_shapes,
    graph_case,
    launch_case,
    memory_case,
    recurrent_case,
    scenario_shapes,
    unaligned_shapes,
)
from sim.specs import Scenario

#: Columns of a head, beside 64 and 128: what kernels are made for, and what they pad.
HEAD_DIMS = (32, 48, 72, 80, 96, 112, 160, 192, 256)

#: Kernel, heads, groups, columns of a head and of its state: Nemotron-H 8B and 56B, Qwen3-Next, Kimi Linear.
RECURRENT_SIZES = (
    ("mamba2", 128, 8, 64, 128),
    ("mamba2", 256, 8, 64, 256),
    ("gated_delta_net", 32, 16, 128, 128),
    ("kimi_delta_attention", 32, 32, 128, 128),
)


def kernel_cases(device: str, quick: bool, scenario: Scenario | None = None) -> list[Case]:
    """Everything to measure on one device, in the precisions and with the kernels that it has."""
    cuda = device == "cuda"
    dtype = usual_dtype(device)
    largest = 2e13 if cuda else 3e10
    cases = [gemm_case(m, n, k, dtype, layout) for m, n, k, layout in gemm_shapes(quick, largest)]
    if cuda:
        cases += [gemm_case(m, n, k, dtype, layout) for m, n, k, layout in unaligned_shapes(quick)]
    if scenario is not None:
        cases += [gemm_case(m, n, k, dtype, layout) for m, n, k, layout in scenario_shapes(scenario)]
    lengths = (256, 512, 1024) if not cuda else (512, 1024, 2048, 4096, 8192)
    heads = 8 if not cuda else 32
    cases += [bmm_case(heads, length, length, 64, dtype) for length in lengths[:3]]
    cases += [bmm_case(heads, length, 64, length, dtype) for length in lengths[:3]]
    cases += [
        attention_case(heads, length, head_dim, dtype, causal, backward, backend)
        for backend in attention_backends(device)
        for length in lengths
        for head_dim in ((64, 128) if cuda and not quick else (64,))
        for causal in (True, False)
        for backward in (False, True)
    ]
    if cuda and not quick:
        cases += [
            attention_case(heads, 2048, head_dim, dtype, True, backward, backend)
            for backend in attention_backends(device)
            for head_dim in HEAD_DIMS
            for backward in (False, True)
        ]
    row_counts = (16, 256, 4096) if quick or not cuda else (16, 64, 256, 1024, 4096, 16384, 65536)
    hiddens = (1024,) if quick else (1024, 4096)
    cases += [
        memory_case(name, rows, hidden, dtype)
        for name in MEMORY_OPERATIONS
        for rows in row_counts
        for hidden in hiddens
    ]
    cases += [adam_case(params) for params in ((10**5, 10**6, 10**7) if quick else (10**5, 10**6, 10**7, 10**8))]
    cases += [launch_case(dtype), framework_case(dtype)]
    if cuda:
        cases.append(graph_case(dtype))
        cases += format_cases(quick, largest)
        cases += [
            copy_case(2**exponent, direction) for exponent in (20, 24, 28) for direction in ("to_device", "to_host")
        ]
    if cuda and not quick:
        cases += [
            recurrent_case(*sizes, length, dtype, backward)
            for sizes in RECURRENT_SIZES
            for length in (2048, 8192, 32768)
            for backward in (False, True)
        ]
    return list({(case.kind, str(sorted(case.shape.items()))): case for case in cases}.values())


def usual_dtype(device: str) -> str:
    """What training multiplies in on this device: bfloat16, or float16 on a GPU that is older (V100)."""
    if device != "cuda":
        return "float32"
    import torch

    return "bfloat16" if torch.cuda.get_device_capability() >= (8, 0) else "float16"


def attention_backends(device: str) -> tuple[str | None, ...]:
    """The attention kernels to measure: flash where the GPU runs it, cuDNN's where that is another generation, and the
    one that torch falls back to where neither takes a mask or a head."""
    if device != "cuda":
        return (None,)
    import torch

    capability = torch.cuda.get_device_capability()
    if capability < (8, 0):
        return ("EFFICIENT_ATTENTION",)
    later = ("CUDNN_ATTENTION",) if capability >= (9, 0) else ()
    return ("FLASH_ATTENTION", *later, "EFFICIENT_ATTENTION")
