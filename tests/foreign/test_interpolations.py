"""Names of other values in a file, as OmegaConf writes them, are replaced by what they stand for, or left as they stand."""

from rows import rows

from sim.foreign.importers.recipes.interpolations import resolved

DATA = {"model": {"hidden": 64, "heads": 8, "names": ["a", "b"]}, "size": 2.5, "on": True, "word": "x"}


@rows(
    ("text", "value"),
    [
        ("${model.hidden}", 64),
        ("${training.model.hidden}", 64),  # a launcher's file stands below a key of its own
        ("${model.names[0]}", "a"),
        ("${multiply:4, ${model.hidden}}", 256),
        ("${divide:${model.hidden},${model.heads}}", 8),
        ("a-${word}-${model.heads}", "a-x-8"),
        ("${data_dir}/vocab.json", "${data_dir}/vocab.json"),
        ("${oc.env:HOME}", "${oc.env:HOME}"),
        ("${divide:1,0}", "${divide:1,0}"),
        ("${", "${"),
    ],
)
def test_a_name_stands_for_its_value(text, value):
    assert resolved({**DATA, "it": text})["it"] == value


def test_names_may_be_relative_and_lead_to_names():
    data = {"a": {"b": {"width": "${.hidden}", "up": "${..c}", "hidden": "${a.c}"}, "c": "${d}"}, "d": 7}
    assert resolved(data)["a"]["b"] == {"width": 7, "up": 7, "hidden": 7}


def test_names_in_a_circle_and_growing_texts_are_left():
    assert resolved({"a": "${b}", "b": "${a}"}) == {"a": "${b}", "b": "${a}"}
    assert resolved({"a": "${a}"}) == {"a": "${a}"}
    growing = {f"x{n}": f"${{x{n + 1}}}${{x{n + 1}}}" for n in range(18)} | {"x18": "y" * 100}
    assert all(isinstance(value, str) and len(value) <= 20_000 for value in resolved(growing).values())
