"""Transfer: how good a prediction is of a framework that nothing is known of, measured on those that are known.

Each run's stack is replaced by what an unknown framework of its time gets; all that its row says stays, such as which
attention kernel ran. In the same way its GPU's profile is replaced by what a datasheet tells. Tables of one's own are
taken as they are stated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from flopcast_calibration.datasheet import table
from flopcast_calibration.readers.described import BEFORE_FLASH, UNKNOWN, version_of_unknown
from flopcast_validation.runs.anchored import GIVEN, Anchored, after_runs
from flopcast_validation.runs.export import file_of
from flopcast_validation.runs.scored import Scored, modelled
from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.specs import build_scenario
from sim.specs.frameworks import Date, date_of
from sim.specs.presets import datasheet_profile
from sim.uncertainty import is_unknown

FLASH: Date = (2023, 1)
"""Month from which an unknown framework is assumed to use flash attention, as in presets/frameworks/pytorch.yaml."""
Report = Callable[[int, int], None]
Changes = Callable[[Scored, dict[str, Any]], dict[str, Any]]
"""Sections of a run's scenario that are replaced, from the run and its file."""


def silent(done: int, total: int) -> None:
    """Reports nothing."""


class Transfer(NamedTuple):
    """Runs with their frameworks known and taken for unknown ones, and these after some were measured.

    datasheet : their GPUs known by the datasheet alone.
    after : by the number of runs that were given.
    """

    known: list[Scored]
    unknown: list[Scored]
    datasheet: list[Scored]
    after: dict[int, list[Anchored]]


def transfer(
    scored: Sequence[Scored], progress: Callable[[str], Any], shipped: bool = True, given: Sequence[int] = GIVEN
) -> Transfer:
    """Predict all of it; `progress` gives a context with what to report to.

    given : numbers of runs that are given.
    shipped : take frameworks for unknown ones, and GPUs as their datasheets have them.
    """
    unknown, datasheet, after = [], [], {}
    if shipped:
        with progress("runs taken for those of unknown frameworks") as report:
            unknown = as_unknown(scored, report or silent)
        with progress("runs on GPUs known by their datasheets") as report:
            datasheet = by_datasheet(scored, report or silent)
    for count in given:
        with progress(f"sources after {given_words(count)} of theirs") as report:
            after[count] = after_runs(unknown or modelled(scored), count, report or silent)
    return Transfer(modelled(scored), unknown, datasheet, after)


def given_words(count: int) -> str:
    """So many runs, in words."""
    return {1: "one run", 3: "three runs"}.get(count, f"{count} runs")


def as_unknown(scored: Sequence[Scored], report: Report = silent) -> list[Scored]:
    """The runs that were predicted, their frameworks taken for unknown ones; those that already were stay.

    `report` is called with (runs done, runs in all).
    """
    return _predicted_anew(scored, _unknown_stack, report)


def by_datasheet(scored: Sequence[Scored], report: Report = silent) -> list[Scored]:
    """The runs that were predicted, of their GPUs only the datasheet known: what the other GPUs have in common.

    Parameters as `as_unknown`.
    """
    return _predicted_anew(scored, _datasheet_profile, report)


def _unknown_stack(item: Scored, file: dict[str, Any]) -> dict[str, Any]:
    stack = item.scenario.stack
    if is_unknown(stack):
        return {}
    version, _ = version_of_unknown(item.run.gpu, item.scenario.training.precision)
    if date_of(stack.version, stack.framework) < FLASH:
        version = BEFORE_FLASH
    return {"stack": {**file["stack"], "framework": UNKNOWN, "version": version}}


@cache
def _table_without(family: str) -> dict[str, Any]:
    return table([family.lower()])


def _datasheet_profile(item: Scored, file: dict[str, Any]) -> dict[str, Any]:
    return {"profile": datasheet_profile(item.scenario.cluster.gpu, _table_without(item.scenario.profile.gpu))}


def _predicted_anew(scored: Sequence[Scored], changes: Changes, report: Report) -> list[Scored]:
    used = [item for item in scored if item.scenario is not None]
    answers: dict[int, Estimate | None] = {}
    found = []
    for done, item in enumerate(used, start=1):
        key = id(item.scenario)
        if key not in answers:
            answers[key] = _answer(item, changes)
        answer = answers[key]
        if answer is not None:
            fitted = item.fitted and answer.scenario == item.scenario
            found.append(replace(item, fitted=fitted).estimated(answer))
        if done % 50 == 0 or done == len(used):
            report(done, len(used))
    return found


def _answer(item: Scored, changes: Changes) -> Estimate | None:
    """The estimate with sections replaced; None where it cannot be."""
    file = file_of(item.run, item.scenario)
    replaced = changes(item, file)
    if not replaced:
        return estimate(item.scenario)
    try:
        return estimate(build_scenario(file | replaced, where=item.run.id))
    except FlopcastError:
        return None
