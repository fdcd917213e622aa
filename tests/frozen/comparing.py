"""Finding all answers on several processes, their file, and where two sets of answers differ."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from tests.frozen.asking import ROOT
from tests.frozen.sections import Jobs, tried

ANSWERS = Path(__file__).parent / "answers.json.gz"
TOLERANCE = 1e-9
"""Relative difference of two numbers from which on they differ."""
FITTED = {"scaling fit --json": 1e-6}
"""Answers at which an optimiser ends, which differ from one kind of processor to another: how far they may."""
REFUSALS = ("SpecError", "ScheduleError", "ProfileError", "InfeasiblePlan")
Answers = dict[str, dict[str, Any]]
"""Section -> name -> answer."""
_jobs: dict[str, Jobs] = {}
"""What the processes that are forked below find answers by."""


def find(jobs: dict[str, Jobs], processes: int = 1) -> Answers:
    """Return the answers of all jobs, found on so many processes."""
    _jobs.clear()
    _jobs.update(jobs)
    keys = [(section, name) for section in jobs for name in jobs[section]]
    found: Answers = {section: dict.fromkeys(names) for section, names in jobs.items()}
    if processes == 1:
        results = map(_find, keys)
    else:
        results = get_context("fork").Pool(processes).imap_unordered(_find, keys, chunksize=1)
    for section, name, answer in results:
        found[section][name] = answer
    return found


def _find(key: tuple[str, str]) -> tuple[str, str, Any]:
    section, name = key
    return section, name, plain(tried(_jobs[section][name]))


def plain(data: Any) -> Any:
    """Return data as JSON has them, numbers to twelve digits, and paths as those of a checkout in the current folder."""
    if isinstance(data, Mapping):
        return {str(name): plain(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(value) for value in data]
    if isinstance(data, str):
        return data.replace(str(ROOT), ".")
    if data is None or isinstance(data, (bool, int)):
        return data
    return float(f"{float(data):.12g}")


def write(path: Path, answers: Answers) -> None:
    """Write answers to a file that is the same for the same answers."""
    text = json.dumps(answers, ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def read(path: Path) -> Answers:
    """Return the answers of a file."""
    return json.loads(gzip.decompress(path.read_bytes()))


def broken(answers: Answers) -> Iterator[tuple[str, str]]:
    """Yield (section and name, words) of answers that ended with an error which is no refusal."""
    for section, named in answers.items():
        for name, answer in named.items():
            words = answer.get("error", "") if isinstance(answer, dict) else ""
            if words and not words.startswith(REFUSALS):
                yield f"{section}: {name}", words


class Difference(NamedTuple):
    """Where two answers differ.

    apart : relative to the larger number; infinite where a key or words differ.
    field : the part of the answer that differs, for counts.
    """

    apart: float
    name: str
    path: str
    words: str

    @property
    def field(self) -> str:
        return self.path.strip("/").partition("/")[0] or "all"


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return where answers of a section differ: numbers, the furthest apart first, then words and keys."""
    found = []
    for name in dict.fromkeys((*then, *now)):
        if name in then and name in now:
            apart = _walk(then[name], now[name], "")
            found += [Difference(each[0], name, *each[1:]) for each in apart if each[0] > FITTED.get(name, 0.0)]
        else:
            found.append(Difference(float("inf"), name, "", "gone" if name in then else "new"))
    return sorted(found, key=lambda each: (each.apart == float("inf"), -each.apart))


def _walk(then: Any, now: Any, path: str) -> Iterator[tuple[float, str, str]]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in dict.fromkeys((*then, *now)):
            if name in then and name in now:
                yield from _walk(then[name], now[name], f"{path}/{name}")
            else:
                yield float("inf"), f"{path}/{name}", f"{'gone' if name in then else 'new'}: {(then | now)[name]!r:.60}"
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (first, second) in enumerate(zip(then, now, strict=True)):
            yield from _walk(first, second, f"{path}/{number}")
    elif isinstance(then, list) and isinstance(now, list):
        less, more = ([each for each in one if each not in other] for one, other in ((then, now), (now, then)))
        yield float("inf"), path, f"{len(then)} -> {len(now)} entries: without {less!r:.200}, with {more!r:.200}"
    elif isinstance(then, (int, float)) and isinstance(now, (int, float)):
        apart = abs(then - now) / max(abs(then), abs(now), 1e-30)
        # A cause may be the small difference of large numbers: seconds below a billionth of a second are none.
        if apart > TOLERANCE and abs(then - now) > 1e-12:
            yield apart, path, f"{then!r} -> {now!r}"
    elif then != now:
        yield float("inf"), path, f"{then!r:.300} -> {now!r:.300}"


def listed(section: str, count: int, found: list[Difference], top: int) -> Iterator[str]:
    """Yield what differs in a section in words: how many answers, in which fields, and the furthest apart."""
    if not found:
        yield f"{section}: {count:,} answers as they were"
        return
    differing = len({each.name for each in found})
    by_field = Counter(field for field, _ in {(each.field, each.name) for each in found})
    fields = ", ".join(f"{field} {number}" for field, number in by_field.most_common(12))
    yield f"{section}: {differing:,} of {count:,} answers differ ({fields})"
    for each in found[:top]:
        apart = "   words" if each.apart == float("inf") else f"{each.apart:8.1e}"
        yield f"  {apart}  {each.name:.60} {each.path}: {each.words}"
    if len(found) > top:
        yield f"  and {len(found) - top:,} more"
