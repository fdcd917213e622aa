"""Fine-tuning: does it fit, what would make it fit, how many hours does it take and what does it cost, on which GPUs?

The plan is searched on every machine: micro-batch, ZeRO stage, recomputation. What does not fit so is asked again with
what people change first, and each change that is named has been searched and fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from sim.errors import InfeasiblePlan, SpecError
from sim.scaling.questions import (
    Planned,
    ask,
    batch_of,
    lacking_of,
    length_of,
    plan_of,
    precision_of,
    sequences_near,
)
from sim.scaling.run import Terms, TrainingRun
from sim.search.candidate import facts_of
from sim.search.room import DEFAULT as ROOM
from sim.specs import GpuSpec, ModelSpec, Scenario, load_preset
from sim.specs.loading import resolve
from sim.specs.machines import machine_of, price_list

FRAMEWORK = "deepspeed"
"""Of fine-tuning where nobody names one: Hugging Face's Trainer with DeepSpeed, which shards states and moves them to
the host, and fused kernels."""
LENGTH = 2048
"""Tokens a sample: LLaMA-Factory's cutoff_len."""
BATCH = 64
"""Samples a step: Llama 2's supervised fine-tuning (arXiv:2307.09288, section 3.1)."""
RANK = 8
"""Of adapters: Hugging Face PEFT's default."""
COUNTS = (1, 2, 4, 8)
"""GPUs that are tried where nobody says how many."""
SHORTEST = 256
"""Tokens a sample below which a remedy does not go."""


@dataclass(frozen=True, slots=True)
class FineTuning:
    """What is to be trained, and how far the caller said how.

    samples, epochs : how many samples, and how often each is seen.
    rank : of low-rank adapters; 0: all weights are trained.
    length : tokens a sample; None: `LENGTH`. batch : as `batch_of` reads it; None: `BATCH`.
    offload : states and activations may wait in host memory.
    """

    model: str
    samples: float
    epochs: float = 3.0
    rank: int = 0
    length: int | None = None
    batch: str | None = None
    precision: str | None = None
    framework: str | None = None
    offload: bool = False

    def scenario(self, gpu: str, gpus: int) -> Scenario:
        """The question on so many GPUs of a preset.

        Raises
        ------
        SpecError
            No such model or framework, or a batch that says nothing.
        """
        assumed = []
        if self.framework is None:
            assumed.append(f"framework {FRAMEWORK} (Hugging Face's Trainer with ZeRO); --framework says otherwise")
        return ask(
            self.model,
            machine_of(gpu, gpus),
            stack=self.framework or FRAMEWORK,
            training=lambda model, card: self._training(model, card, gpus),
            assumed=assumed,
        )

    def _training(self, model: ModelSpec, gpu: GpuSpec, gpus: int) -> tuple[dict[str, Any], tuple[str, ...]]:
        length, _ = length_of(model, self.length, LENGTH)
        precision, of_precision = precision_of(gpu, self.precision)
        size = sequences_near(BATCH, gpus) if self.batch is None else batch_of(self.batch, length, gpus)
        notes = [
            f"every sample is priced at {length:,} tokens, as if it were as long as the longest; --seq says otherwise"
        ]
        if self.batch is None:
            notes.append(f"a batch of {size} samples ({BATCH} as Llama 2's, arXiv:2307.09288); --batch says otherwise")
        if self.rank:
            notes.append(
                f"low-rank adapters of rank {self.rank} on all linears of layers, beside frozen weights in {precision}"
            )
        fields: dict[str, Any] = {
            "global_batch_size": size,
            "sequence_length": length,
            "precision": precision,
            "adapter_rank": self.rank,
            "tokens": self.samples * self.epochs * length,
        }
        return fields, (*notes, *of_precision)


@dataclass(frozen=True, slots=True)
class Offer:
    """A fine-tuning on a machine.

    gpu : a preset's name.
    planned : the best plan and its run; None where none fits.
    lacking : why none fits.
    """

    asked: FineTuning
    gpu: str
    gpus: int
    planned: Planned | None
    lacking: str = ""

    @property
    def run(self) -> TrainingRun | None:
        """The whole run, where it fits."""
        return None if self.planned is None or self.planned.training is None else self.planned.training.run

    @property
    def hours(self) -> float:
        """Wall-clock time of the run; infinite where nothing fits. [h]"""
        return inf if self.run is None else self.run.wall_s / 3600

    @property
    def cost(self) -> float:
        """Price of the run; infinite where nothing fits."""
        return inf if self.run is None else self.run.cost

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        found: dict[str, Any] = {"gpu": self.gpu, "gpus": self.gpus, "fits": self.planned is not None}
        if self.planned is None or self.run is None:
            return {**found, "lacking": self.lacking}
        return {
            **found,
            "hours": self.hours,
            "cost": self.cost,
            "currency": self.run.currency,
            **facts_of(self.planned.result.best[0], "step_time_s", "mfu", "memory_bytes", "plan"),
        }


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that makes a fine-tuning fit, and what it then takes.

    words : as one types it: "--lora".
    """

    words: str
    offer: Offer

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {"change": self.words, **self.offer.to_dict()}


def offer_of(asked: FineTuning, gpu: str, gpus: int, terms: Terms | None = None) -> Offer:
    """The best plan for a fine-tuning on so many GPUs of a kind, or why none fits."""
    room = (*ROOM, "offload") if asked.offload else None
    try:
        found = plan_of(asked.scenario(gpu, gpus), gpus, terms, room=room)
    except InfeasiblePlan as error:
        return Offer(asked, gpu, gpus, None, str(error))
    if isinstance(found, Planned):
        return Offer(asked, gpu, gpus, found)
    return Offer(asked, gpu, gpus, None, lacking_of(found))


def offers_of(
    asked: FineTuning,
    gpus: Sequence[str] = (),
    counts: Sequence[int] = COUNTS,
    terms: Terms | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Offer]:
    """Offers on every kind of GPU and every number of them, the cheapest first; those that do not fit come last.

    Parameters
    ----------
    gpus : sequence of str
        Presets. Default: all that the price list has.

    Raises
    ------
    SpecError
        The question can be asked on none of them.
    """
    listed = price_list()
    some = [(gpu, count) for gpu in gpus or listed for count in counts if gpus or count <= listed[gpu].get("most", inf)]
    found: list[Offer] = []
    wrong: list[SpecError] = []
    for done, (gpu, count) in enumerate(some):
        try:
            found.append(offer_of(asked, gpu, count, terms))
        except SpecError as error:  # such as a precision that this GPU has no units for
            wrong.append(error)
        if progress is not None:
            progress(done + 1, len(some))
    if not found:
        raise wrong[0]
    return sorted(found, key=lambda offer: (offer.cost, offer.hours))


def in_budget(offers: Sequence[Offer], budget: float) -> list[Offer]:
    """The offers that a budget pays for, the fastest first."""
    return sorted((offer for offer in offers if offer.cost <= budget), key=lambda offer: offer.hours)


def remedies_of(offer: Offer, terms: Terms | None = None) -> tuple[list[Remedy], list[str]]:
    """Changes that make a fine-tuning fit, each searched, the cheapest first; and those that do not."""
    found, useless = [], []
    for words, ways in _changes(offer):
        tried = (offer_of(asked, gpu, gpus, terms) for asked, gpu, gpus in ways)
        fitting = next((each for each in tried if each.planned is not None), None)
        if fitting is None:
            useless.append(words)
        else:
            found.append(Remedy(_typed(offer, fitting), fitting))
    return sorted(found, key=lambda remedy: remedy.offer.cost), useless


Way = tuple[FineTuning, str, int]


def _changes(offer: Offer) -> Iterator[tuple[str, list[Way]]]:
    """What people change, each in the order in which it is tried."""
    asked, gpu, gpus = offer.asked, offer.gpu, offer.gpus
    if not asked.rank:
        yield "--lora", [(replace(asked, rank=RANK), gpu, gpus)]
    if not asked.offload:
        yield "--offload", [(replace(asked, offload=True), gpu, gpus)]
    length, _ = length_of(ModelSpec.read(resolve(asked.model, "model"), "model"), asked.length, LENGTH)
    shorter = [length >> halvings for halvings in range(1, 20) if length >> halvings >= SHORTEST]
    if shorter:
        yield f"--seq {shorter[-1]}", [(replace(asked, length=each), gpu, gpus) for each in shorter]
    more = [gpus << doublings for doublings in range(1, 7) if gpus << doublings <= 64]
    if more:
        yield f"--gpus {more[-1]}", [(asked, gpu, each) for each in more]
    listed = price_list()
    larger = [each for each in listed if _memory(each) > _memory(gpu) and gpus <= listed[each].get("most", gpus)]
    larger.sort(key=lambda each: listed[each]["price"])
    if larger:
        yield "a GPU with more memory", [(asked, each, gpus) for each in larger]


def _memory(gpu: str) -> float:
    return GpuSpec.read(load_preset("gpus", gpu), gpu).memory_bytes


def _typed(before: Offer, after: Offer) -> str:
    """What differs, as one types it."""
    words = []
    if after.asked.rank != before.asked.rank:
        words.append("--lora")
    if after.asked.offload and not before.asked.offload:
        words.append("--offload")
    if after.asked.length != before.asked.length:
        words.append(f"--seq {after.asked.length}")
    if after.gpus != before.gpus:
        words.append(f"--gpus {after.gpus}")
    if after.gpu != before.gpu:
        words.append(f"--gpu {after.gpu}")
    return " ".join(words)
