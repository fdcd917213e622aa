"""The formats of measurements that are read, told apart by what a file holds and not by its name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flopcast_calibration.measurement import read_journal
from flopcast_calibration.readers import kineto, nccl_tests, programs, table
from flopcast_calibration.readers.log import Log, Source, read_source
from flopcast_calibration.readers.names import FACTS
from sim.errors import ProfileError

#: name -> what a text of it holds, how it is read
TEXTS: dict[str, tuple[re.Pattern[str], Callable[[Source], Log]]] = {
    "nccl-tests": (nccl_tests.LOOKS, nccl_tests.read),
    "mamf-finder": (programs.MAMF_FINDER, programs.read_mamf_finder),
    "nvbandwidth": (programs.NVBANDWIDTH, programs.read_nvbandwidth),
    "perftest": (programs.PERFTEST, programs.read_perftest),
}
FORMATS = (
    "a journal of flopcast calibrate run (.jsonl)",
    "a table (CSV, TSV)",
    "nccl-tests and rccl-tests",
    "mamf-finder",
    "nvbandwidth",
    "perftest (ib_write_bw and kin)",
    "a torch-profiler trace (.json)",
)
_OFFER = f"read are {', '.join(FORMATS)}"
#: A log may begin with a bracket too: [0] is a rank's.
_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*[\[{\]])")


def read_measurements(
    path: Path, operation: str | None = None, ranks: int | None = None, nodes: int | None = None
) -> Log:
    """Read a file of measurements of any format, plain or gzipped.

    Parameters
    ----------
    path : Path
        Formats are listed in FORMATS.
    operation : str, optional
        The collective, where neither log nor file name says it.
    ranks, nodes : int, optional
        Of the group that communicates; they override what a log lists.

    Raises
    ------
    ProfileError
        A file of none of them, saying what it looks like; or the line that is wrong.
    """
    source = read_source(path, operation, ranks, nodes)
    if _is_journal(source.text):
        data = read_journal(path)
        cut = ("the last line was cut off while it was written; the rest is used",) if data.cut_end else ()
        return Log(data.machine, data.measurements, cut)
    if _JSON.match(source.text) and not nccl_tests.LOOKS.search(source.text):
        return _read_json(source)
    found = [name for name, (looks, _) in TEXTS.items() if looks.search(source.text)]
    if len(found) > 1:
        raise ProfileError(f"{path} holds the output of {' and '.join(found)}; split it into one file each")
    if found:
        return TEXTS[found[0]][1](source)
    if table.looks_like(source.text) or path.name.removesuffix(".gz").endswith((".csv", ".tsv")):
        return table.read(source)
    first = next(line.strip() for line in source.text.splitlines() if line.strip())
    what = _known(source.text) or f"is of no format that is read; it begins with {first[:60]!r}"
    raise ProfileError(f"{path} {what}; {_OFFER}")


def _is_journal(text: str) -> bool:
    """Whether the first line is a machine's, or a measurement's whose machine was lost."""
    first = text.lstrip().partition("\n")[0]
    try:
        data = json.loads(first)
    except ValueError:
        return False
    return isinstance(data, dict) and ("machine" in data or {"kind", "shape", "time_s"} <= data.keys())


def _read_json(source: Source) -> Log:
    try:
        data: Any = json.loads(source.text)
    except ValueError as error:
        whole = "a whole profiler trace" if '"traceEvents"' in source.text else "whole JSON"
        raise ProfileError(f"{source.path} is not {whole}: {error}; was the file cut off?") from None
    if kineto.looks_like(data):
        return kineto.read(source, data)
    names = f"with {', '.join(map(repr, list(data)[:5]))}" if isinstance(data, dict) else "a list"
    known = _known(source.text)
    raise ProfileError(f"{source.path} {known or f'is JSON ({names}) of no format that is read'}; {_OFFER}")


def _known(text: str) -> str | None:
    """What a file looks like that is not read."""
    what = next((what for pattern, what in FACTS["not_read"].items() if re.search(pattern, text, re.MULTILINE)), None)
    return None if what is None else f"looks like output {what}" if what.startswith("of ") else f"looks like {what}"
