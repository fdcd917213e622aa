"""A measured run beside its estimate, in a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from math import log

from rich.console import Group, RenderableType
from rich.text import Text

from sim.assumptions import third_parties
from sim.check import Check
from sim.foreign.logs import LoggedSteps
from sim.report.terminal import assumptions, indented, title
from sim.table import facts_table
from sim.units import show_time, significant

_UNEXPLAINED = log(1.1)
"""What the best cause may leave, as a logarithm, and still be said to explain the run."""


def check_view(found: Check, logged: LoggedSteps, command: str, made: str, anchor: str) -> Iterator[RenderableType]:
    """The verdict, what was measured, what to look at first, and where the measurement can go.

    Commands are texts, which a terminal does not cut: command estimates the scenario, to which changes are added;
    `made` makes its file of the log, where there is none; `anchor` draws a profile to the run.
    """
    yield Group(Text(verdict_words(found), style="bold"), "", indented(_facts(found, logged.source)), "")
    if made:
        yield title("The log has the arguments of the run. This line writes them as a scenario:")
        yield f"  {made}\n"
    if found.verdict != "normal":
        yield from _causes(found, command)
        yield ""
    condition = "" if found.verdict == "normal" else ", if nothing is wrong"
    yield title(f"Next{condition}: fit a profile to your run, for all further estimates.")
    yield f"  {anchor}"
    notes = (found.answer.interval_basis, *third_parties(found.answer.scenario), *logged.notes)
    yield Group(*assumptions(notes))


def verdict_words(found: Check) -> str:
    """The verdict in a sentence."""
    border = found.normal_s[found.measured.seconds > found.answer.step_time_s]
    apart = found.verdict == "normal"
    digits = next((n for n in (3, 4, 5) if apart or show_time(border, n) != show_time(found.measured.seconds, n)), 6)
    low, high = (show_time(each, digits) for each in found.normal_s)
    taken, ratio = show_time(found.measured.seconds, digits), found.measured.seconds / found.answer.step_time_s
    if found.verdict == "normal":
        return f"Your run is normal: {taken} a step; we expect {low} to {high}."
    times = max(ratio, 1 / ratio)
    factor = f"{times - 1:.0%} {'longer' if ratio > 1 else 'faster'} than our estimate"
    if times >= 2:
        factor = f"{significant(times, 2)} times as {'long' if ratio > 1 else 'fast'} as our estimate"
    word = "slow" if ratio > 1 else "faster than we expect"
    most = found.answer.step_time_interval_s[1]
    inside = f" Slower than {high} counts as slow, even inside the 90% interval, which ends at {show_time(most)}."
    others = inside if ratio > 1 and most > found.normal_s[1] else ""
    return f"Your run is {word}: {taken} a step, {factor}; we expect {low} to {high}.{others}"


def _facts(found: Check, source: str) -> RenderableType:
    measured = found.measured
    left = {"of warm-up": measured.warm_up, "of evaluations, checkpoints or restarts": measured.interrupted}
    parts = ", ".join(f"{number:,} {what}" for what, number in left.items() if number)
    many = f"median of {measured.values:,} values" if measured.values > 1 else "one value of the run"
    rows = [
        ("Measured", show_time(measured.seconds), f"{source}, {many}{'; left out: ' * bool(parts)}{parts}"),
        ("Expected", show_time(found.answer.step_time_s), f"stack {found.answer.scenario.stack.name}"),
    ]
    if measured.values > 1:
        slow, fast = (significant(each / measured.seconds, 3) for each in (measured.slow_s, measured.fast_s))
        words = f"{'uneven' if measured.stalls else 'even'} steps: four in five take {fast} to {slow} of the median"
        if fast == slow:
            words = "even steps: four in five take as long as the median, to three digits"
        rows.append(("Spread", slow, words))
    if every := measured.every:
        rows.append(("Slow steps", f"{every}", f"one of every {every} values is slower than the others"))
    return facts_table(rows)


def _causes(found: Check, command: str) -> Iterator[RenderableType]:
    if not found.causes:
        yield Text("No single change of the scenario explains it. First check its model, tokens and GPUs.")
        return
    ratio = found.measured.seconds / found.answer.step_time_s
    chance = f"  (each changes one thing in the scenario; nothing is wrong: {found.as_stated:.0%} likely)"
    yield title("What to look at first", chance, "not bold dim")
    for number, each in enumerate(found.causes, start=1):
        explained, step_s = found.explained(each), show_time(each.step_times_s[0])
        share = "more than the difference" if explained > 1.2 else f"{min(explained, 1):.0%} of the difference"
        said = f"a step would take {step_s}, which explains {share}"
        if not each.changes:
            said = f"fast steps of the log take {step_s}, so stalls explain {share}"
        words = f"{said} ({each.probability:.0%} likely). Look at: {each.look}."
        yield indented(title(f"{number}. {each.name[0].upper()}{each.name[1:]}: ", words))
        if each.changes:
            yield " ".join((f"     {command}", *(f"-s {shlex.quote(change)}" for change in each.changes)))
    if all(abs(found.explained(each) - 1.0) * abs(log(ratio)) > _UNEXPLAINED for each in found.causes):
        words = "None of them alone gives the measured time. Several may be at work, or the run is another than stated."
        yield indented(Text(words))
