"""Machines side by side: the best plan of a question on each, and how many GPUs end its run by a deadline.

For a deadline usual sizes are tried in rising order, then whole nodes between the first that does and the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple

from sim.errors import InfeasiblePlan, SpecError
from sim.scaling.loss_laws import FLOP_PER_PARAM_TOKEN
from sim.scaling.questions import Planned, Pretraining, Question, job_sizes
from sim.specs.machines import price_list
from sim.units import show_time
from sim.work.sums import active_params


class Lacking(NamedTuple):
    """GPUs on which no plan of a question fits, and why."""

    gpu: str
    gpus: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {"gpu": self.gpu, "gpus": self.gpus, "fits": False, "lacking": self.why}


class Ranking(NamedTuple):
    """Plans for several machines, the cheapest first, and the machines on which nothing fits."""

    offers: tuple[Planned, ...]
    lacking: tuple[Lacking, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        best, lacking = [each.offer() for each in self.offers], [each.to_dict() for each in self.lacking]
        return {"best": best, "all": [*best, *lacking]}


def rank(
    asked: Question,
    counts: Sequence[int],
    gpus: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Ranking:
    """The best plans on some numbers of GPUs of each preset, by default of all that the price list has."""
    listed = price_list()
    some = [
        (gpu, count) for gpu in gpus or listed for count in counts if gpus or count <= listed[gpu].get("most", count)
    ]
    offers: list[Planned] = []
    lacking: list[Lacking] = []
    wrong: list[SpecError] = []
    for done, (gpu, count) in enumerate(some):
        try:
            offers.append(asked.planned(gpu, count))
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
    return Ranking(tuple(sorted(offers, key=lambda each: each.rank)), tuple(lacking))


MOST = 32
"""GPUs that are tried at most, over the fewest that would do at their peak: below 3 % of it more GPUs hardly help."""


HALVINGS = 4
"""Sizes that are tried between two usual ones, which lie a quarter apart at most: down to 2 % of their number."""


@dataclass(frozen=True, slots=True)
class InTime:
    """The fewest GPUs found on which a run ends in time, or the chance that it does on the GPUs given.

    planned : the best plan and the run on as many as are expected to.
    certain : on the fewest whose 90 % interval ends in time; None where no number does that was tried.
    given : the number of GPUs was given, and no other tried.
    """

    within_s: float
    planned: Planned
    certain: Planned | None
    given: bool = False

    @property
    def gpus(self) -> int:
        """How many GPUs."""
        return self.planned.answer.num_gpus

    @property
    def chance(self) -> float:
        """Probability that the run on them ends in time. Its length is proportional to that of a step."""
        return self.planned.answer.interval.chance_below(self.within_s / self.planned.run.wall_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON: those of the plan, and the deadline under `within`."""
        certain = None
        if self.certain is not None:
            run = self.certain.run
            certain = {"num_gpus": run.num_gpus, "days": run.days, "cost": run.cost}
        within = {"seconds": self.within_s, "num_gpus": self.gpus, "chance": self.chance, "certain": certain}
        return {**self.planned.to_dict(), "within": within}


def in_time(
    asked: Pretraining, within_s: float, machine: str, progress: Callable[[int, int], None] | None = None
) -> InTime:
    """The fewest GPUs of a kind of machine on which a run ends in time.

    Raises SpecError: no size ends in time; the message has the shortest run. InfeasiblePlan: no plan fits on any size.
    """
    sizes, node_gpus = _sizes(asked, within_s, machine)
    tried: dict[int, Planned] = {}
    refused: list[InfeasiblePlan] = []

    def wall_s(size: int, sure: bool) -> float:
        """Expected time of the run on so many GPUs, or the end of its 90 % interval; infinite where no plan fits."""
        if progress is not None:
            progress(len(tried), len(sizes) + 2 * HALVINGS)
        try:
            tried[size] = tried.get(size) or asked.planned(machine, size)
        except InfeasiblePlan as error:
            refused.append(error)
            return inf
        return (tried[size].ends.high if sure else tried[size].run).wall_s

    enough = _fewest(sizes, node_gpus, lambda size: wall_s(size, sure=False) <= within_s)
    certain = _fewest(sizes, node_gpus, lambda size: wall_s(size, sure=True) <= within_s)
    if enough is not None:
        return InTime(within_s, tried[enough], None if certain is None else tried[certain])
    if not tried:
        raise InfeasiblePlan(
            f"no run ends within {show_time(within_s)}: it would take {sizes[0]:,} GPUs or more at their peak rate, "
            f"and {refused[-1]}"
        )
    best = min((planned.run for planned in tried.values()), key=lambda run: run.wall_s)
    raise SpecError(
        f"no run ends within {show_time(within_s)} on up to {sizes[-1]:,} GPUs: the shortest takes "
        f"{show_time(best.wall_s)}, on {best.num_gpus:,}; allow that long, or ask for fewer tokens or a larger --batch"
    )


def _fewest(sizes: Sequence[int], node_gpus: int, ends: Callable[[int], bool]) -> int | None:
    """The first of some sizes on which a run ends in time, or fewer whole nodes; None where it does on none."""
    found = next((size for size in sizes if ends(size)), None)
    if found is None:
        return None
    below = max((size for size in sizes if size < found), default=found)
    for _ in range(HALVINGS):
        middle = (below + found) // 2 // node_gpus * node_gpus
        if middle <= below:
            break
        if ends(middle):
            found = middle
        else:
            below = middle
    return found


def _sizes(asked: Pretraining, within_s: float, machine: str) -> tuple[list[int], int]:
    """Numbers of GPUs to try, from the fewest that would do at their peak rate; and those of a node."""
    assert asked.tokens is not None
    scenario = asked.scenario(machine, 1)
    peak = scenario.cluster.gpu.peak(scenario.training.peak_precision)
    flop = FLOP_PER_PARAM_TOKEN * float(active_params(scenario.model)) * asked.tokens
    least, node_gpus = flop / peak / within_s, scenario.cluster.node.gpus_per_node
    most = max(float(node_gpus), MOST * least)
    return [*takewhile(lambda size: size <= most, job_sizes(least, node_gpus))], node_gpus
