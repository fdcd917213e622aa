"""Python files read as text: what they set, which of their recipes is meant, and what is not known."""

import pytest
from rows import refusals, rows

from sim.errors import SpecError
from sim.foreign.importers.keys import NotKnown
from sim.foreign.importers.ledger import Ledger
from sim.foreign.importers.python.recipes import read_recipe


def settings(text, asked=None, ledger=None):
    """The settings of a recipe of a text: whatever has a key `a`."""
    ledger = ledger or Ledger("recipes.py")
    return read_recipe(text, asked, ledger, "torchtitan", lambda data: "a" in data)[1]


def of(value, before=""):
    """What an expression sets."""
    return settings(f"import lib\n{before}\ndef recipe():\n    return lib.Config(a={value})\n")["a"]


@rows(
    ("text", "value"),
    [
        ("7 // 2 + 2 ** 10", 1027), ("-1_000", -1000), ("3 / 2", 1.5), ("not 0", True), ("'a' + 'b'", "ab"), ("[1] + [2] * 2", [1, 2, 2]),
        ("{'x': 1, **{'y': 2}}", {"x": 1, "y": 2}), ("4 if True else 5", 4), ("None or 3", 3), ("0 and 3", 0),
        ("1 < 2 < 3", True), ("'x' in ['x']", True), ("None is None", True), ("{'k': [5, 6]}['k'][1]", 6),
        ("'LoRA'.lower()", "lora"), ("{'k': 5}.get('j', 6)", 6), ("len([1, 2])", 2), ("isinstance('x', str)", True), ("isinstance(None, str)", False),
        ("[list(x) for x in [(1,), (2, 3)]]", [[1], [2, 3]]), ("int('8')", 8), ("min(3, 2)", 2),
        ("dict(x=1)", {"x": 1}), ("list((1, 2))", [1, 2]), ("getattr(lib.C(b=1), 'b', 2)", 1),
        ("lib.bfloat16", "bfloat16"), ("lib.cast(3)", {"()": "cast", "0": 3}),
        ("lib.Inner.Config(b=1)", {"()": "Inner", "b": 1}), ("lib.make('x').later(y=1)", {"()": "later", "0": "x", "y": 1}),
    ],
)  # fmt: skip
def test_expressions(text, value):
    assert of(text) == value


@rows(
    ("text", "why"),
    [
        ("f'{x}'", "an f-string"), ("lambda: 3", "a lambda"), ("lib.x.y == 3 and 4", "another file"), ("lib.f() or 4", "f() stands in another file"),
        ("9 ** 9 ** 9", "large power"), ("'x' * 10 ** 9", "BinOp"), ("1 // 0", "fails"), ("[1][7]", "7, which is not among"),
        ("open('x')", "open()"),
        ("{i: 1 for i in [1]}", "a comprehension"), ("[i for i in [1] if i]", "a comprehension"), ("isinstance(lib.f(), int)", "isinstance()"), ("[*[1, 2], 3]", "a list within a list"), ("getattr(lib.f(), 'x')", "whether there is x"), ("eval('1')", "eval()"), ("__import__('os').name", "__import__()"), ("lib.a[0] + 1", "of"),
    ],
)  # fmt: skip
def test_what_only_running_code_knows(text, why):
    value = of(text)
    assert isinstance(value, NotKnown)
    assert why in value.why


def test_conditions_that_the_text_decides_and_others():
    text = """
import os
from lib import Config
def recipe(fast=False, kind="lora", nodes=None):
    cfg = Config(a=1, b=1, c=1, d=1)
    if fast:
        cfg.a = 2
    elif kind.lower() in ("lora", "dora"):
        cfg.a = 3
    else:
        raise ValueError(kind)
    if os.environ.get("X"):
        cfg.b = 2
    if nodes is None:
        nodes = 4
    if cfg.other:
        raise ValueError
    for name in ["c", "d"]:
        pass
    while os.x:
        cfg.d = 3
    cfg.c = nodes
    return cfg
"""
    found = settings(text)
    assert (found["a"], found["c"]) == (3, 4)
    assert isinstance(found["b"], NotKnown)
    assert found["b"].line == 12
    assert isinstance(found["d"], NotKnown)
    assert settings(text, "recipe(fast=True)")["a"] == 2
    with pytest.raises(SpecError, match="line 11: recipe raises an error for these arguments"):
        settings(text, "recipe(kind='none')")


def test_what_is_called_for_its_effect_is_followed_or_said():
    text = """
import os
from lib import Base, Config, change
class Own:
    tp: int = 1
    def __post_init__(self):
        self.tp = 2
def double(cfg):
    cfg.b *= 2
def recipe():
    cfg = Config(a=1, b=2, own=Own())
    cfg.c = 3
    cfg.d = 4
    double(cfg)
    change(cfg)
    cfg.more(3)
    if os.environ.get("FAST"):
        change(cfg)
    return cfg
"""
    ledger = Ledger("recipes.py")
    found = settings(text, ledger=ledger)
    assert {key: value for key, value in found.items() if key != "own"} == {
        "()": "Config", "a": 1, "b": 4, "c": 3, "d": 4,
    }  # fmt: skip
    said = {entry.name: entry.matters for entry in ledger.ignored}
    assert said == {
        "line 11: Own()": True, "line 15: change()": True, "line 16: more()": True, "line 18: change()": True,
    }  # fmt: skip


TWO = "from lib import Config\ndef one():\n    return Config(a=1)\ndef two(x=1):\n    return Config(a=2)\n_HIDDEN = 3\n"
WITHIN = "from lib import Config\ndef recipe():\n    sizes = {{'x': 1}}\n    {}\n    return Config(a=sizes)\n"
test_what_cannot_be_followed_or_found_says_why = refusals(SpecError, settings, [
    (WITHIN.format("global SIZE"), "line 4: "), (WITHIN.format("del sizes['x']"), "is not followed; write the values out"),
    (TWO, "has 2 recipes; --recipe NAME says which: one, two"),
    (TWO, "tow", "no recipe 'tow'; did you mean 'two'"),
    (TWO, "two(y=1)", "two takes no 'y'; choose from x"),
    (TWO, "two(x=open('f'))", "must look like NAME, or NAME(argument=value)"),
    ("x = 1\n", "has no recipe: no function gives"),
])  # fmt: skip
