"""Kernels on one device: matrix multiplies, attention, memory-bound operations, launches, copies.

A case is a shape and a function that makes its inputs and returns the call to time. Data are random: multiplying zeros
draws less power and runs at higher clocks than training does. Multiplies write to memory they own already: a CPU's
operating system would zero fresh pages, which takes longer than a shallow multiply itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from flopcast_calibration.bench.timing import Apart
from flopcast_calibration.measurement import Shape
from sim.specs import Scenario

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time: its kind, its shape, and how to set it up on a device.

    working_set : what one call reads and writes, where a cache could hold it. [bytes]
    apart : how the GPU's time is told from the host's (`time_call`): of a call that a CUDA graph can hold by a graph.
    """

    kind: str
    shape: Shape
    prepare: Callable[[str], Call]
    working_set: float = 0.0
    apart: Apart = ""


#: Bytes of a number.
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


def random_tensor(device: str, dtype: str, *size: int) -> Any:
    """Numbers around zero, as activations and weights are."""
    import torch

    return torch.randn(*size, device=device, dtype=torch.float32).to(getattr(torch, dtype)) * 0.1


def gemm_case(m: int, n: int, k: int, dtype: str, layout: str) -> Case:
    """(m × k) · (k × n) as training runs it.

    layout : nt, the forward x·Wᵀ; nn, the input gradient dy·W; tn, the weight gradient dyᵀ·x.
    """

    def prepare(device: str) -> Call:
        import torch

        left = random_tensor(device, dtype, k, m).t() if layout[0] == "t" else random_tensor(device, dtype, m, k)
        right = random_tensor(device, dtype, n, k).t() if layout[1] == "t" else random_tensor(device, dtype, k, n)
        out = left @ right
        return lambda: torch.mm(left, right, out=out)

    moved = WIDTH[dtype] * (m * k + k * n + m * n)
    return Case("gemm", {"m": m, "n": n, "k": k, "dtype": dtype, "layout": layout}, prepare, moved, "graph")


def bmm_case(batch: int, m: int, n: int, k: int, dtype: str) -> Case:
    """`batch` multiplies at once, as math attention runs them."""

    def prepare(device: str) -> Call:
        import torch

        left, right = random_tensor(device, dtype, batch, m, k), random_tensor(device, dtype, batch, k, n)
        out = torch.bmm(left, right)
        return lambda: torch.bmm(left, right, out=out)

    moved = WIDTH[dtype] * batch * (m * k + k * n + m * n)
    return Case("bmm", {"batch": batch, "m": m, "n": n, "k": k, "dtype": dtype}, prepare, moved, "graph")


def attention_case(
    heads: int, length: int, head_dim: int, dtype: str, causal: bool, backward: bool, backend: str | None = None
) -> Case:
    """Fused scaled-dot-product attention, forward or backward.

    backend : a name of `torch.nn.attention.SDPBackend`, so that what was measured is known; None leaves it to torch.
    """

    def prepare(device: str) -> Call:
        import torch

        attend = torch.nn.functional.scaled_dot_product_attention
        q, k, v = (random_tensor(device, dtype, 1, heads, length, head_dim).requires_grad_(backward) for _ in range(3))

        def forward() -> Any:
            with _backend(backend):
                return attend(q, k, v, is_causal=causal)

        return _backward_of(forward, q, k, v) if backward else forward

    shape: Shape = {
        "heads": heads,
        "length": length,
        "head_dim": head_dim,
        "dtype": dtype,
        "causal": int(causal),
        "backward": int(backward),
        **({"backend": backend} if backend else {}),
    }
    moved = WIDTH[dtype] * (8 if backward else 4) * heads * length * head_dim
    return Case("attention", shape, prepare, moved, "queue" if backward else "graph")


def _backward_of(forward: Call, *inputs: Any) -> Call:
    """The backward of a call, over and over."""
    import torch

    out = forward()
    gradient = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _backend(name: str | None) -> Any:
    """The context in which torch takes one attention kernel and no other."""
    if name is None:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.__members__[name])


def recurrent_case(
    kernel: str, heads: int, key_heads: int, head_dim: int, state: int, length: int, dtype: str, backward: bool
) -> Case:
    """The kernels that carry a state along one sequence, chunk by chunk, forward or backward.

    kernel : mamba2 (mamba-ssm's, chunks of 128), gated_delta_net or kimi_delta_attention (flash-linear-attention's, of
        64), as models name their mixers.
    key_heads : delta rules repeat them to `heads` before the kernel, as Hugging Face's models do.
    """

    def prepare(device: str) -> Call:
        import torch

        def numbers(columns: int, of_each: int) -> Any:
            return random_tensor(device, dtype, 1, length, of_each, columns).requires_grad_(backward)

        q, k = (numbers(state, key_heads if kernel == "mamba2" else heads) for _ in range(2))
        v = numbers(head_dim, heads)
        wide = (state,) if kernel == "kimi_delta_attention" else ()
        gate = -torch.rand(1, length, heads, *wide, device=device).requires_grad_(backward)
        call = _recurrent_call(kernel, q, k, v, gate)
        return _backward_of(call, q, k, v, gate) if backward else call

    shape: Shape = {
        "kernel": kernel,
        "heads": heads, "key_heads": key_heads, "head_dim": head_dim, "state": state, "length": length,
        "dtype": dtype, "backward": int(backward),
    }  # fmt: skip
    return Case("recurrent", shape, prepare, WIDTH[dtype] * length * 4 * heads * head_dim, "queue")


def _recurrent_call(kernel: str, q: Any, k: Any, v: Any, gate: Any) -> Call:
    """What carries the state; its library is imported here, so that a machine without it leaves the case out."""
    import torch

    if kernel == "mamba2":
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

        decay = -torch.rand(v.shape[2], device=v.device) - 0.5
        return lambda: mamba_chunk_scan_combined(v, gate, decay, k, q, 128, dt_softplus=True)
    share = torch.rand(*v.shape[:3], device=v.device, dtype=v.dtype)
    if kernel == "gated_delta_net":
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule as carried
    else:
        from fla.ops.kda import chunk_kda as carried
    return lambda: carried(q, k, v, gate, share, use_qk_l2norm_in_kernel=True)[0]


#: operation -> bytes moved per element and byte of width
MEMORY_OPERATIONS = {"copy": 2, "add": 3, "norm": 2, "softmax": 2, "gelu": 2, "dropout": 2.5}


def _memory_call(operation: str, x: Any) -> Call:
    """A memory-bound operation on x [rows, hidden]."""
    import torch
    from torch.nn import functional

    match operation:
        case "copy":
            y = x.clone()
            return lambda: y.copy_(x)
        case "add":
            y, out = x.clone(), x.clone()
            return lambda: torch.add(x, y, out=out)
        case "norm":
            weight = torch.ones(x.shape[-1], device=x.device, dtype=x.dtype)
            return lambda: functional.layer_norm(x, (x.shape[-1],), weight, weight)
        case "softmax":
            return lambda: x.softmax(-1)
        case "gelu":
            return lambda: functional.gelu(x, approximate="tanh")
    return lambda: functional.dropout(x, 0.1, training=True)


def memory_case(operation: str, rows: int, hidden: int, dtype: str) -> Case:
    """A memory-bound operation on `rows` × `hidden` elements."""
    moved = MEMORY_OPERATIONS[operation] * WIDTH[dtype] * rows * hidden
    shape: Shape = {"operation": operation, "rows": rows, "hidden": hidden, "dtype": dtype, "nbytes": moved}

    def prepare(device: str) -> Call:
        return _memory_call(operation, random_tensor(device, dtype, rows, hidden))

    return Case("memory", shape, prepare, moved, "graph")


def adam_case(params: int) -> Case:
    """One step of Adam on fp32 parameters: gradient, weight and two moments read, three of them written."""

    def prepare(device: str) -> Call:
        import torch

        weight = torch.nn.Parameter(random_tensor(device, "float32", params))
        weight.grad = torch.ones_like(weight)
        optimizer = torch.optim.Adam([weight], fused=True, capturable=device == "cuda")
        return optimizer.step

    moved = 28 * params
    shape: Shape = {"operation": "adam", "rows": params, "hidden": 1, "dtype": "float32", "nbytes": moved}
    return Case("memory", shape, prepare, moved, "graph")


def launch_case(dtype: str) -> Case:
    """A kernel that does nothing to speak of: what is left is launching it."""

    def prepare(device: str) -> Call:
        x = random_tensor(device, dtype, 1)
        return lambda: x.add_(1)

    return Case("launch", {"operation": "add one element"}, prepare)


#: modules in a row whose every forward and backward is one kernel
_CHAIN = 32


def graph_case(dtype: str) -> Case:
    """One kernel repeated in a CUDA graph: the time that remains between kernels which the host launches at once."""

    def prepare(device: str) -> Call:
        import torch

        x = random_tensor(device, dtype, 1)
        x.add_(1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_CHAIN):
                x.add_(1)
        return graph.replay

    return Case("launch", {"operation": "add one element", "graph": 1, "kernels": _CHAIN}, prepare)


def framework_case(dtype: str) -> Case:
    """Modules so small that only the host's share is left: Python, autograd, dispatch and launch.

    The time is that of all `kernels` of a forward and a backward.
    """

    def prepare(device: str) -> Call:
        import torch

        chain = torch.nn.Sequential(*(torch.nn.SiLU() for _ in range(_CHAIN)))
        x = random_tensor(device, dtype, 1).requires_grad_()
        gradient = torch.ones_like(x)
        return lambda: torch.autograd.grad(chain(x), x, gradient)

    return Case("launch", {"operation": "module forward and backward", "kernels": 2 * _CHAIN}, prepare)


def copy_case(nbytes: int, direction: str) -> Case:
    """Host to device or back, pinned."""

    def prepare(device: str) -> Call:
        import torch

        host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device == "cuda")
        there = torch.empty(nbytes, dtype=torch.uint8, device=device)
        source, target = (host, there) if direction == "to_device" else (there, host)
        return lambda: target.copy_(source, non_blocking=True)

    return Case("copy", {"nbytes": nbytes, "direction": direction}, prepare)


def gemm_shapes(quick: bool, largest_flop: float) -> Iterator[tuple[int, int, int, str]]:
    """Shapes of transformer layers, from launch-bound to saturated: tokens × (projections of several hidden sizes)."""
    hiddens = (256, 512, 1024, 2048) if quick else (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)
    token_counts = (64, 256, 1024, 4096) if quick else (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    for hidden in hiddens:
        chosen = (("nt", 4 * hidden, hidden), ("nn", hidden, hidden), ("tn", hidden, 4 * hidden))  # one of each layout
        for tokens in token_counts:
            for n, k in ((hidden, hidden), (3 * hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)):
                for layout, shape in (("nt", (tokens, n, k)), ("nn", (tokens, k, n)), ("tn", (n, k, tokens))):
                    if quick and (layout, n, k) not in chosen:
                        continue
                    if 2.0 * shape[0] * shape[1] * shape[2] <= largest_flop:
                        yield (*shape, layout)


#: A size and what it is a multiple of: what a vectorised load can take depends on it.
_OFFSETS = (1, 2, 4, 8, 16, 32, 64, 0)


def unaligned_shapes(quick: bool) -> Iterator[tuple[int, int, int, str]]:
    """Multiplies one of whose sizes (or both of a matrix's) is a little more than a multiple of 128."""
    tokens, n, k = (1024, 2048, 2048) if quick else (8192, 4096, 4096)
    offsets = (1, 8) if quick else _OFFSETS
    for offset in offsets:
        for m_more, n_more, k_more in ((0, offset, 0), (0, 0, offset), (0, offset, offset), (offset, 0, 0)):
            shape = tokens + m_more, n + n_more, k + k_more
            yield from ((*shape, layout) for layout in ("nt", "nn", "tn"))
    if not quick:  # GPT-2's vocabulary and what it is padded to, as a head's forward and its two gradients
        for vocabulary in (50257, 50258, 50260, 50264, 50304):
            yield tokens, vocabulary, 2048, "nt"
            yield tokens, 2048, vocabulary, "nn"
            yield vocabulary, 2048, tokens, "tn"


def scenario_shapes(scenario: Scenario) -> Iterator[tuple[int, int, int, str]]:
    """The multiplies that one layer and the head of a scenario run."""
    from sim.pricing.layouts import cut_of
    from sim.work.layers import head_operations, layer_operations

    of_scenario = scenario.model, scenario.stack, cut_of(scenario)
    for operation in (*layer_operations(*of_scenario), *head_operations(*of_scenario)):
        passes = (operation.forward, "nt"), (operation.input_grad, "nn"), (operation.weight_grad, "tn")
        for kernels, layout in passes:
            for item in kernels:
                if item.kind == "matmul" and item.batch == 1:
                    yield int(item.m), int(item.n), int(item.k), layout


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

    Speed does not depend on what the scales are, only on how many there are and how they lie; they are all one.

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
