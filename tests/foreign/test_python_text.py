"""Python files read as text: what they set, which of their recipes is meant, and what is not known."""

import pytest
from rows import rows

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
        ("2 * 3 + 1", 7), ("7 // 2", 3), ("2 ** 10", 1024), ("-1", -1), ("1_000", 1000), ("3 / 2", 1.5), ("not 0", True),
        ("'a' + 'b'", "ab"), ("[1] + [2] * 2", [1, 2, 2]), ("(1, 2)", [1, 2]),
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


def test_what_classes_and_loops_set_is_not_passed_over():
    text = """
from dataclasses import dataclass, replace
import lib
@dataclass
class Own:
    b: int = 1
def recipe():
    cfg = lib.Config(a=Own(c=3), d=4, e=5)
    for name in ["e"]:
        cfg.e = 6
        setattr(cfg, name, 7)
    return replace(cfg, d=9)
"""
    ledger = Ledger("recipes.py")
    found = settings(text, ledger=ledger)
    assert (found["a"], found["d"]) == ({"()": "Own", "c": 3}, 9)
    assert (found["e"].line, found["e"].why) == (9, "set in a loop or a match")
    said = {entry.name: entry.note for entry in ledger.ignored}
    assert said["line 8: Own()"] == "what a class of the file sets by itself is not followed"
    assert "may or may not be called" in said["line 11: setattr()"]


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


@rows("line", ["global SIZE", "del sizes['x']"])
def test_names_set_from_within_and_what_is_deleted_are_refused(line):
    text = f"""
from lib import Config
def recipe():
    sizes = {{"x": 1, "y": 2}}
    {line}
    return Config(a=sizes)
"""
    with pytest.raises(SpecError, match=r"line 5: .* is not followed; write the values out"):
        settings(text)


def test_a_name_says_which_recipe_is_meant():
    text = "from lib import Config\ndef one():\n    return Config(a=1)\ndef two(x=1):\n    return Config(a=2)\n_HIDDEN = 3\n"
    with pytest.raises(SpecError, match="has 2 recipes; --recipe NAME says which: one, two"):
        settings(text)
    with pytest.raises(SpecError, match="no recipe 'tow'; did you mean 'two'"):
        settings(text, "tow")
    with pytest.raises(SpecError, match="two takes no 'y'; choose from x"):
        settings(text, "two(y=1)")
    with pytest.raises(SpecError, match=r"must look like NAME, or NAME\(argument=value\)"):
        settings(text, "two(x=open('f'))")
    with pytest.raises(SpecError, match="has no recipe: no function gives"):
        settings("x = 1\n")
