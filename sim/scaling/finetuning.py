"""Fine-tuning: does it fit, what would make it fit, how many hours does it take and what does it cost, on which GPUs?

The plan is searched on every machine: micro-batch, ZeRO stage, recomputation. What does not fit so is asked again with
what people change first, and each change that is named has been searched and fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sim.errors import InfeasiblePlan
from sim.scaling.offers import Lacking
from sim.scaling.questions import Planned, Question, batch_of, length_of, precision_of, sequences_near
from sim.scaling.run import Terms
from sim.search.room import DEFAULT as ROOM
from sim.specs import GpuSpec, ModelSpec, load_preset
from sim.specs.loading import resolve
from sim.specs.machines import price_list

FRAMEWORK = "deepspeed"
"""Framework of fine-tuning where nobody names one: Hugging Face's Trainer with DeepSpeed, which shards states and moves
them to the host, and with fused kernels."""
LENGTH = 2048
"""Tokens a sample: LLaMA-Factory's cutoff_len."""
BATCH = 64
"""Samples a step: Llama 2's supervised fine-tuning (arXiv:2307.09288, section 3.1)."""
RANK = 8
"""Rank of adapters: the default of Hugging Face's PEFT."""
COUNTS = (1, 2, 4, 8)
"""GPUs that are tried where nobody says how many."""
CHUNKED = "deepspeed-liger"
"""Framework of fine-tuning whose loss never holds all logits."""
SHORTEST = 256
"""Tokens a sample below which a remedy does not go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning(Question):
    """What is to be fine-tuned, and how far the caller said how.

    samples : number of samples, such as 50k.
    epochs : how often each sample is seen.
    rank : rank of low-rank adapters. 0: all weights are trained, or `qlora` says it.
    qlora : rank of low-rank adapters beside weights in 4 bits. 0: weights are in 16 bits.
    offload : states and activations may be kept in host memory.
    """

    samples: float
    epochs: float = 3.0
    rank: int = 0
    qlora: int = 0
    offload: bool = False

    usual: ClassVar[tuple[str, str]] = (
        FRAMEWORK,
        f"framework {FRAMEWORK}: Hugging Face's Trainer with ZeRO (--framework)",
    )

    @property
    def room(self) -> tuple[str, ...]:
        """Ways to make room for plans that do not fit else."""
        return (*ROOM, "offload") if self.offload else ROOM

    def fields(self, model: ModelSpec, gpu: GpuSpec, gpus: int) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Fields of the training section, and what they take for granted."""
        length, _ = length_of(model, self.length, LENGTH)
        precision, of_precision = precision_of(gpu, self.precision)
        usual = f"a batch near {BATCH} samples, as Llama 2's (arXiv:2307.09288, section 3.1; --batch)"
        own = None if self.batch is None else batch_of(self.batch, length, gpus)
        size, of_batch = own or (sequences_near(BATCH, gpus), (usual,))
        whole = f"every sample has {length:,} tokens, as if each were the longest (--seq)"
        often = f"every sample is seen {self.epochs:g} time{'s' * (self.epochs != 1)} (--epochs)"
        notes = [often, whole, *of_batch, *of_precision]
        rank = self.rank or self.qlora
        if rank:
            beside = "4 bits (NF4)" if self.qlora else precision
            adapters = f"adapters of rank {rank} on all linears of layers, beside frozen weights in {beside}"
            kernels = "They save memory, but their kernels can take longer than the gradients that they save"
            notes.insert(0, f"{adapters}. {kernels}")
        said = {
            "global_batch_size": size,
            "sequence_length": length,
            "precision": precision,
            "adapter_rank": rank,
            "frozen_precision": "nf4" if self.qlora else None,
            "tokens": self.samples * self.epochs * length,
        }
        return said, notes


@dataclass(frozen=True, slots=True)
class Unfit:
    """A fine-tuning that does not fit, and changes that make it fit.

    remedies : each change as one types it, with what it then takes; the cheapest first.
    useless : changes that are not enough by themselves.
    """

    lacking: Lacking
    remedies: tuple[tuple[str, Planned], ...]
    useless: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        found = [{"change": words, **each.offer()} for words, each in self.remedies]
        return {**self.lacking.to_dict(), "remedies": found, "do_not_help": list(self.useless)}


def tune(asked: FineTuning, gpu: str, gpus: int) -> Planned | Unfit:
    """The best plan for a fine-tuning on so many GPUs of a preset; where none fits, what would make it fit.

    Each change was searched; the cheapest comes first. Where none is enough, each is tried with adapters beside 4-bit
    weights.
    """
    try:
        return asked.planned(gpu, gpus)
    except InfeasiblePlan as error:
        lacking = Lacking(gpu, gpus, str(error))
    tried = [(label, _first(ways)) for label, ways in _changes(asked, gpu, gpus)]
    found = [fitting for _, fitting in tried if fitting]
    if not found and not asked.qlora:
        narrow = replace(asked, rank=0, qlora=asked.rank or RANK)
        more = (_first(ways) for _, ways in _changes(narrow, gpu, gpus))
        found = [(f"--qlora {words}", fitting) for words, fitting in filter(None, more)]
    enough = [f"{words} " for words, _ in found]  # what needs a second change beside one that is enough is left out
    found = [each for each in found if not each[0].startswith(tuple(enough))]
    remedies = sorted(found, key=lambda remedy: remedy[1].rank)
    return Unfit(lacking, tuple(remedies), tuple(label for label, fitting in tried if fitting is None))


def with_fused_kernels(asked: FineTuning, found: Planned) -> Planned | None:
    """The best plan with Liger's kernels on the same GPUs; None where they shorten the run by less than 2 %, or where
    the framework is not the one that they replace kernels of."""
    if found.answer.scenario.stack.framework != FRAMEWORK:
        return None
    fused = _first([(CHUNKED, replace(asked, framework=CHUNKED), found.machine, found.answer.num_gpus)])
    return fused[1] if fused and fused[1].run.wall_s < 0.98 * found.run.wall_s else None


Way = tuple[str, FineTuning, str, int]
"""A change as one types it, and the question, the GPU and how many of them after it."""


def _first(ways: Sequence[Way]) -> tuple[str, Planned] | None:
    """The first of some ways that fits."""
    for words, asked, card, gpus in ways:
        with suppress(InfeasiblePlan):
            return words, asked.planned(card, gpus)
    return None


def _changes(asked: FineTuning, gpu: str, gpus: int) -> Iterator[tuple[str, list[Way]]]:
    """What people change, each in the order in which it is tried."""
    adapted = asked.rank or asked.qlora
    fused = asked.scenario(gpu, gpus).stack.chunked_loss
    here = {
        "--lora": None if adapted else replace(asked, rank=RANK),
        "--qlora": None if asked.qlora else replace(asked, rank=0, qlora=asked.rank or RANK),
        "--offload": None if asked.offload else replace(asked, offload=True),
        f"--framework {CHUNKED}": None if fused else replace(asked, framework=CHUNKED),
    }
    yield from ((words, [(words, changed, gpu, gpus)]) for words, changed in here.items() if changed)
    # A limit, a profile and a price are of the GPU that was asked for; a larger one has its own.
    free, limit = replace(asked, memory_limit_bytes=None), "without --memory-limit"
    if asked.memory_limit_bytes is not None:
        narrow = here["--qlora"] and replace(here["--qlora"], memory_limit_bytes=None)
        yield limit, [(limit, free, gpu, gpus), *([(f"--qlora {limit}", narrow, gpu, gpus)] if narrow else [])]
    length, _ = length_of(ModelSpec.read(resolve(asked.model, "model"), "model"), asked.length, LENGTH)
    shorter = [length >> halvings for halvings in range(1, 20) if length >> halvings >= SHORTEST]
    if shorter:
        yield f"--seq {shorter[-1]}", [(f"--seq {each}", replace(asked, length=each), gpu, gpus) for each in shorter]
    more = [gpus << doublings for doublings in range(1, 7) if gpus << doublings <= 64]
    if more:
        yield f"--gpus {more[-1]}", [(f"--gpus {each}", asked, gpu, each) for each in more]
    listed = price_list()
    larger = [each for each in listed if _memory(each) > _memory(gpu) and gpus <= listed[each].get("most", gpus)]
    larger.sort(key=lambda each: listed[each]["price"])
    if larger:
        other = replace(free, profile=None, terms=Terms())
        words = "" if asked.memory_limit_bytes is None else f" {limit}"
        yield "a GPU with more memory", [(f"--gpu {each}{words}", other, each, gpus) for each in larger]


def _memory(gpu: str) -> float:
    return GpuSpec.read(load_preset("gpus", gpu), gpu).memory_bytes
