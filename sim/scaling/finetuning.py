"""Fine-tuning: does it fit, what would make it fit, how many hours does it take and what does it cost, on which GPUs?

The plan is searched on every machine: micro-batch, ZeRO stage, recomputation. What does not fit so is asked again with
what people change first, and each change that is named has been searched and fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sim.errors import InfeasiblePlan, SpecError
from sim.scaling.questions import Planned, ask, batch_of, length_of, plan_of, precision_of, sequences_near
from sim.scaling.run import Terms
from sim.scaling.training import Training
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
    assumed : what was filled in before.
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
    assumed: tuple[str, ...] = ()

    def scenario(self, gpu: str, gpus: int) -> Scenario:
        """The question on so many GPUs of a preset.

        Raises
        ------
        SpecError
            No such model or framework, or a batch that says nothing.
        """
        assumed = [*self.assumed]
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
        usual = f"a batch near {BATCH} samples, as Llama 2's (arXiv:2307.09288, section 3.1); --batch says otherwise"
        own = None if self.batch is None else batch_of(self.batch, length, gpus)
        size, of_batch = own or (sequences_near(BATCH, gpus), (usual,))
        whole = f"every sample is priced at {length:,} tokens, as if each were the longest; --seq says otherwise"
        often = f"every sample is seen {self.epochs:g} time{'s' * (self.epochs != 1)}; --epochs says otherwise"
        notes = [often, whole, *of_batch]
        if self.rank:
            notes.append(f"adapters of rank {self.rank} on all linears of layers, beside frozen weights in {precision}")
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
    """A fine-tuning that fits on so many GPUs of a preset: its best plan, and the run that it makes."""

    asked: FineTuning
    gpu: str
    gpus: int
    planned: Planned
    training: Training

    @property
    def cost(self) -> float:
        """Price of the run, in its currency."""
        return self.training.run.cost

    @property
    def wall_s(self) -> float:
        """Wall-clock time of the run. [s]"""
        return self.training.run.wall_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        found = {"gpu": self.gpu, "gpus": self.gpus, "fits": True, "hours": self.wall_s / 3600, "cost": self.cost}
        facts = facts_of(self.planned.result.best[0], "step_time_s", "mfu", "memory_bytes", "plan")
        return {**found, "currency": self.training.run.currency, **facts}


class Lacking(NamedTuple):
    """GPUs on which no plan of a fine-tuning fits, and why."""

    gpu: str
    gpus: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {"gpu": self.gpu, "gpus": self.gpus, "fits": False, "lacking": self.why}


def offer_of(asked: FineTuning, gpu: str, gpus: int, terms: Terms | None = None) -> Offer:
    """The best plan for a fine-tuning on so many GPUs of a preset, and its run.

    Raises
    ------
    InfeasiblePlan
        None fits.
    """
    room = (*ROOM, "offload") if asked.offload else ROOM
    planned = plan_of(asked.scenario(gpu, gpus), gpus, terms, room=room)
    if not planned.result.finished:
        raise KeyboardInterrupt  # who stops one search stops them all
    assert planned.training is not None
    return Offer(asked, gpu, gpus, planned, planned.training)


def offers_of(
    asked: FineTuning,
    gpus: Sequence[str] = (),
    counts: Sequence[int] = COUNTS,
    terms: Terms | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Offer], list[Lacking]]:
    """Offers on several kinds and numbers of GPUs, the cheapest first; and where nothing fits.

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
    some = [
        (gpu, count) for gpu in gpus or listed for count in counts if gpus or count <= listed[gpu].get("most", count)
    ]
    offers: list[Offer] = []
    lacking: list[Lacking] = []
    wrong: list[SpecError] = []
    for done, (gpu, count) in enumerate(some):
        try:
            offers.append(offer_of(asked, gpu, count, terms))
        except InfeasiblePlan as error:
            lacking.append(Lacking(gpu, count, str(error)))
        except SpecError as error:  # such as a precision that this GPU has no units for
            wrong.append(error)
        if progress is not None:
            progress(done + 1, len(some))
    if len(wrong) == len(some):
        raise wrong[0]
    return sorted(offers, key=lambda offer: (offer.cost, offer.wall_s)), lacking


def in_budget(offers: Sequence[Offer], budget: float) -> list[Offer]:
    """The offers that a budget pays for, the fastest first."""
    return sorted((offer for offer in offers if offer.cost <= budget), key=lambda offer: offer.wall_s)


def remedies_of(
    asked: FineTuning, gpu: str, gpus: int, terms: Terms | None = None
) -> tuple[list[tuple[str, Offer]], list[str]]:
    """Changes that make a fine-tuning fit, as one types them, with what it then takes; and those that do not.

    Each was searched; the cheapest comes first. Where none is enough, each is tried with adapters.
    """
    found, useless = [], []
    ways = [*_changes(asked, gpu, gpus)]
    for words, some in ways:
        fitting = _first(some, gpu, terms)
        if fitting is None:
            useless.append(words)
        else:
            found.append((_typed(asked, gpu, gpus, fitting), fitting))
    if not found and not asked.rank:
        several = (_first(some, gpu, terms) for _, some in _changes(replace(asked, rank=RANK), gpu, gpus))
        found = [(_typed(asked, gpu, gpus, each), each) for each in several if each is not None]
    return sorted(found, key=lambda remedy: remedy[1].cost), useless


Way = tuple[FineTuning, str, int]


def _first(ways: Iterable[Way], gpu: str, terms: Terms | None) -> Offer | None:
    """The first of some ways that fits; a price that was given is that of the GPU that was asked for."""
    for asked, other, gpus in ways:
        with suppress(InfeasiblePlan):
            return offer_of(asked, other, gpus, terms if other == gpu else None)
    return None


def _changes(asked: FineTuning, gpu: str, gpus: int) -> Iterator[tuple[str, list[Way]]]:
    """What people change, each in the order in which it is tried."""
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


def _typed(asked: FineTuning, gpu: str, gpus: int, offer: Offer) -> str:
    """What an offer changes in a question, as one types it."""
    words = {
        "--lora": offer.asked.rank != asked.rank,
        "--offload": offer.asked.offload != asked.offload,
        f"--seq {offer.asked.length}": offer.asked.length != asked.length,
        f"--gpus {offer.gpus}": offer.gpus != gpus,
        f"--gpu {offer.gpu}": offer.gpu != gpu,
    }
    return " ".join(word for word, changed in words.items() if changed)
