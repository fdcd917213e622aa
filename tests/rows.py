"""Tests that go through tables, as one case that names every row that fails; and those with a short form."""

import functools
import inspect

import pytest


def forms(name, short, whole):
    """Run a test with a short form of what it goes through, and under --thorough with the whole of it."""
    return pytest.mark.parametrize(
        name, [short, pytest.param(whole, marks=pytest.mark.thorough)], ids=["short", "whole"]
    )


def mostly_thorough(values, always):
    """Values of a parametrization of which those that are in `always` run in every suite, the others under --thorough."""
    return [value if value in always else pytest.param(value, marks=pytest.mark.thorough) for value in values]


def rows(names, table, ids=None):
    """Run a test once for every row of a table, as `pytest.mark.parametrize` does, but in one case.

    A row that needs files has a folder of its own under `tmp_path`. Rows that skip are left out; if all do, so does the test.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(table)

    def decorate(test):
        @functools.wraps(test)
        def run(**fixtures):
            failed, skipped, folder = [], [], fixtures.get("tmp_path")
            for number, row in enumerate(table):
                values = (row,) if len(names) == 1 else row
                name = ids(row) if callable(ids) else ids[number] if ids else ", ".join(map(_named, values))[:100]
                if folder is not None:
                    fixtures["tmp_path"] = folder / str(number)
                    fixtures["tmp_path"].mkdir()
                try:
                    test(**dict(zip(names, values, strict=True)), **fixtures)
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"{name}: {type(error).__name__}: {str(error)[:500]}")
            assert not failed, f"{len(failed)} of {len(table)} rows\n" + "\n".join(failed[:40])
            if table and len(skipped) == len(table):
                pytest.skip(skipped[0])

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=kept)
        return run

    return decorate


def refusals(error, ask, table):
    """The test that a question raises an error: rows of what `ask` is called with, and words of the message."""

    @rows(("given", "says"), [(row[:-1], row[-1]) for row in table], ids=lambda row: row[1])
    def check(given, says):
        with pytest.raises(error) as found:
            ask(*given)
        assert says in str(found.value)

    return check


def called(function):
    """Call a function without arguments: what `refusals` asks where its rows are functions."""
    return function()


def _named(value):
    """A value as a row's name shows it: of a function its name, and of a partial one what it is called with."""
    if isinstance(value, functools.partial):
        given = [*map(_named, value.args), *(f"{name}={_named(each)}" for name, each in value.keywords.items())]
        return f"{_named(value.func)}({', '.join(given)})"
    return getattr(value, "__name__", None) or repr(value)
