"""A hook of mkdocs: pages that are made of the code, and the repository's files that pages link to.

`mkdocs.yml` names this file. The API and the verbs have no page of their own in docs/, so that none can be out of date.
A link to a file outside docs/ (`../scenarios/...`) becomes a link to a copy of that file below `repository/`.
"""

from __future__ import annotations

import posixpath
import re
import sys
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
_LINK = re.compile(r"\]\(((?:\.\./)+)([^)#\s]+)")
"""A link that leaves the folder of its page upwards."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and the files that pages link to."""
    for name, make in MADE.items():
        files.append(File.generated(config, name, content=make()))
    linked = {path for page in files.documentation_pages() for path in _outside(page.src_uri, page.content_string)}
    for path in sorted(linked):
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            files.append(File.generated(config, f"repository/{path}", content=text))
        else:
            files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files outside docs/ into links to their copies."""
    uri = page.file.src_uri

    def copied(found: re.Match[str]) -> str:
        path = _path(uri, found[1] + found[2])
        if path is None:
            return found[0]
        return f"]({posixpath.relpath(f'repository/{path}', posixpath.dirname(uri) or '.')}"

    return _LINK.sub(copied, markdown)


def _outside(uri: str, markdown: str) -> list[str]:
    paths = [_path(uri, up + rest) for up, rest in _LINK.findall(markdown)]
    return [path for path in paths if path is not None]


def _path(uri: str, link: str) -> str | None:
    """The file of the repository that a link of a page in docs/ means; None where it stays in docs/ or means no file."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link))
    return path if not path.startswith("docs/") and (ROOT / path).is_file() else None
