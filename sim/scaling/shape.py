"""Nearby sizes of a model that train faster at nearly the same parameters: `flopcast shape`.

Anthony et al. 2024, arXiv:2401.14489, "The Case for Co-Designing Model Architectures with Hardware": of models alike in
parameters, those whose multiplies fill tiles, waves and wide loads train up to 39 % faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from sim.errors import SpecError
from sim.estimate import estimate
from sim.scaling.questions import ask, described, length_of
from sim.specs import ModelSpec, ParallelPlan, Scenario
from sim.specs.machines import machine_of
from sim.work.sums import total_params

TOKENS = 8192
"""Tokens of a micro-batch, as in the paper's figures: enough for the host not to matter."""
MICROBATCHES = 32
"""A step's, over which the update of the weights is spread."""
NEAR = 0.03
"""Parameters may differ by this share."""
LEAST = 0.003
"""Gain below which a size is not listed."""
STEPS = (64, 128, 256)
"""Multiples of which nearby sizes are tried."""
HEADS = (64, 80, 96, 112, 128, 160, 192, 256)
"""Columns of a head that are tried."""
SHOWN = 3
"""How many changes of each size are listed."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model with one size changed, beside the one asked about.

    gain : rate of training a parameter, over the asked one's, less one.
    """

    sizes: dict[str, int]
    params: int
    step_time_s: float
    gain: float


@dataclass(frozen=True, slots=True)
class Shapes:
    """The model as it is, and changes of one size each that gain something, the best of each size first."""

    scenario: Scenario
    own: Shape
    faster: tuple[Shape, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        scenario = self.scenario
        asked = {"model": scenario.model.name, "gpu": scenario.cluster.gpu.name, "tp": scenario.plan.tp}
        faster = [asdict(each) for each in self.faster]
        return {**asked, "own": asdict(self.own), "faster": faster, "assumptions": list(scenario.assumed)}


def shapes_near(
    model: str,
    gpu: str,
    tp: int = 1,
    length: int | None = None,
    framework: str | None = None,
    precision: str = "bf16",
    profile: str | None = None,
) -> Shapes:
    """Price a model, and every nearby change of one of its sizes, on `tp` GPUs; memory does not matter.

    model, gpu : as in scenarios; a GPU preset.
    length : tokens of a sequence.
    profile : a name or a YAML file. Default: the GPU's own.
    """
    machine = machine_of(gpu, tp)
    read, assumed = length_of(described(model, machine)[0], length)
    rows = ceil(TOKENS / read)
    training = {"global_batch_size": rows * MICROBATCHES, "sequence_length": read, "precision": precision}
    open_ = ask(model, machine, training, stack=framework, profile=profile, assumed=assumed)
    scenario = open_.replace(plan=ParallelPlan(tp=tp, microbatch_size=rows))
    shape = scenario.model
    own_s, own_params = estimate(scenario).step_time_s, total_params(shape)
    own = Shape({}, own_params, own_s, 0.0)
    faster: list[Shape] = []
    for several in _nearby(shape, tp):
        found = []
        for sizes in several:
            try:
                changed = scenario.replace(model=shape.replace(**sizes))
            except SpecError:  # heads that tp or the model's other sizes do not divide
                continue
            params = total_params(changed.model)
            if abs(params / own_params - 1.0) > NEAR:
                continue
            step_s = estimate(changed).step_time_s
            gain = (params / own_params) / (step_s / own_s) - 1.0
            if gain > LEAST:
                found.append(Shape(sizes, params, step_s, gain))
        faster += sorted(found, key=lambda each: -each.gain)[:SHOWN]
    return Shapes(scenario, own, tuple(faster))


def _nearby(model: ModelSpec, tp: int) -> Iterator[Sequence[dict[str, int]]]:
    """Changes of one size: of the vocabulary (upwards alone), of heads at the same columns, of the two widths."""
    yield [{"vocab_size": size} for size in _multiples(model.vocab_size, tp) if size > model.vocab_size]
    columns, group = model.num_heads * model.head_dim, model.num_heads // model.num_kv_heads
    by_heads = []
    for head in HEADS:
        heads = group * tp * max(1, round(columns / (head * group * tp)))
        value = {"value_head_dim": head} if model.value_head_dim == model.head_dim else {}
        if head != model.head_dim and not model.key_value_rank:
            by_heads.append({"num_heads": heads, "num_kv_heads": heads // group, "head_dim": head, **value})
    yield by_heads
    for field in ("hidden_size", "expert_intermediate_size" if model.num_experts else "intermediate_size"):
        yield [{field: size} for size in _multiples(getattr(model, field), tp)]


def _multiples(size: int, tp: int) -> list[int]:
    """Multiples of some sizes of tiles below and above, on every GPU."""
    found = {step * tp * (size // (step * tp) + more) for step in STEPS for more in (0, 1)}
    return sorted(found - {0, size})
