"""Records are what the standard decorator would make of the same class, at less of its price."""

import copy
import dataclasses
import pickle
import sys
from functools import partial

import pytest

from sim.records import dataclass

OPTIONS = {"slots": True}, {"slots": True, "kw_only": True}, {}, {"slots": True, "eq": False, "repr": False}


def of(decorator, options):
    """A class with all that fields can say."""

    @decorator(frozen=True, **options)
    class Made:
        """A record."""

        first: int
        second: float = 2.0
        third: list = dataclasses.field(default_factory=list, compare=False)
        hidden: str = dataclasses.field(default="x", repr=False)

        def __post_init__(self):
            if self.first < 0:
                raise ValueError("below zero")

    Made.__qualname__ = "Made"
    sys.modules[__name__].Made = Made  # where pickle looks
    return Made


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_a_record_is_as_the_standard_decorator_makes_it(options):
    told = []
    for decorator in (dataclass, dataclasses.dataclass):
        made = of(decorator, options)
        one, same, other = made(first=1), made(first=1, third=[3]), made(first=1, second=5.0)
        refused = (partial(made, first=-1), made, partial(setattr, one, "first", 2), partial(delattr, one, "first"),
                   partial(made, first=1, fourth=2))  # fmt: skip
        errors = []
        for wrong in refused:
            with pytest.raises((ValueError, TypeError, dataclasses.FrozenInstanceError)) as error:
                wrong()
            errors.append((type(error.value), str(error.value).rpartition(".")[2]))
        again = pickle.loads(pickle.dumps(same))
        shown = "" if "repr" in options else (repr(one), repr(copy.deepcopy(same)))
        told.append(
            {
                "equal": (one == same, one == other, one == (1, 2.0, "x")),
                "hash": "eq" in options or hash(one) == hash(same) != hash(other),
                "again": (dataclasses.asdict(again), again == same, one.third is not same.third),
                "replaced": dataclasses.asdict(dataclasses.replace(one, second=7.0)),
                "fields": [(each.name, each.type) for each in dataclasses.fields(made)],
                "shown": shown,
                "slots": hasattr(one, "__dict__"),
                "errors": errors,
            }
        )
    assert told[0] == told[1]


def test_a_class_keeps_methods_of_its_own_and_shows_what_it_holds_of_itself():
    @dataclass(frozen=True, slots=True)
    class Odd:
        value: int
        inside: list = dataclasses.field(default_factory=list)

        def __eq__(self, other):
            return self.value % 2 == other.value % 2

    odd = Odd(1)
    odd.inside.append(odd)
    assert Odd(1) == Odd(3) != Odd(2)
    assert repr(odd).endswith("Odd(value=1, inside=[...])")
