"""Which framework of which version ran a row of a table, and what its words say of a scenario's fields.

Nothing here knows what a framework does: its name and version go to `sim.specs.frameworks`, as a user's scenario's do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flopcast_calibration.readers.csv_values import Row, name_patterns, settings_of
from sim.errors import SpecError
from sim.specs.framework_files import framework_named
from sim.specs.modules import GRAPH_MODULES, RECOMPUTE_MODULES

UNKNOWN = "pytorch"
BEFORE_FLASH = "2022"
LISTS = {"plan.recompute_modules": RECOMPUTE_MODULES, "stack.cuda_graph_scope": GRAPH_MODULES}
"""Fields that hold names of a layer's modules, and the names."""
FIRST_FLASH_YEAR = 2023
"""From when on an unknown framework is taken to use flash attention, as in presets/frameworks/pytorch.yaml."""


@dataclass(frozen=True, slots=True)
class FrameworkOfRow:
    """A row's framework.

    name, version : as scenarios write them.
    row : with the cells that its authors' public code fills.
    host_checkpoints : the authors' script keeps checkpoints in host memory.
    inferred : the rules used.
    """

    name: str
    version: str
    row: Row
    host_checkpoints: bool = False
    inferred: list[str] = field(default_factory=list)


def framework_of(row: Row) -> FrameworkOfRow:
    """The framework by the first pattern of facts/published-runs.yaml that fits, by its own name, or unknown."""
    said = row.get("framework", "")
    for entry in name_patterns("frameworks"):
        found = [re.search(pattern, row.get(cell, "")) for cell, pattern in entry["cells_say"].items()]
        if not all(found):
            continue
        versions = [match["version"] for match in found if match and "version" in match.re.groupindex]
        version = versions[0] if versions else entry.get("version", "latest")
        inferred = [f"framework {entry['is']} {version}: {said}"]
        for cell, value in entry.get("cells", {}).items():
            if not row.get(cell):
                row = {**row, cell: value}
                inferred.append(f"{cell} {value}: {entry['because']}")
        return FrameworkOfRow(entry["is"], version, row, entry.get("host_checkpoints", False), inferred)
    try:
        name = framework_named(said)
    except SpecError:
        return _unknown(row)
    return FrameworkOfRow(name, "latest", row, inferred=[f"framework {name} latest: {said}"])


def version_of_unknown(source: str, gpu: str, precision: str) -> str:
    """Of when an unknown framework is taken to be: before flash attention, or the latest."""
    return BEFORE_FLASH if _signs_of_age(source, gpu, precision) else "latest"


def _signs_of_age(source: str, gpu: str, precision: str) -> list[str]:
    """What says that a run is older than flash attention in training frameworks."""
    years = [int(year) for year in re.findall(r"\b(20[12]\d)\b", source)]
    years += [2000 + int(year) for year in re.findall(r"arXiv:([12]\d)[01]\d\.", source)]
    signs = {
        "V100": "V100" in gpu,
        "fp16": precision == "fp16",
        f"a source of {min(years, default=0)}": bool(years) and min(years) < FIRST_FLASH_YEAR,
    }
    return [sign for sign, applies in signs.items() if applies]


def _unknown(row: Row) -> FrameworkOfRow:
    """An unknown framework: what the open ones of its time had in common, with flash attention or before it."""
    old = _signs_of_age(row.get("source", ""), row.get("gpu", ""), row.get("precision", ""))
    if old:
        rule = f"an unknown framework before flash attention, by {', '.join(old)}"
        return FrameworkOfRow(UNKNOWN, BEFORE_FLASH, row, inferred=[f"framework {UNKNOWN} {BEFORE_FLASH}: {rule}"])
    rule = "an unknown framework, taken for eager PyTorch with flash attention"
    return FrameworkOfRow(UNKNOWN, "latest", row, inferred=[f"framework {UNKNOWN} latest: {rule}"])


def fields_by_words(row: Row) -> dict[str, Any]:
    """Fields of the scenario, by path, that words of the row's cells stand for."""
    found: dict[str, Any] = {}
    for entry in name_patterns("words"):
        patterns = {cell: pattern for cell, pattern in entry.items() if cell != "set"}
        if all(re.search(pattern, row.get(cell, "")) for cell, pattern in patterns.items()):
            found |= entry["set"]
    for entry in name_patterns("lists"):
        matched = re.search(entry["notes"], row.get("notes", ""))
        names = re.findall(r"\w+", matched["names"]) if matched else []
        # Names that are no module's, such as that of a hybrid model's layers, say nothing here.
        known = [name for name in names if name in LISTS[entry["field"]]]
        if known:
            found |= {**entry["set"], entry["field"]: known}
    return found


def with_remarks(row: Row) -> Row:
    """The row with empty cells filled by what words of its cells, and settings of its notes, stand for."""
    said: dict[str, str] = {}
    for entry in name_patterns("remarks"):
        if all(re.search(pattern, row.get(cell, "")) for cell, pattern in entry.items() if cell != "cells"):
            said |= entry["cells"]
    given = settings_of(row)
    settings = ((entry["field"], given.get(entry["name"], "None")) for entry in name_patterns("settings"))
    said |= {cell: value for cell, value in settings if value != "None"}  # as Python prints what is not set
    return {**row, **{cell: text for cell, text in said.items() if not row.get(cell)}} if said else row


def of_section(fields: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Fields of one section, by their names in it."""
    return {path.partition(".")[2]: value for path, value in fields.items() if path.startswith(f"{section}.")}
