"""`calibrate run` over a network that is slow on purpose: every collective takes at least what these numbers say.

Run by the tests as one rank of two "nodes" on this machine; LATENCY_S is that of a message to the other node.
"""

import os
import time
from types import SimpleNamespace

import torch.distributed as dist

from flopcast_calibration.bench import run
from sim.cli import main

LATENCY_S = float(os.environ["SHAPED_LATENCY_S"])
BYTES_PER_S = float(os.environ["SHAPED_BYTES_PER_S"])
#: Messages that a ring of two sends one after the other, and the share of the buffer that each rank sends.
RINGS = {
    "all_reduce": (2, 1.0), "all_gather": (1, 0.5), "reduce_scatter_single": (1, 0.5), "all_to_all_single": (1, 0.5),
}  # fmt: skip


def slow(name):
    """The collective, which returns no sooner than its ring would over such a network."""
    messages, share = RINGS.get(name, (1, 1.0))
    real = getattr(dist, name)

    def call(*tensors, **options):
        begin = time.perf_counter()
        real(*tensors, **options)
        whole = tensors[0]
        nbytes = sum(one.nbytes for one in whole) if isinstance(whole, list) else whole.nbytes
        nbytes *= 2 if name == "reduce_scatter_single" else 1  # given its part first
        end = begin + messages * LATENCY_S + share * nbytes / BYTES_PER_S
        while time.perf_counter() < end:
            time.sleep(0)
        return SimpleNamespace(wait=lambda: None)

    return call


if __name__ == "__main__":
    if BYTES_PER_S:
        for each in ("all_reduce", "all_gather", "reduce_scatter_single", "all_to_all_single", "send", "recv"):
            setattr(dist, each, slow(each))
    run.kernel_cases = lambda *_: []
    run.interference_shapes = lambda *_: ()
    run._largest_buffer = lambda *_: 2**22
    run.TURNS = 1
    main()
