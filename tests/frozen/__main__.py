"""Freeze what users see, or compare it with what was frozen."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import tests.frozen
from tests.frozen.asking import ROOT
from tests.frozen.comparing import ANSWERS, broken, differences, find, listed, read, write
from tests.frozen.sections import SECTIONS


def main() -> int:
    """Freeze or compare; return 1 where something differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.frozen",
        description=tests.frozen.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--compare", action="store_true", help="find all answers, and print those that differ")
    way.add_argument("--freeze", action="store_true", help="find all answers, and write them")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section; may be repeated")
    parser.add_argument(
        "--with-shared", type=Path, metavar="FILE", help="use this file, which has also what does not ship"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes [2]")
    parser.add_argument("--top", type=int, default=15, help="differences shown of a section [15]")
    given = parser.parse_args()
    sys.path.append(str(ROOT / "tests"))  # as pytest has it, for what tests share
    begun, file = time.perf_counter(), given.with_shared or ANSWERS
    sections = given.only or [name for name in SECTIONS if name != "shared" or given.with_shared]
    then = read(file) if file.exists() else {}
    now = find({name: SECTIONS[name]() for name in sections}, given.jobs)
    count, seconds = sum(map(len, now.values())), time.perf_counter() - begun
    if given.freeze:
        write(file, {**then, **now})
        print("\n".join(f"broken: {name}: {words}" for name, words in broken(now)))
        print(f"{count:,} answers frozen in {file} in {seconds:.0f} s")
        return 0
    found = {name: differences(then.get(name, {}), now[name]) for name in sections}
    for name, differing in found.items():
        print("\n".join(listed(name, len(now[name]), differing, given.top)))
    print(f"{count:,} answers compared with {file} in {seconds:.0f} s")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
