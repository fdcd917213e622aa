"""Machines side by side: the best plan of a question on each kind and number of GPUs, and the run that it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sim.errors import InfeasiblePlan, SpecError
from sim.scaling.questions import Planned, Question
from sim.scaling.training import Training
from sim.search.candidate import facts_of
from sim.specs.machines import price_list


@dataclass(frozen=True, slots=True)
class Offer:
    """A question that so many GPUs of a preset can answer: its best plan, and the run that it makes."""

    gpu: str
    gpus: int
    planned: Planned

    @property
    def training(self) -> Training:
        """The run, which every question that is compared has."""
        assert self.planned.training is not None
        return self.planned.training

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
    """GPUs on which no plan of a question fits, and why."""

    gpu: str
    gpus: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {"gpu": self.gpu, "gpus": self.gpus, "fits": False, "lacking": self.why}


class Ranking(NamedTuple):
    """Offers of several machines, the cheapest first, and the machines on which nothing fits."""

    offers: tuple[Offer, ...]
    lacking: tuple[Lacking, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        best, lacking = [each.to_dict() for each in self.offers], [each.to_dict() for each in self.lacking]
        return {"best": best, "all": [*best, *lacking]}


def offer(asked: Question, gpu: str, gpus: int, **options: Any) -> Offer:
    """The best plan of a question on so many GPUs of a preset, and its run; options are those of `plan_of`."""
    planned = asked.planned(gpu, gpus, **options)
    if not planned.result.finished:
        raise KeyboardInterrupt  # who stops one search stops them all
    return Offer(gpu, gpus, planned)


def rank(
    asked: Question,
    counts: Sequence[int],
    gpus: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Ranking:
    """The offers of some numbers of GPUs of each preset, by default of all that the price list has."""
    listed = price_list()
    some = [
        (gpu, count) for gpu in gpus or listed for count in counts if gpus or count <= listed[gpu].get("most", count)
    ]
    offers: list[Offer] = []
    lacking: list[Lacking] = []
    wrong: list[SpecError] = []
    for done, (gpu, count) in enumerate(some):
        try:
            offers.append(offer(asked, gpu, count, **options))
        except InfeasiblePlan as error:
            lacking.append(Lacking(gpu, count, str(error)))
        except SpecError as error:  # such as a precision that this GPU has no units for
            wrong.append(error)
        if progress is not None:
            progress(done + 1, len(some))
    if len(wrong) == len(some):
        raise wrong[0]
    if not offers:
        raise InfeasiblePlan(
            f"it fits on none of the {len(lacking)} machines: {lacking[-1].why}. Name one with --gpu and --gpus for "
            "what would help"
        )
    return Ranking(tuple(sorted(offers, key=lambda each: (each.cost, each.wall_s))), tuple(lacking))
