"""Multiplies in 8 and 4 bits, on GPUs that have them.

Speed does not depend on what the scales are, only on how many there are and how they lie; they are all one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flopcast_calibration.bench.kernels import Call, Case, gemm_shapes, random_tensor

#: dtype of the measurement -> (least compute capability, bytes of a number, numbers that share a scale)
FORMATS = {"float8_e4m3fn": ((8, 9), 1.0, None), "mxfp8": ((10, 0), 1.0, 32), "nvfp4": ((10, 0), 0.5, 16)}
#: Rows and columns that a block of scales covers, as cuBLAS wants them.
_SCALE_ROWS, _SCALE_COLUMNS = 128, 4


def format_cases(quick: bool, largest_flop: float) -> Iterator[Case]:
    """Everything beyond the usual precision that this GPU can do."""
    import torch

    capability = torch.cuda.get_device_capability()
    for name, (least, _, _) in FORMATS.items():
        if capability >= least:
            for m, n, k, layout in gemm_shapes(quick, largest_flop):
                # Multiplies in few bits take rows times columns; the other layouts are transposed copies in training.
                if layout == "nt" and min(m, n, k) >= 256:
                    yield scaled_case(m, n, k, name)


def scaled_case(m: int, n: int, k: int, name: str) -> Case:
    """(m × k) · (k × n) of numbers with scales, to bfloat16.

    name : float8_e4m3fn, a scale for each operand; mxfp8, one for 32 numbers; nvfp4, one for 16.
    """
    _, width, block = FORMATS[name]

    def prepare(device: str) -> Call:
        import torch

        left, right = (_numbers(device, name, rows, k) for rows in (m, n))
        scales = [_scales(device, name, rows, k, block) for rows in (m, n)]
        return lambda: torch._scaled_mm(left, right.t(), *scales, out_dtype=torch.bfloat16)

    moved = width * k * (m + n) + 2 * m * n
    return Case("gemm", {"m": m, "n": n, "k": k, "dtype": name, "layout": "nt"}, prepare, moved, "graph")


def _numbers(device: str, name: str, rows: int, k: int) -> Any:
    """rows × k numbers of a format; of four bits two share a byte."""
    import torch

    if name == "nvfp4":
        pairs = torch.randint(0, 256, (rows, k // 2), device=device, dtype=torch.uint8)
        return pairs.view(torch.float4_e2m1fn_x2)
    return random_tensor(device, "float32", rows, k).to(torch.float8_e4m3fn)


def _scales(device: str, name: str, rows: int, k: int, block: int | None) -> Any:
    """A scale an operand, or one a block, padded to whole tiles."""
    import torch

    if block is None:
        return torch.ones((), device=device)
    count = -(-rows // _SCALE_ROWS) * _SCALE_ROWS * -(-(k // block) // _SCALE_COLUMNS) * _SCALE_COLUMNS
    kind = torch.float8_e8m0fnu if name == "mxfp8" else torch.float8_e4m3fn
    return torch.ones(count, device=device).to(kind)
