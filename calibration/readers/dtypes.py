"""Number formats: what people and programs call them, and torch's names."""

from __future__ import annotations

from sim.errors import ProfileError, nearest

#: torch's name (or the name of the format where torch has none) -> what else it is called
_NAMES = {
    "float64": ("fp64", "double", "f64"),
    "float32": ("fp32", "float", "f32", "single"),
    # float32 in memory, ten bits of mantissa in the tensor cores: another speed.
    "tfloat32": ("tf32", "fp32_tf32", "xf32"),
    "bfloat16": ("bf16",),
    "float16": ("fp16", "half", "f16"),
    "float8_e4m3fn": ("fp8", "f8", "e4m3", "fp8_e4m3", "float8_e4m3", "f8e4m3", "f8e4m3fn", "float8"),
    "float8_e5m2": ("e5m2", "fp8_e5m2", "f8e5m2"),
    "float8_e4m3fnuz": ("e4m3fnuz", "fp8_e4m3fnuz", "f8e4m3fnuz"),
    "mxfp8": ("mx_fp8",),
    "mxfp6": ("mx_fp6",),
    "mxfp4": ("mx_fp4",),
    # On NVIDIA's GPUs, four bits without a further word are NVIDIA's own format.
    "nvfp4": ("fp4", "f4", "e2m1", "float4_e2m1fn_x2"),
    "int8": ("i8", "char"),
}
DTYPES = {alias: name for name, aliases in _NAMES.items() for alias in (name, *aliases)}

#: size of one element, by the names torch's profiler gives to tensors and NCCL buffers. [bytes]
ELEMENT_BYTES = {
    "byte": 1,
    "char": 1,
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "short": 2,
    "float": 4,
    "float32": 4,
    "int": 4,
    "int32": 4,
    "long": 8,
    "int64": 8,
    "double": 8,
    "float64": 8,
}


def torch_dtype(name: str) -> str | None:
    """The name torch has for a number format; None where it is none."""
    plain = name.strip().lower().replace("-", "_").removeprefix("torch.").removeprefix("c10::")
    return DTYPES.get(plain)


def read_dtype(where: str, name: str) -> str:
    """Return the number format that a file's cell names. A word that is no number format is a ProfileError."""
    found = torch_dtype(name)
    if found is None:
        raise ProfileError(f"{where}: unknown number format {name!r}{nearest(name, _NAMES)}")
    return found
