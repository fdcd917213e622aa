"""Number formats of multiplies in 8 and 4 bits: what runs them, what they keep, and what casting to them moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

STORED = {"nf4": 0.5 + 1 / 64 + 4 / (64 * 256), "fp8": 1.0}
"""Bytes of a weight that only lies in memory in a format. nf4: 4 bits, an 8-bit scale for 64 weights, and an fp32 one
for 256 of those scales (Dettmers et al. 2023, arXiv:2305.14314, section 3: double quantization). [bytes]"""


class Format(NamedTuple):
    """Numbers of few bits with scales.

    peak : the precision of the matrix units that multiply them, in a GPU's peaks.
    nbytes : of a number with its share of scales. [bytes]
    cast : that a kernel of its own reads and writes a number, where no other kernel casts in passing. [bytes]
    kernels : launches of one cast.
    norms_cast : a norm writes what comes after it in this format.
    """

    peak: str
    nbytes: float
    cast: float
    kernels: int
    norms_cast: bool = False


FORMATS: Mapping[str, Format] = {
    # Read, and written by rows and by columns.
    "fp8": Format("fp8", 1.0, 2 + 2 * 1.0, 1, norms_cast=True),
    "mxfp8": Format("fp8", 1.0 + 1 / 32, 2 + 2 * (1.0 + 1 / 32), 1, norms_cast=True),
    # Read for the largest magnitude, read again, written by rows and by columns.
    "nvfp4": Format("fp4", 0.5 + 1 / 16, 2 * 2 + 2 * (0.5 + 1 / 16), 2),
    "mxfp4": Format("fp4", 0.5 + 1 / 32, 2 + 2 * (0.5 + 1 / 32), 1),
}
"""fp8: one scale a tensor, or a block of 128. mxfp8 and mxfp4: one of 8 bits for 32 numbers (Rouhani et al. 2023,
arXiv:2310.10537). nvfp4: one of 8 bits for 16, which need the tensor's largest magnitude first, and a Hadamard
transform before the weights' gradient (NVIDIA 2025, arXiv:2509.25149, section 4)."""
