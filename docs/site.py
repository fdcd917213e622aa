"""A hook of mkdocs: pages that are made of the code, and the repository's files that pages link to.

`mkdocs.yml` names this file. The API and the verbs have no page of their own in docs/, so that none can be out of date.
A link to a file outside docs/ (`../scenarios/...`) becomes a link to a copy of that file below `repository/`.
"""

from __future__ import annotations

import posixpath
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

from api import api_page  # noqa: E402
from verbs import verbs_page  # noqa: E402

MADE = {"api.md": api_page, "verbs.md": verbs_page}
"""Pages that are made when the site is built."""
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
"""The beginning of a link to a file."""
_INFO = re.compile(r"^```(\w+)(?: part)?(?: columns=\d+)?(?: title=([^\s\"]+))?[ ]*$", re.MULTILINE)
"""First lines of code blocks, as tests/test_docs.py reads them."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and the files that pages link to, and those that these link to."""
    for name, make in MADE.items():
        files.append(File.generated(config, name, content=make()))
    waiting = [(page.src_uri, page.content_string) for page in files.documentation_pages()]
    while waiting:
        uri, markdown = waiting.pop()
        for path in sorted({target for target in map(partial(_target, uri), _links(markdown)) if target}):
            name = f"repository/{path}"
            if path.startswith("docs/") or files.get_file_from_path(name) is not None:
                continue
            if path.endswith(".md"):
                files.append(File.generated(config, name, content=(ROOT / path).read_text(encoding="utf-8")))
                waiting.append((name, (ROOT / path).read_text(encoding="utf-8")))
            else:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links into the repository into links to pages and copies, and write titles of code as mkdocs does."""
    uri = page.file.src_uri
    markdown = _INFO.sub(lambda found: f"```{found[1]}" + (f' title="{found[2]}"' if found[2] else ""), markdown)

    def moved(found: re.Match[str]) -> str:
        path = _target(uri, found[1])
        if path is None:
            return found[0]
        place = path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
        return f"]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}"

    return _LINK.sub(moved, markdown)


def _links(markdown: str) -> list[str]:
    return _LINK.findall(markdown)


def _target(uri: str, link: str) -> str | None:
    """The file of the repository that a link means; None where it means none, or where both pages are in docs/."""
    copied = uri.startswith("repository/")
    home = posixpath.dirname(uri.removeprefix("repository/") if copied else f"docs/{uri}")
    path = posixpath.normpath(posixpath.join(home, link))
    beside = path.startswith("docs/") and not copied
    return path if not beside and (ROOT / path).is_file() else None
