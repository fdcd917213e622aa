"""Damage what flopcast saves, byte by byte: it is refused, or mended with a word, and never believed.

    python -m tests.fuzz.damage --places 200 --seed 1

A journal of measurements and a profile that was fitted are cut off at many places, and single bytes of them are changed. What is still read must say what the whole file says; of a journal that was cut off, the lines
that are left.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from flopcast_calibration.commands.shared import read_profile
from flopcast_calibration.measurement import Journal, Measurement, read_journal
from sim.errors import FlopcastError
from sim.files import read_text, sealed, write_text

ROOT = Path(__file__).parents[2]
SCENARIO = ROOT / "scenarios" / "megatron-2021" / "1.7b.yaml"
Read = Callable[[Path], Any]
"""What a file says, as its verb reads it."""


def journal(folder: Path) -> tuple[Path, Read]:
    """A journal, and what it says: its measurements."""
    path = folder / "mine.jsonl"
    kept = Journal(path, {"device": "cpu", "torch": "2.13.0"})
    for size in range(1, 9):
        shape = {"m": 64 * size, "n": 64, "k": 64, "dtype": "float32"}
        kept.begin("gemm", shape)
        kept.add(Measurement("gemm", shape, 1e-5 * size, 0.01, 10, "run"))
    kept.fail("memory", {"nbytes": 2**20}, "out of memory")
    return path, lambda file: read_journal(file)


def profile(folder: Path) -> tuple[Path, Read]:
    """A profile as a fit writes it, and its values."""
    path = folder / "mine.yaml"
    write_text(path, sealed(read_text(ROOT / "sim" / "presets" / "profiles" / "a100.yaml")))
    return path, lambda file: read_profile(str(file))


SAVED = {"journal": journal, "profile": profile}
"""What is damaged, by kind: a function that makes a whole one in a folder."""


def damaged(data: bytes, places: int, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """(what was done, the data with one accident)."""
    for place in sorted(rng.sample(range(len(data)), min(places, len(data)))):
        yield f"cut off at {place}", data[:place]
        other = rng.choice([byte for byte in range(256) if byte != data[place]])
        yield f"byte {place} made {other}", data[:place] + bytes([other]) + data[place + 1 :]
        bit = data[place] ^ (1 << rng.randrange(8))
        yield f"byte {place} made {bit}", data[:place] + bytes([bit]) + data[place + 1 :]


def wrong(whole: Any, found: Any) -> bool:
    """Whether what a damaged file says is something else than a whole one says, without saying so."""
    if not hasattr(whole, "measurements"):
        return bool(found != whole)
    begin = whole.measurements[: len(found.measurements)]
    return bool(
        replace(found, cut_end=False, failures=(), measurements=()) != replace(whole, failures=(), measurements=())
        or found.measurements != begin
        or not all(each in whole.failures for each in found.failures)
    )


def faults(kind: str, places: int, seed: int) -> Iterator[tuple[str, str | None]]:
    """(what was done, what is wrong with what came of it); None where nothing is."""
    rng = random.Random(f"{seed} {kind}")
    with tempfile.TemporaryDirectory() as place:
        path, read = SAVED[kind](Path(place))
        kept = Path(place) / "whole"
        shutil.copyfile(path, kept)
        whole = read(path)
        for what, data in damaged(kept.read_bytes(), places, rng):
            path.write_bytes(data)
            try:
                found = read(path)
            except FlopcastError:
                fault = None
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"[:300]
            else:
                fault = "believed, and says something else" if wrong(whole, found) else None
            yield what, fault


def main() -> int:
    """Damage files, print faults; 1 where there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--places", type=int, default=200, help="Bytes of each file at which it is damaged.")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    bad = 0
    for kind in SAVED:
        number = 0
        for what, fault in faults(kind, options.places, options.seed):
            number += 1
            if fault:
                bad += 1
                print(f"  {kind}, {what}: {fault}", flush=True)
        print(f"{kind}: {number} accidents", flush=True)
    print(f"{bad} faults")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
