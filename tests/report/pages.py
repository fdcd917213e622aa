"""What every page is held to: one file, closed elements, nothing from outside."""

import html
import re
from html.parser import HTMLParser


class Tags(HTMLParser):
    """Elements, attributes, and whether every element that was opened was closed."""

    VOID = ("meta", "link", "br", "img", "hr")

    def __init__(self, text):
        super().__init__()
        self.seen, self.open, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def is_self_contained(text):
    """The page's text; nothing in it reaches out, no script runs, and every picture is told in words."""
    tags = Tags(text)
    assert tags.open == []
    assert not {tag for tag, _ in tags.seen} & {"iframe", "object", "embed", "base", "form", "script"}
    for tag, attributes in tags.seen:
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "data:").startswith(("data:", "#"))
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        assert tag != "img" or attributes["alt"]
    assert "@import" not in text
    assert not re.search(r"url\(", text)
    return " ".join(" ".join(tags.text).split())


def shown_scenario(page):
    """The scenario that a page holds, as YAML."""
    found = re.search(r"<summary>[^<]*lines\)</summary>\s*<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    return html.unescape(found[1])
