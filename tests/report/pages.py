"""What every page is held to: one file, closed elements, nothing from outside, and in an order that can be heard."""

import html
import itertools
import re
from html.parser import HTMLParser


class Tags(HTMLParser):
    """Elements, attributes, and whether every element that was opened was closed."""

    VOID = ("meta", "link", "br", "rect", "path", "img", "hr", "input", "wbr")

    def __init__(self, text):
        super().__init__()
        self.seen, self.open, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def is_self_contained(text):
    """The page's text; nothing in it reaches out, and no script runs."""
    tags = Tags(text)
    assert tags.open == []
    assert not {tag for tag, _ in tags.seen} & {"iframe", "object", "embed", "base", "form"}
    for tag, attributes in tags.seen:
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "data:").startswith(("data:", "#"))
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        assert "src" not in attributes or (tag == "img" and attributes["alt"])
    assert "script" not in {tag for tag, _ in tags.seen}
    assert "@import" not in text
    assert not re.search(r"url\(", text)
    return " ".join(" ".join(tags.text).split())


def can_be_heard(text):
    """Landmarks, headings in order, ids once, every reference to one that is there, controls and tables with names."""
    tags = Tags(text)
    ids = [each["id"] for _, each in tags.seen if "id" in each]
    assert len(ids) == len(set(ids))
    for _, attributes in tags.seen:
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert set(attributes.get(name, "").split()) <= set(ids), attributes
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids
    names = [tag for tag, _ in tags.seen]
    for landmark in ("header", "nav", "main", "footer", "h1", "title"):
        assert names.count(landmark) == 1, landmark
    levels = [int(tag[1]) for tag in names if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for tag, attributes in tags.seen:
        if tag == "th":
            assert attributes.get("scope") in ("col", "row", "rowgroup")
        if tag == "section":
            assert "aria-labelledby" in attributes
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or (
                attributes.get("role") == "img" and "aria-label" in attributes
            )
        if attributes.get("tabindex") == "0":  # what is reached by keyboard says what it is
            assert attributes.get("aria-label") or attributes.get("aria-labelledby")
    assert dict(tags.seen[names.index("html")][1])["lang"] == "en"


def shown_scenarios(page):
    """The scenarios that a page holds, as YAML."""
    return [
        html.unescape(each)
        for each in re.findall(r"<summary>[^<]*lines\)</summary>\s*<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    ]
