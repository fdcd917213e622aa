"""The table of a search on disk: a folder of Parquet files, one a unit of work, beside a note of what was searched.

A file gets its name only when it is whole, so a search that is killed leaves whole units, and goes on with the others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import FlopcastError, SpecError
from sim.search.candidate import ROUNDING
from sim.search.plans.space import Space
from sim.search.prices.units import price_unit
from sim.search.table.frame import arrow_table
from sim.search.table.note import NOTE, check_note, describe
from sim.search.table.priced import Priced, of_unit, pick

Array = np.ndarray
_UNFINISHED = "_unfinished-"


@dataclass
class Saved:
    """Kept on disk. [bytes of memory: those of one unit]

    found : number of every unit that is there.
    mark : of the search, in every file.
    sizes : plans of every unit, there or not.
    """

    folder: Path
    mark: str
    found: set[int]
    sizes: list[int]

    @property
    def done(self) -> frozenset[int]:
        """Numbers of the units that are there."""
        return frozenset(self.found)

    def add(self, number: int, part: Space, priced: Priced) -> None:
        """Write those of a unit; the file gets its name when it is whole."""
        import pyarrow.parquet as pq

        table = arrow_table(part, priced).replace_schema_metadata({"flopcast": self.mark})
        numbers = [name for name in table.column_names if name not in ("step_time_s", "memory_bytes")]
        try:
            _put(
                _file(self.folder, number),
                lambda path: pq.write_table(table, path, use_dictionary=numbers, compression="zstd"),
            )
        except OSError as error:
            raise FlopcastError(
                f"--save {self.folder} cannot be written: {_reason(error)}; {len(self.found):,} parts of the table are "
                "in it: make room, and the same search goes on there, or name another folder"
            ) from None
        self.found.add(number)

    def blocks(self) -> Iterator[Priced]:
        """All of them, a unit at a time, in order."""
        return (self.read(number) for number in sorted(self.found))

    def at(self, places: Array) -> Priced:
        """Those at some places."""
        return pick(((self.sizes[number], partial(self.read, number)) for number in sorted(self.found)), places)

    def read(self, number: int) -> Priced:
        """Those of a unit."""
        import pyarrow.parquet as pq

        table = pq.read_table(_file(self.folder, number), columns=list(Priced.__slots__))
        return Priced(*(table[name].to_numpy() for name in Priced.__slots__))


def open_folder(folder: Path, space: Space, plans_per_unit: int) -> Saved:
    """A folder to save a search in: a new one, or that of the same search, with what it holds.

    Raises
    ------
    SpecError
        It holds something else, another search or a broken file; or pyarrow is missing.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise SpecError("--save needs pyarrow: pip install pyarrow") from None
    sizes = [part.num_plans for part in space.parts(plans_per_unit)]
    note = describe(space, plans_per_unit, len(sizes))
    mark = hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()
    try:
        there = _begin(folder, note)
    except OSError as error:
        raise SpecError(
            f"--save {folder} cannot be written: {_reason(error)}; name a folder that is new or empty, where there is "
            "room and writing is allowed"
        ) from None
    if not there:
        return Saved(folder, mark, set(), sizes)
    check_note(folder, note)
    found = set()
    numbers = {_file(folder, number): number for number in range(len(sizes))}
    for path in there:
        if path.name == NOTE:
            continue
        if path not in numbers:
            raise SpecError(f"--save {folder} holds {path.name}, which is no part of this search; name another folder")
        _check_file(path, sizes[numbers[path]], mark)
        found.add(numbers[path])
    saved = Saved(folder, mark, found, sizes)
    if found:
        first = min(found)
        _check_prices(saved, first, next(islice(space.parts(plans_per_unit), first, None)))
    return saved


def _begin(folder: Path, note: dict[str, Any]) -> list[Path]:
    """What is in the folder, rid of what a killed search left unfinished; a note where there is nothing."""
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"--save {folder} is a file; it is left as it is: name a folder for the Parquet files")
    there = sorted(folder.iterdir()) if folder.exists() else []
    for path in there:
        if path.name.startswith(_UNFINISHED):  # by a search that was killed
            path.unlink(missing_ok=True)
    there = [path for path in there if not path.name.startswith(_UNFINISHED)]
    if not there:
        folder.mkdir(parents=True, exist_ok=True)
        _put(folder / NOTE, lambda path: path.write_text(json.dumps(note, indent=1), encoding="utf-8"))
    return there


def _put(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file that gets its name when it is whole.

    Raises
    ------
    OSError
        It cannot be written; nothing is left of it.
    """
    unfinished = path.with_name(f"{_UNFINISHED}{os.getpid()}-{path.name}")
    for last in (False, False, True):
        try:
            write(unfinished)
            unfinished.replace(path)
            return
        except FileNotFoundError:  # another search began in this folder, and took it for one that was killed
            if last:
                raise
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise


def _reason(error: OSError) -> str:
    """Why a file cannot be written; pyarrow says it at length."""
    return os.strerror(error.errno) if error.errno else str(error).splitlines()[0]


def _file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05}.parquet"


def _check_file(path: Path, num_plans: int, mark: str) -> None:
    """Refuse a file that is not a whole part of this search."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        problem = None
        if (metadata.metadata or {}).get(b"flopcast") != mark.encode():
            problem = "it is not of this search"
        elif metadata.num_rows != num_plans:
            problem = f"it holds {metadata.num_rows:,} plans of {num_plans:,}"
    except (pa.ArrowException, OSError) as error:
        problem = str(error).splitlines()[0]
    if problem:
        raise SpecError(f"{path} is not a whole part of this search ({problem}); delete it to have it priced anew")


def _check_prices(saved: Saved, number: int, part: Space) -> None:
    """Refuse to go on with prices of a cost model that has changed since."""
    now, then = of_unit(part, *price_unit(part)), saved.read(number)
    for name in ("step_time_s", "memory_bytes"):
        ours, theirs = getattr(now, name), getattr(then, name)
        apart = float(np.max(np.abs(theirs / ours - 1.0)))
        if not apart <= ROUNDING:
            raise SpecError(
                f"{saved.folder} was priced by another version of flopcast: {name} is up to {apart:.2g} off; name "
                "another folder to price all plans anew"
            )
