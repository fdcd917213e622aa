"""Transfer: how good a prediction is of a framework that nothing is known of, measured on those that are known.

Each run's stack is replaced by what an unknown framework of its time gets; all that its row says stays, such as which
attention kernel ran. In the same way its GPU's profile is replaced by what a datasheet tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from flopcast_calibration.datasheet import table
from flopcast_calibration.readers.described import BEFORE_FLASH, UNKNOWN, version_of_unknown
from flopcast_validation.runs.anchored import predicted_as
from flopcast_validation.runs.export import file_of
from flopcast_validation.runs.scored import Scored
from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.specs import build_scenario
from sim.specs.frameworks import Date, date_of
from sim.specs.presets import datasheet_profile
from sim.uncertainty import is_unknown, shares_of

FLASH: Date = (2023, 1)
"""Month from which an unknown framework is assumed to use flash attention, as in presets/frameworks/pytorch.yaml."""
Report = Callable[[int, int], None]
Changes = Callable[[Scored, dict[str, Any]], dict[str, Any]]
"""Sections of a run's scenario that are replaced, from the run and its file."""


def silent(done: int, total: int) -> None:
    """Reports nothing."""


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
    if is_unknown(item.scenario.stack):
        return {}
    stack = item.scenario.stack
    if date_of(stack.version, stack.framework) < FLASH:
        version = BEFORE_FLASH
    else:
        version, _ = version_of_unknown(item.run.gpu, item.scenario.training.precision)
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
            shares = shares_of(answer.breakdown.shares())
            told = {"fits": answer.fits, "extrapolated": answer.extrapolated, "shares": shares}
            changed = replace(item, **told, fitted=item.fitted and answer.scenario == item.scenario)
            found.append(predicted_as(changed, answer.scenario, answer.step_time_s))
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
