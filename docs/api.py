"""The API reference: the public names of `sim` by their docstrings, as one page.

python docs/api.py [FOLDER]     by default into build/api
"""

from __future__ import annotations

import re
import sys
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pdoc
import pdoc.docstrings

import sim

ROOT = Path(__file__).parent.parent
_FIELD = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*) : ", re.MULTILINE)
"""A line `name : meaning`, by which records say what their fields hold."""
_HEADING = re.compile(r"^[A-Z][A-Za-z ]+\n---+$", re.MULTILINE)
"""Of a section of numpydoc's, which pdoc reads itself."""
_CONVERT = pdoc.docstrings.convert


def build(folder: Path) -> None:
    """Write the pages into a folder; index.html is the first."""
    for name in sim.__all__:  # they are loaded when asked for, which pdoc does not do
        _resolve(getattr(sim, name))
    pdoc.docstrings.convert = _to_markdown
    pdoc.render.configure(docformat="numpy", search=False, footer_text=f"flopcast {sim.__version__}")
    pdoc.pdoc("sim", output_directory=folder)


def _resolve(code: Any) -> None:
    """Types in place of their names in a record's signature: inherited fields name what their own module imports."""
    if is_dataclass(code):
        types = get_type_hints(code)
        code.__init__.__annotations__.update(
            {each: types[each] for each in code.__init__.__annotations__ if each in types}
        )


@cache
def _to_markdown(docstring: str, docformat: str, source_file: Path | None) -> str:
    """What pdoc makes of a docstring, with the fields of a record apart, one a line."""
    first = _HEADING.search(docstring)
    end = first.start() if first else len(docstring)
    return _CONVERT(_FIELD.sub(r"* **\1**: ", docstring[:end]) + docstring[end:], docformat, source_file)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "api"
    build(target)
    print(target / "index.html")
