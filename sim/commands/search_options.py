"""The options of `flopcast search`, read and checked before any work is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sim.commands.options import MemoryLimit, read_numbers, read_range
from sim.errors import FlopcastError, SpecError

if TYPE_CHECKING:
    from sim.specs import Scenario

OWN = "own"
"""In --why: the scenario's own plan, so that the fields beside it are changes of that and nothing is left free."""
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


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    """Which plans are searched, and what makes one of them the best."""

    gpus: Annotated[str | None, Option(help="How many GPUs, such as 64..4096 or 1024.")] = None
    objective: Annotated[str, Option(help="step_time, days, cost or memory_headroom.")] = "step_time"
    max_gpus: Annotated[int | None, Option(help="No plan of more GPUs.")] = None
    memory_limit: MemoryLimit = None
    batch: Annotated[int | None, Option(help="Sequences a step, instead of the scenario's.")] = None
    cp: Annotated[
        str | None, Option(help="Context-parallel degrees, such as 1,2,4; those with long pieces if not given.")
    ] = None
    ep: Annotated[str | None, Option(help="Expert-parallel degrees, such as 8,16,32; all that suit if not given.")] = (
        None
    )
    overlaps: Annotated[bool, Option("--overlaps", help="Also switch the stack's overlaps on and off.")] = False
    room: Annotated[
        str | None,
        Option(
            metavar="WAYS",
            help="What plans may do that do not fit else: modules, block (layers), offload, or none; modules,block "
            "if not given.",
        ),
    ] = None
    fix: Annotated[
        list[str] | None,
        Option(
            metavar="FIELD[=VALUE]",
            help="Keep a field of the plan: tp=8, or tp for the scenario's own value; -s plan.tp=8 does the same.",
        ),
    ] = None
    any_framework: Annotated[
        bool, Option("--any-framework", help="Also plans that the scenario's framework cannot run.")
    ] = False
    layouts: Annotated[
        bool | None,
        Option(
            "--layouts/--no-layouts",
            help="Also deal layers so that no stage is slower than it must be; if the framework has it, unless said.",
        ),
    ] = None
    windows: Annotated[
        bool, Option("--windows", help="Also larger groups of micro-batches that visit a chunk (interleaved).")
    ] = False

    def arguments(self, scenario: Scenario, swept: bool) -> dict[str, Any]:
        """What they are to a search of this scenario, some of whose numbers a sweep may change."""
        found: dict[str, Any] = {
            "gpus": None if self.gpus is None else read_range(self.gpus),
            "max_gpus": self.max_gpus,
            "memory_limit_bytes": None if self.memory_limit is None else read_limit(self.memory_limit),
            "objective": self.objective,
            "overlaps": self.overlaps,
            "layouts": self.layouts,
            "windows": self.windows,
            "any_framework": self.any_framework,
        }
        if self.room is not None:
            found["room"] = _ways(self.room)
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
        Option(metavar="NAMES", help="Also the best plan of each of these schedules, such as zb_v,zb_h1, or all."),
    ] = None
    others: Annotated[bool, Option("--others", hidden=True, help="Short for --schedules all.")] = False
    pareto: Annotated[
        bool, Option("--pareto", help="Also the plans that none beats in time, memory, GPUs and cost at once.")
    ] = False
    sensitivity: Annotated[
        bool, Option("--sensitivity", help="Also what each tp, pp, micro-batch and so on costs, and why.")
    ] = False
    rules: Annotated[
        bool, Option("--rules", help="Also what Megatron's rules of thumb would choose, and what that costs.")
    ] = False
    sweep: Annotated[
        list[str] | None,
        Option(
            metavar="FIELD=VALUES",
            help="Instead: the best plan as a number of the scenario changes (a..b, a..b:N or a,b,c with units); "
            "twice for a map.",
        ),
    ] = None
    fields: Annotated[bool, Option("--fields", help="Instead: the numbers that --sweep may go over.")] = False
    figure: Annotated[Path | None, Option(help="Draw --sweep, --sensitivity or --pareto here (.png, .svg).")] = None
    top: Annotated[int, Option(help="How many plans to show.")] = TOP
    why: Annotated[
        list[str] | None,
        Option(metavar="FIELD=VALUE", help="Why not a plan with these fields: plan.tp=4; own: the scenario's."),
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
    from sim.units import parse

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
