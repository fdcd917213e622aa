"""Which model, and which configurations of it, a machine is asked to train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flopcast_calibration.bench.timing import describe
from flopcast_calibration.node import measured_cluster
from flopcast_validation.job.calibrate import base_profile, ranks_there_are
from flopcast_validation.job.configs import QUICK_SHAPE, QUICK_SUITE, SIZES, SUITE, Configuration, GptShape, gpu_suite
from flopcast_validation.job.predict import scenario_of
from sim import estimate
from sim.errors import SpecError

SIZE_NAMES = ("auto", *SIZES)
#: Of a GPU's memory, what a configuration may fill: eager PyTorch keeps some tensors that the simulator does not count.
_MOST_MEMORY = 0.85


@dataclass(frozen=True, slots=True)
class Choice:
    """What is trained, in which configurations, and what to say of those left out."""

    shape: GptShape
    suite: tuple[Configuration, ...]
    notes: tuple[str, ...] = ()


def choose(size: str, quick: bool, device: str) -> Choice:
    """The model of this size, and the configurations of it that the machine has ranks and memory for.

    A SpecError says that there is memory for none.
    """
    if device == "cpu":
        if size not in ("auto", "tiny"):
            raise SpecError(f"size {size!r} would take a CPU hours; leave --size out")
        return Choice(QUICK_SHAPE, QUICK_SUITE) if quick else Choice(GptShape(), SUITE)
    found = describe(device)
    ranks, _ = ranks_there_are(device, found)
    if size == "auto" and not quick:
        fitting = [name for name, (shape, at_once) in SIZES.items() if fits(shape, gpu_suite(1, at_once)[0], found)]
        size = fitting[-1] if fitting else "tiny"
    if quick or size == "tiny":
        shape, suite = (QUICK_SHAPE, QUICK_SUITE) if quick else (GptShape(), SUITE)
        return Choice(replace(shape, precision="bf16"), tuple(cut for cut in suite if cut.num_ranks <= ranks))
    return _filling(size, ranks, found)


def _filling(size: str, ranks: int, found: dict[str, Any]) -> Choice:
    """A model that fills GPUs."""
    shape, at_once = SIZES[size]
    cuts = gpu_suite(ranks, at_once)
    suite = tuple(cut for cut in cuts if fits(shape, cut, found))
    if not suite:
        raise SpecError(
            f"a model of size {size!r} does not fit {ranks} GPUs of {found['device']}; take a smaller --size"
        )
    left = [cut.name for cut in cuts if cut not in suite]
    notes = [f"size {size}: {shape.num_layers} layers of {shape.hidden_size}, on up to {ranks} GPUs"]
    notes += [f"left out, which need more memory than a GPU has: {', '.join(left)}"] if left else []
    return Choice(shape, suite, tuple(notes))


def fits(shape: GptShape, cut: Configuration, found: dict[str, Any]) -> bool:
    """Whether every rank of a configuration has the memory it needs, as the simulator counts it.

    found : what `describe` says of the machine.
    """
    node = measured_cluster(found).node
    nodes = (-(-cut.num_ranks // node.gpus_per_node), node.gpus_per_node)
    scenario = scenario_of(shape, cut, str(node.name), base_profile(str(node.name)), nodes=nodes)
    return bool(estimate(scenario).largest.total <= _MOST_MEMORY * found["memory_bytes"])
