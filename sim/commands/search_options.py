"""The options of `flopcast search`, read and checked before any work is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from sim.commands.fills import Fills, Opt
from sim.commands.options import read_numbers, read_range
from sim.errors import FlopcastError, SpecError
from sim.search import SearchResult, search
from sim.specs import Scenario
from sim.units import parse

OWN = "own"
"""The word in --why for the scenario's own plan. Fields beside it change that plan, and nothing is left free."""
TOP = 10
"""Plans that are shown unless more or fewer are asked for."""

GONE = {
    "save": "a whole search takes seconds, so ask again with --objective, --why or --pareto; in Python "
    "search(scenario).to_frame() is the table of all plans, which pandas writes as Parquet or CSV",
    "jobs": "one core prices a million plans a second; sim.parallel.map_over puts scenarios, seeds or the points of "
    "a sweep on any executor of concurrent.futures",
}
"""Options of earlier releases, and what to do instead."""


def refuse_gone(**given: str | None) -> None:
    """Refuse options of earlier releases.

    Raises
    ------
    SpecError
        Names one, and what to do instead.
    """
    for name, value in given.items():
        if value is not None:
            raise SpecError(f"--{name} is gone: {GONE[name]}")


SPACE = Fills(
    search,
    *("scenario", "top", "confirm", "context", "experts", "fixed", "export_to", "progress", "require_fit"),
    gpus=Opt(read=lambda words, _: read_range(words), help="Number of GPUs, such as 1024, or a range: 64..4096."),
    max_gpus=Opt(help="Plans use no more GPUs than this."),
    memory_limit_bytes=Opt(
        "--memory-limit",
        read=lambda words, _: read_limit(words),
        help="Memory that a plan may use of a GPU, such as 72 GB; default: all the driver gives.",
    ),
    objective=Opt(help="What is best: step_time, days, cost or memory_headroom."),
    overlaps=Opt("--overlaps", help="Also switch overlaps on and off: sends, reductions, gathers, tensor backwards."),
    room=Opt(
        read=lambda words, _: _ways(words),
        default="modules,block",
        metavar="WAYS",
        help="How plans that do not fit may save memory: recompute some modules, recompute a block of layers, offload, "
        "or none.",
    ),
    layouts=Opt(
        "--layouts/--no-layouts",
        help="Also balance layers over the stages; default: if the framework can.",
    ),
    windows=Opt("--windows", help="Also try larger groups of micro-batches per chunk (interleaved)."),
    any_framework=Opt("--any-framework", help="Also search plans that the scenario's framework cannot run."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Which plans are searched, and what makes one of them the best."""

    space: Annotated[partial[SearchResult], SPACE]
    batch: Annotated[int | None, Option(help="Sequences per step, instead of the scenario's.")] = None
    cp: Annotated[
        str | None, Option(help="Context-parallel degrees, such as 1,2,4; default: those that keep pieces long.")
    ] = None
    ep: Annotated[str | None, Option(help="Expert-parallel degrees, such as 8,16; default: all that suit.")] = None
    fix: Annotated[
        list[str] | None,
        Option(
            metavar="FIELD[=VALUE]",
            help="Keep a field of the plan: tp=8, or tp for the scenario's own value. Same as -s plan.tp=8.",
        ),
    ] = None

    def arguments(self, scenario: Scenario, swept: bool) -> dict[str, Any]:
        """What they are to a search of this scenario, some of whose numbers a sweep may change."""
        found = dict(self.space.keywords)
        length, experts = (0, 0) if swept else (scenario.training.sequence_length, scenario.model.num_experts)
        if self.cp is not None:
            found["context"] = _degrees(self.cp, "--cp", length, f"sequence of {length:,} tokens")
        if self.ep is not None:
            found["experts"] = _degrees(self.ep, "--ep", experts, f"{experts:,} experts")
        return found


@dataclass(frozen=True, slots=True)
class Questions:
    """What else is asked about the plans, or instead of the best of them."""

    schedules: Annotated[
        str | None,
        Option(metavar="NAMES", help="Also show the best plan of each of these schedules, such as zb_v,zb_h1, or all."),
    ] = None
    others: Annotated[bool, Option("--others", hidden=True, help="Short for --schedules all.")] = False
    pareto: Annotated[bool, Option("--pareto", help="Also show the Pareto front of time, memory, GPUs and cost.")] = (
        False
    )
    sensitivity: Annotated[
        bool, Option("--sensitivity", help="Also show what each value of tp, pp and so on would cost, and why.")
    ] = False
    rules: Annotated[
        bool, Option("--rules", help="Also show what Megatron's rules of thumb choose, and what that costs.")
    ] = False
    sweep: Annotated[
        list[str] | None,
        Option(
            metavar="FIELD=VALUES",
            help="Show instead how the best plan changes with a number of the scenario: a..b, a..b:N or a,b,c. Twice "
            "for a map.",
        ),
    ] = None
    fields: Annotated[bool, Option("--fields", help="List the numbers that --sweep can change.")] = False
    figure: Annotated[
        Path | None, Option(help="File for the figure of --sweep, --sensitivity or --pareto (.png, .svg).")
    ] = None
    top: Annotated[int, Option(help="How many plans to show.")] = TOP
    risk: Annotated[
        float | None,
        Option(
            help="Rank by the step time that a plan stays below with this probability, such as 0.9, instead of by the "
            "expected one. Not together with --why, --rules, --sensitivity or --pareto.",
        ),
    ] = None
    why: Annotated[
        list[str] | None,
        Option(
            metavar="FIELD=VALUE",
            help="Explain why a plan with these fields is not the best: plan.tp=4, or own for the scenario's plan. Not "
            "together with --risk.",
        ),
    ] = None

    @property
    def named_schedules(self) -> str | None:
        """Schedules to search beside those that have a formula."""
        return self.schedules or ("all" if self.others else None)

    @property
    def asked(self) -> dict[str, bool]:
        """Questions about the plans, by their options, and whether they are asked."""
        answers = (bool(self.why), self.rules, self.sensitivity, self.pareto)
        return dict(zip(("--why", "--rules", "--sensitivity", "--pareto"), answers, strict=True))

    def check(self, output: Path | None, export_to: str | None) -> None:
        """Refuse what has nothing to say beside --sweep or --fields, and files that cannot be written.

        Raises
        ------
        SpecError
            Names the options, before any work is done.
        """
        instead = "--fields" if self.fields else "--sweep" if self.sweep else None
        beside = {"--schedules": self.named_schedules is not None, "-o": output is not None}
        beside |= {"--export": export_to is not None, "--sweep": bool(self.sweep) and self.fields}
        others = [word for word, on in {**self.asked, **beside}.items() if on]
        idle = ["--top"] * (self.top != TOP) + ["--figure"] * (self.fields and self.figure is not None)
        others += ["--risk"] * bool(instead and self.risk is not None)
        if self.risk is not None and (asked := [word for word, on in self.asked.items() if on]):
            raise SpecError(
                f"--risk ranks plans by what they stay below, and {' and '.join(asked)} compares expected step times; "
                "ask them one after the other"
            )
        if instead and others:
            raise SpecError(
                f"{instead} asks another question than {' and '.join(others)}; ask them one after the other"
            )
        if instead and idle:
            raise SpecError(f"{' and '.join(idle)} would change nothing beside {instead}; leave out what does nothing")
        drawn = {"--sweep": bool(self.sweep), "--sensitivity": self.sensitivity, "--pareto": self.pareto}
        check_files(drawn, None if self.fields else self.figure, output)


def read_limit(text: str) -> float:
    """Memory that a plan may use of a GPU. [bytes]"""
    limit = parse(text, "bytes")
    if limit <= 0:
        raise SpecError(f"--memory-limit {text!r} must be above zero, such as '72 GB'")
    return limit


def _degrees(text: str, option: str, of: int, what: str) -> tuple[int, ...]:
    """Degrees of `1,2,4`, each of which must divide a number of something."""
    degrees = read_numbers(text, option)
    wrong = [each for each in degrees if of % each]
    if wrong:
        able = [each for each in range(1, min(of, 64) + 1) if of % each == 0]
        more = " …" if of > able[-1] or len(able) > 8 else ""
        raise SpecError(
            f"{option} {wrong[0]} must divide the {what}; degrees that do: {', '.join(map(str, able[:8]))}{more}"
        )
    return degrees


def _ways(text: str) -> tuple[str, ...]:
    """Ways to make room for plans of `modules,block`; none of `none`."""
    from sim.search.room import check_ways

    names = [each.strip() for each in text.split(",") if each.strip()]
    if names == ["none"]:
        return ()
    if not names:
        raise SpecError("--room names no way; write --room modules,block,offload, or none")
    return check_ways(names)


def read_fields(words: Sequence[str]) -> tuple[bool, dict[str, Any]]:
    """(whether the scenario's own plan is meant, the plan's fields) that --why names."""
    from sim.specs.yaml12 import parse_yaml

    own, named = False, {}
    for field in (each for text in words for each in text.split()):
        if field == OWN:
            own = True
            continue
        path, equals, value = field.partition("=")
        if not equals or not value:
            raise SpecError(f"--why {field!r} must look like plan.tp=4, or be {OWN} for the scenario's own plan")
        name = path.removeprefix("plan.")
        if name in named:
            raise SpecError(f"--why names {path!r} twice; keep one")
        named[name] = parse_yaml(value, f"--why {field!r}")
    if words and not named and not own:
        raise SpecError(f"--why names no field; write --why plan.tp=4, or --why {OWN} for the scenario's own plan")
    return own, named


def check_numbers(**given: int | None) -> None:
    """Refuse counts below one.

    Raises
    ------
    SpecError
        Names the option, as it is typed, and its value.
    """
    for name, number in given.items():
        if number is not None and number < 1:
            raise SpecError(f"--{name.replace('_', '-')} {number} must be one or more")


def check_files(drawn: Mapping[str, bool], figure: Path | None, output: Path | None) -> None:
    """Refuse files that cannot be written.

    Parameters
    ----------
    drawn : mapping
        Options that --figure draws, and whether they are there.
    """
    if output is not None and not output.parent.is_dir():
        raise SpecError(f"cannot write {output}: there is no folder {output.parent}")
    if output is not None and output.is_dir():
        raise SpecError(f"cannot write {output}: it is a folder; give the name of a file in it, such as best.yaml")
    if figure is not None:
        from sim.report.figures import check_paths

        found = [word for word, on in drawn.items() if on]
        if len(found) != 1:
            there = " and ".join(found) if found else "none of them"
            raise SpecError(f"--figure draws one of --sweep, --sensitivity and --pareto, but there is {there}")
        check_paths([figure])


def load_with_fixed(
    path: Path, overrides: Sequence[str], fix: Sequence[str], profile: str | None
) -> tuple[Scenario, dict[str, Any]]:
    """The scenario with its file's own plan, and the fields of plans that --set and --fix keep.

    Raises
    ------
    SpecError
        A field that no plan has, or one that is set twice.
    """
    from sim.search.fixed import as_fixed
    from sim.specs import load_scenario

    of_plan = [each for each in overrides if each.startswith("plan.")]
    try:
        found = load_scenario(path, [each for each in overrides if each not in of_plan], profile)
    except FlopcastError:  # the file's own plan does not suit what else is set
        found = load_scenario(path, overrides, profile)
    return as_fixed(found, [*of_plan, *fix])
