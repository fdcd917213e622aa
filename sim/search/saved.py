"""The table of a search on disk: a folder of Parquet files, one a unit of work, and a note of what was searched.

A file gets its name only when it is whole, so a search that is killed leaves whole units, and goes on with the others.
The note, in JSON, keeps another search from being mixed with this one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import FlopcastError, SpecError
from sim.files import UNFINISHED, checksum, put, reason
from sim.search.candidate import ROUNDING
from sim.search.plans.layouts import LAYOUT, gpus_of_layouts
from sim.search.plans.space import Space
from sim.search.prices.units import price_unit
from sim.search.table import NUMBERS, Priced, PriceTable, frame_of, of_unit

NOTE = "_search.json"
"""Readers of Parquet folders pass over names that begin so."""
FORMAT = 3
"""Version of the note and the table; 1 had no column ep, 2 no checksums."""


@dataclass
class SavedTable(PriceTable):
    """Prices kept on disk; one unit at a time is in memory.

    mark : of the search, in every file.
    found : number of every unit that is there.
    sizes : plans of every unit, there or not.
    """

    folder: Path
    mark: str
    found: set[int]
    sizes: list[int]

    @property
    def done(self) -> frozenset[int]:
        return frozenset(self.found)

    def add(self, number: int, part: Space, priced: Priced) -> None:
        """Write the file of a unit; it gets its name when it is whole."""
        import pyarrow.parquet as pq

        note = {"flopcast": self.mark, "checksum": _checksum(priced)}
        table = _arrow_table(part, priced).replace_schema_metadata(note)
        numbers = [name for name in table.column_names if name not in ("step_time_s", "memory_bytes")]
        try:
            put(
                _file(self.folder, number),
                lambda path: pq.write_table(table, path, use_dictionary=numbers, compression="zstd"),
            )
        except OSError as error:
            raise FlopcastError(
                f"--save {self.folder} cannot be written: {reason(error)}; {len(self.found):,} parts of the table are "
                "in it: make room, and the same search goes on there, or name another folder"
            ) from None
        self.found.add(number)

    def read(self, number: int) -> Priced:
        import pyarrow.parquet as pq

        path = _file(self.folder, number)
        with _whole(path):
            table = pq.read_table(path, columns=list(Priced.__slots__))
            priced = Priced(*(table[name].to_numpy() for name in Priced.__slots__))
            if (table.schema.metadata or {}).get(b"checksum") != _checksum(priced).encode():
                raise ValueError("its numbers are not those that were written")
        return priced

    def size(self, number: int) -> int:
        return self.sizes[number]


def open_folder(folder: Path, space: Space, plans_per_unit: int) -> SavedTable:
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
            f"--save {folder} cannot be written: {reason(error)}; name a folder that is new or empty, where there is "
            "room and writing is allowed"
        ) from None
    if not there:
        return SavedTable(folder, mark, set(), sizes)
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
    saved = SavedTable(folder, mark, found, sizes)
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
        if path.name.startswith(UNFINISHED):  # by a search that was killed
            path.unlink(missing_ok=True)
    there = [path for path in there if not path.name.startswith(UNFINISHED)]
    if not there:
        folder.mkdir(parents=True, exist_ok=True)
        put(folder / NOTE, lambda path: path.write_text(json.dumps(note, indent=1), encoding="utf-8"))
    return there


def _file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05}.parquet"


def _checksum(priced: Priced) -> str:
    """Of the numbers that answers are made of, which Parquet believes whatever became of their bits."""
    return checksum(*(np.ascontiguousarray(getattr(priced, name)).data for name in Priced.__slots__))


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Refuse a file that is not a whole part of this search."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise SpecError(
            f"{path} is not a whole part of this search ({problem}); delete it to have it priced anew"
        ) from None


def _check_file(path: Path, num_plans: int, mark: str) -> None:
    """Refuse a file that does not say that it is that part of this search."""
    import pyarrow.parquet as pq

    with _whole(path):
        metadata = pq.read_metadata(path)
        if (metadata.metadata or {}).get(b"flopcast") != mark.encode():
            raise ValueError("it is not of this search")
        if metadata.num_rows != num_plans:
            raise ValueError(f"it holds {metadata.num_rows:,} plans of {num_plans:,}")


def _check_prices(saved: SavedTable, number: int, part: Space) -> None:
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


def _arrow_table(part: Space, priced: Priced) -> Any:
    """Priced plans as an Arrow table, in narrow integers."""
    import pyarrow as pa

    frame = frame_of(part, priced)
    narrow = {"zero_stage": "int8", **dict.fromkeys(("num_gpus", *NUMBERS), "int32")}
    return pa.Table.from_pandas(frame.astype(narrow), preserve_index=False)


def describe(space: Space, plans_per_unit: int, num_units: int) -> dict[str, Any]:
    """What was searched, in words of JSON; two searches with the same have the same table."""
    sizes, plan = gpus_of_layouts(space.layouts), space.scenario.plan
    # Of its own plan a search keeps how layers are dealt; what it is called changes no price.
    scenario = space.scenario.model_dump_json(exclude={"name", "description", "plan", "assumed"})
    return {
        "format": FORMAT,
        "scenario": json.loads(scenario),
        "as_layers": {"embedding": plan.embedding_as_layer, "head": plan.head_as_layer},
        "gpus": [int(sizes.min()), int(sizes.max())],
        "context": np.unique(space.layouts[:, LAYOUT.index("cp")]).tolist(),
        "experts": np.unique(space.layouts[:, LAYOUT.index("ep")]).tolist(),
        **({"etp": "tp"} if plan.etp > 1 else {}),
        "overlaps": len({category.overlaps for category in space.categories}) > 1,
        "plans_per_unit": plans_per_unit,
        "plans": space.num_plans,
        "units": num_units,
        "layouts": hashlib.sha256(space.layouts.tobytes()).hexdigest(),
        "categories": len(space.categories),
    }


def check_note(folder: Path, note: dict[str, Any]) -> None:
    """Refuse a folder that is not of this search."""
    path = folder / NOTE
    if not path.exists():
        raise SpecError(
            f"--save {folder} holds files but no search (there is no {NOTE} in it); it is left as it is: name a folder "
            "that is new or empty"
        )
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        theirs = None
    if not isinstance(theirs, dict):
        raise SpecError(f"{path} cannot be read as the note of a search; name another folder, or delete this one")
    if theirs.get("format") != FORMAT:
        raise SpecError(
            f"--save {folder} was saved by another version of flopcast (format {theirs.get('format')}, this one writes "
            f"{FORMAT}); it is left as it is: name another folder, and all plans are priced anew"
        )
    differ = _differences(note, theirs)
    if differ:
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise SpecError(
            f"--save {folder} holds another search: it differs in {', '.join(differ[:3])}{more}; it is left as it is: "
            "name another folder, or ask the same to go on with it"
        )


def _differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two notes differ, as `scenario.plan.tp (8, there 4)`."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = list(dict.fromkeys((*ours, *theirs)))
        return [
            found
            for name in names
            for found in _differences(ours.get(name), theirs.get(name), f"{path}.{name}".strip("."))
        ]
    return [] if ours == theirs else [f"{path} ({_short(ours)}, there {_short(theirs)})"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 40 else f"{text[:37]}…"
