"""A GPU that is not there: torch's CUDA calls on tensors without data, timed by the cost functions of a known GPU.

Every line that measures a GPU runs as it is. Tensors are fake (shapes, no memory), on the CPU but taken for the GPU's;
a clock of its own advances by what each operation would take on the GPU, and by what the host takes to launch it.
Collectives move nothing and take what the profile says. So the suite's whole way from a kernel to a profile can be held
against the profile that made the times.
"""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from flopcast_calibration.points import BACKENDS
from sim.costs.collectives import COLLECTIVES, Fabric, all_to_all, send
from sim.costs.compute import attention_efficiency, gemm_time
from sim.network.placement import Group
from sim.specs import ClusterSpec, Profile

PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float8_e4m3fn: "fp8"}
#: The profile's sort of each memory-bound operation that torch dispatches.
SORTS = {
    "add": "add", "native_layer_norm": "norm", "_softmax": "softmax", "gelu": "activation", "bernoulli_": "dropout",
    "_fused_adam_": "adam",
}  # fmt: skip
#: Bytes moved over those of the first operand, as the suite counts them.
PASSES = {"copy_": 2, "add": 3, "native_layer_norm": 2, "_softmax": 2, "gelu": 2, "bernoulli_": 2.5}


class StandIn:
    """The clocks of a host and its GPU, and what things take on them. [s]"""

    def __init__(self, cluster: ClusterSpec, profile: Profile, *, launch_s: float = 4e-6, ranks: int = 1) -> None:
        self.cluster, self.profile, self.launch_s, self.ranks = cluster, profile, launch_s, ranks
        self.per_node = min(ranks, cluster.node.gpus_per_node)
        self.host_s = self.gpu_s = self.link_s = 0.0
        self.capturing: list[float] | None = None
        self.fails: dict[str, Exception] = {}
        self.attention_speed = 1.0

    def launch(self, seconds: float) -> None:
        """The host launches a kernel."""
        if self.capturing is not None:
            self.capturing.append(seconds)
            return
        self.host_s += self.launch_s
        self.gpu_s = max(self.gpu_s, self.host_s) + seconds

    def wait(self) -> None:
        """The host waits for the GPU."""
        self.host_s = max(self.host_s, self.gpu_s, self.link_s)

    def now(self) -> float:
        """What the host's clock shows."""
        return self.host_s

    def multiply(self, m: float, n: float, k: float, batch: float, dtype: Any) -> float:
        precision = PRECISIONS[dtype]
        gpu, gemm = self.cluster.gpu, self.profile.gemm.of(precision)
        width = torch.empty((), dtype=dtype, device="meta").element_size()
        return float(gemm_time(m, n, k, batch, precision, width, gpu, gemm, self.profile.memory.efficiency))

    def attend(self, q: Any, causal: bool, backward: bool) -> float:
        heads, length, width = q.shape[-3:]
        params = self.profile.attention
        share = params.backward_efficiency if backward else params.forward_efficiency
        flop = 4.0 * heads * length**2 * width * (0.5 if causal else 1.0) * (2.5 if backward else 1.0)
        reached = float(attention_efficiency(length, share, params.half_length)) * self.attention_speed
        return flop / (self.cluster.gpu.peak(PRECISIONS[q.dtype]) * reached)

    def stream(self, nbytes: float, sort: str) -> float:
        bandwidth = self.cluster.gpu.memory_bandwidth_bytes_per_s * self.profile.memory.share(sort)
        return nbytes / bandwidth + self.profile.gemm.kernel_floor_s

    def operation(self, name: str, args: tuple[Any, ...]) -> float | None:
        """What one dispatched operation takes; None for what runs no kernel."""
        if name in self.fails:
            raise self.fails[name]
        if name in ("mm", "_scaled_mm"):
            (m, k), n = args[0].shape, args[1].shape[1]
            return self.multiply(m, n, k, 1, args[0].dtype)
        if name == "bmm":
            (batch, m, k), n = args[0].shape, args[1].shape[2]
            return self.multiply(m, n, k, batch, args[0].dtype)
        if name == "_scaled_dot_product_flash_attention_for_cpu":
            return self.attend(args[0], bool(args[4]) if len(args) > 4 else False, False)
        if name == "_scaled_dot_product_flash_attention_for_cpu_backward":
            return self.attend(args[1], bool(args[7]), True)
        if name == "_fused_adam_":
            return self.stream(28 * sum(tensor.numel() for tensor in args[0]), "adam")
        if name in ("add_", "silu", "silu_backward"):
            return self.profile.gemm.kernel_floor_s
        if name in PASSES and isinstance(args[0], torch.Tensor):
            sort = SORTS.get(name, "copy")
            return self.stream(PASSES[name] * args[0].numel() * args[0].element_size(), sort)
        return None

    def talk(self, operation: str, nbytes: float, ranks: list[int], groups: int) -> float:
        """What a collective takes."""
        size, domains = len(ranks), len({rank // self.per_node for rank in ranks})
        fabric = Fabric.of(self.cluster, self.profile)
        if operation == "send":
            return float(send(nbytes, domains > 1, fabric))
        group = Group(size, size // domains, groups > 1)
        function = {**COLLECTIVES, "all_to_all": all_to_all}[operation]
        return float(np.asarray(function(nbytes, group, fabric)))


class _Kernels(TorchDispatchMode):
    def __init__(self, clock: StandIn) -> None:
        super().__init__()
        self.clock = clock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        seconds = self.clock.operation(func.overloadpacket.__name__, args)
        if seconds is not None:
            self.clock.launch(seconds)
        return result


class _Devices(TorchFunctionMode):
    """Takes "cuda" for the CPU, and its own copies for those between host and GPU."""

    def __init__(self, clock: StandIn) -> None:
        super().__init__()
        self.clock = clock

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        pinned = kwargs.pop("pin_memory", False)
        name = getattr(func, "__name__", "")
        if name == "copy_" and kwargs.pop("non_blocking", False):
            host = self.clock.profile.host
            there = getattr(args[1], "on_host", False)
            rate = host.to_device_bytes_per_s if there else host.to_host_bytes_per_s
            self.clock.launch((host.copy_latency_s or 0.0) + args[0].numel() / rate)
            return args[0]
        args = tuple(
            "cpu" if str(item).startswith("cuda") and not isinstance(item, torch.Tensor) else item for item in args
        )
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        result = func(*args, **kwargs)
        if pinned:
            result.on_host = True
        return result


class _Event:
    def __init__(self, clock: StandIn) -> None:
        self.clock, self.at = clock, 0.0

    def record(self) -> None:
        self.at = max(self.clock.gpu_s, self.clock.host_s)

    def synchronize(self) -> None:
        self.clock.wait()

    def elapsed_time(self, end: _Event) -> float:
        return (end.at - self.at) * 1e3


class _Graph:
    def __init__(self, clock: StandIn) -> None:
        self.clock, self.kernels = clock, []

    def replay(self) -> None:
        self.clock.launch(sum(self.kernels))


class _Work:
    def __init__(self, clock: StandIn, end: float) -> None:
        self.clock, self.end = clock, end

    def wait(self) -> None:
        """The GPU's kernels wait for what of the collective compute did not hide."""
        self.clock.gpu_s = max(self.clock.gpu_s, self.end)


class _Collectives:
    """torch.distributed with one process that plays rank 0."""

    def __init__(self, clock: StandIn) -> None:
        self.clock = clock
        self.busy = 1

    def run(self, operation: str, nbytes: float, group: Any, async_op: bool) -> Any:
        clock = self.clock
        groups = clock.per_node if group.ranks == list(range(0, clock.ranks, clock.per_node)) else 1
        seconds = clock.talk(operation, nbytes, group.ranks, groups if clock.per_node < clock.ranks else 1)
        clock.host_s += clock.launch_s
        begin = max(clock.host_s, clock.link_s, clock.gpu_s)
        clock.link_s = begin + seconds
        if async_op:
            # What is not hidden is taken from the kernels that follow, byte by byte.
            clock.gpu_s = max(clock.gpu_s, clock.host_s) + (1 - clock.profile.nvlink.hidden_share) * seconds
            return _Work(clock, clock.link_s)
        clock.gpu_s = max(clock.gpu_s, clock.link_s)
        return None


@contextlib.contextmanager
def gpu(monkeypatch: Any, clock: StandIn, device: str, capability: tuple[int, int]) -> Any:
    """Everything that runs inside finds one GPU of this name, and with several `ranks` of the clock, a job of them."""
    from flopcast_calibration.bench import collectives, ranks, timing

    node = clock.cluster
    properties = SimpleNamespace(
        name=device,
        multi_processor_count=node.gpu.num_sms,
        total_memory=int(node.gpu.memory_bytes),
        L2_cache_size=2**20,  # few copies of small data
    )
    known = {
        "is_available": lambda: True, "device_count": lambda: clock.per_node,
        "get_device_properties": lambda index=0: properties, "get_device_capability": lambda index=0: capability,
        "set_device": lambda index: None, "synchronize": clock.wait, "empty_cache": lambda: None,
        "_sleep": lambda cycles: clock.launch(cycles / 3e9), "Event": lambda enable_timing: _Event(clock),
        "CUDAGraph": lambda: _Graph(clock), "graph": lambda graph: _capture(clock, graph),
    }  # fmt: skip
    for name, value in known.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    chosen = functools.wraps(torch.nn.attention.sdpa_kernel)(lambda backend: _attention(clock, backend.name))
    chosen.__wrapped__ = torch.nn.attention.sdpa_kernel.__wrapped__  # torch's compiler looks for it
    monkeypatch.setattr(torch.nn.attention, "sdpa_kernel", chosen)
    watch = SimpleNamespace(perf_counter=clock.now, monotonic=clock.now)
    for module in (timing, collectives):
        monkeypatch.setattr(module, "time", watch)
    if clock.ranks > 1:
        _join(monkeypatch, clock)
    monkeypatch.setattr(ranks, "settle", lambda device: None)
    with FakeTensorMode(allow_non_fake_inputs=True), _Devices(clock), _Kernels(clock):
        yield clock


@contextlib.contextmanager
def _attention(clock: StandIn, backend: str) -> Any:
    """Each kernel at the speed that the profile gives its version."""
    clock.attention_speed = clock.profile.attention.speed(BACKENDS[backend]) if backend in BACKENDS else 1.0
    yield  # its backward, which comes later, is that kernel's too


@contextlib.contextmanager
def _capture(clock: StandIn, graph: _Graph) -> Any:
    clock.capturing = graph.kernels
    try:
        yield
    finally:
        clock.capturing = None


def _join(monkeypatch: Any, clock: StandIn) -> None:
    """One process that torchrun seems to have started, as rank 0 of many."""
    import torch.distributed as dist

    from flopcast_calibration.bench import collectives

    environment = {
        "RANK": "0", "WORLD_SIZE": str(clock.ranks), "LOCAL_WORLD_SIZE": str(clock.per_node), "LOCAL_RANK": "0",
        "MASTER_ADDR": "nowhere",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    talk = _Collectives(clock)
    size = lambda tensor: tensor.numel() * tensor.element_size()  # noqa: E731

    def all_objects(found: list[Any], mine: Any, group: Any = None) -> None:
        found[:] = [mine] * len(found)

    def new_group(members: Any = None, **options: Any) -> Any:
        return SimpleNamespace(ranks=list(members if members is not None else range(clock.ranks)))

    calls = {
        "init_process_group": lambda *args, **options: None,
        "destroy_process_group": lambda: None,
        "new_group": new_group,
        "barrier": lambda group=None: clock.wait(),
        "broadcast_object_list": lambda *args, **options: None,
        "all_gather_object": all_objects,
        "get_process_group_ranks": lambda group: group.ranks,
        "all_reduce": lambda x, group, async_op=False, op=None: talk.run("all_reduce", size(x), group, async_op),
        "all_gather_into_tensor": lambda out, x, group, async_op=False: talk.run("all_gather", size(out), group, async_op),
        "reduce_scatter_single": lambda out, x, group, async_op=False: talk.run("reduce_scatter", size(x), group, async_op),
        "reduce_scatter_tensor": lambda out, x, group, async_op=False: talk.run("reduce_scatter", size(x), group, async_op),
        "all_to_all_single": lambda out, x, group, async_op=False: talk.run("all_to_all", size(x), group, async_op),
        "send": lambda x, dst, group: talk.run("send", size(x), group, False),
        "recv": lambda x, src, group: talk.run("send", size(x), group, False),
    }  # fmt: skip
    for name, value in calls.items():
        monkeypatch.setattr(dist, name, value, raising=False)
    # Tensors hold no numbers: what the slowest rank saw is what this one saw.
    monkeypatch.setattr(collectives, "agreed", lambda group, samples, device: samples)
