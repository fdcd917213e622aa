"""A machine with GPUs, for code that runs where there is none: device "cuda" means the CPU, and NCCL means gloo.

Started in place of a program's own module, it patches torch and then goes on as that program:

    python -m cuda_stand_in MODULE JOB_FILE OUT_FILE     as flopcast_validation.job.rank
    python -m cuda_stand_in verb job --quick …           as flopcast validate
"""

import os
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from flopcast_calibration.bench.timing import settle
from flopcast_validation.job.configs import Configuration, GptShape

NAME, MEMORY_BYTES = "NVIDIA A100-SXM4-80GB", 85e9
SHAPE = GptShape(num_layers=4, hidden_size=64, num_heads=4, vocab_size=64, sequence_length=64)
#: What --quick runs here: every kind of parallelism, on up to four ranks.
SUITE = (
    Configuration(2, 1, 2, "1f1b", 2, recompute="full"),
    Configuration(1, 2, 1, "zb_interleaved", 4, num_chunks=2, cp=2),
    Configuration(1, 1, 2, "1f1b", 2, zero_stage=3),
    Configuration(1, 1, 2, "1f1b", 2, num_experts=4, ep=2),
)
asked: list[str] = []
"""Names of the functions of torch.cuda that were called."""


class _CpuForCuda(TorchFunctionMode):
    """Tensors that are to be made on "cuda", or sent there, stay."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*map(_here, args), **{name: _here(value) for name, value in (kwargs or {}).items()})


def _here(value):
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


_device = torch.device


class _AnyDevice(type):
    def __instancecheck__(cls, instance):
        return isinstance(instance, _device)

    def __call__(cls, *args, **kwargs):
        if "cuda" in (str(args[:1]) + str(kwargs.get("type"))):
            return _device("cpu")
        return _device(*args, **kwargs)


class Device(metaclass=_AnyDevice):
    """torch.device, whose GPUs are the CPU."""


class Event:
    """A moment, as torch.cuda.Event records it."""

    def __init__(self, **options):
        self.moment = 0.0

    def record(self, stream=None):
        self.moment = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        """Milliseconds."""
        return (end.moment - self.moment) * 1e3


def _answering(name, answer):
    def call(*args, **kwargs):
        asked.append(name)
        return answer

    return call


def install():
    """Patch torch, and what the job has imported from it by name."""
    settle("cpu")  # memory that is handed out again, as a GPU's allocator does
    from flopcast_validation.job import bench, choose, compare, model, rank, train  # noqa: F401  whole before the patch

    properties = SimpleNamespace(
        name=NAME, multi_processor_count=108, total_memory=MEMORY_BYTES, L2_cache_size=40 << 20, major=8, minor=0
    )
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "2"))
    answers = {
        "is_available": True, "device_count": count, "current_device": 0, "set_device": None, "synchronize": None,
        "empty_cache": None, "get_device_properties": properties, "get_device_capability": (8, 0),
        "get_device_name": NAME,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, _answering(name, answer))
    torch.cuda.Event = Event
    torch.cuda.nccl.version = lambda: (2, 27, 3)
    torch.device = Device
    start, mesh = dist.init_process_group, model.init_device_mesh

    def init_process_group(backend, **options):
        assert backend == "cpu:gloo,cuda:nccl", backend
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        start("gloo", **options)

    def init_device_mesh(device, *args, **options):
        assert device == "cuda", device
        return mesh("cpu", *args, **options)

    choose.QUICK_SHAPE, choose.QUICK_SUITE, bench._TINY_WIDTH = SHAPE, SUITE, SHAPE.hidden_size
    dist.init_process_group, model.init_device_mesh = init_process_group, init_device_mesh
    _CpuForCuda().__enter__()


def main(*words):
    """Go on as the program."""
    if "COVERAGE_PROCESS_START" in os.environ:
        import coverage

        coverage.process_startup()
    install()
    if words[0] == "verb":
        from flopcast_validation.cli import app

        app(list(words[1:]))
    else:
        from flopcast_validation.job import rank

        rank.main(*words)
        assert {"set_device", "synchronize", "empty_cache"} <= set(asked), asked


if __name__ == "__main__":
    main(*sys.argv[1:])
