"""A recipe is told for what it is: no kind claims another's files, and what is none is refused with the list."""

import contextlib
import json
import os
from itertools import islice
from pathlib import Path

import pytest
from grammars.writing import SMALL
from rows import forms, rows

from sim.errors import SpecError
from sim.foreign.importers import Given, import_file, import_text
from sim.foreign.importers.imported import RECIPES, _data_in, _kind_of, has_signs
from sim.specs.yaml12 import load_yaml

FILES = os.environ.get("FLOPCAST_CORPUS")
RIVALS = {("trl", "llama_factory")}  # of which the more telling counts: the first fits what the second's files say


@rows("kind", SMALL)
def test_the_smallest_recipe_of_a_kind_is_of_no_other(kind):
    form, data = _data_in(json.dumps(SMALL[kind]), "r.json")
    fitting = [other for other in RECIPES if has_signs(other, data)]
    assert set(fitting) - {kind} <= {first for first, second in RIVALS if second == kind}
    assert _kind_of(form, data, "", "r.json") == kind


@pytest.mark.skipif(FILES is None, reason="FLOPCAST_CORPUS names no folder with the files")
@rows("table", sorted((Path(__file__).parent / "corpus").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_kind_claims_a_real_file_of_another(table):
    for entry in load_yaml(table):
        path = Path(FILES or "") / entry["origin"] / entry["path"]
        if not path.is_file():
            continue
        text = path.read_text()
        try:
            form, data = _data_in(text, str(path))
            assert _kind_of(form, data, text, str(path)) == table.stem, path
        except SpecError:
            assert "refused" in entry, path


NO_RECIPES = [
    ("name: CI\non: [push]\njobs: {build: {runs-on: ubuntu-latest}}\n", "ci.yml"),
    ("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: []}\n", "pod.yaml"),
    ("model: gpt-4\ntemperature: 0.7\n", "chat.yaml"),
    ('[tool.ruff]\nline-length = 120\n[project]\nname = "x"\n', "pyproject.toml"),
    ("just text\n", "text.yaml"),
]
OTHERS = [  # text, name, why: texts of other programs
    ("experiment:\n  exp_name: x\n  task: {type: train}\ndefaults: [{train: 7b}]\n", "config.yaml", "outer file of FlagScale"),
    ("from mmengine.config import read_base\nfrom xtuner.dataset import x\n", "config.py", "xtuner"),
    ("from olmo_core.nn.transformer import TransformerConfig\n", "run.py", "a script of OLMo-core"),
    ("axolotl train config.yml\n", "run.sh", "settings stand in config.yml, which is not beside .*; import that file"),
]  # fmt: skip
HARDWARE = json.dumps({**SMALL["maxtext"], "hardware": "tpu"})
REFUSED = [
    *((*each, None, "is of no kind that can be imported; known are: .*recipe of Axolotl") for each in NO_RECIPES),
    *((text, name, None, why) for text, name, why in OTHERS),
    (HARDWARE, "r.json", "maxtext", "which flopcast does not have; --cluster NAME"),
]  # fmt: skip


@rows(("text", "name", "kind", "why"), REFUSED, ids=lambda row: f"{row[0][-100:]} {row[3]}")
def test_what_cannot_be_read_right_is_refused_for_its_true_reason(text, name, kind, why):
    with pytest.raises(SpecError, match=why):
        import_text(text, name, kind=kind)


def test_a_deepspeed_file_beside_a_recipe_is_read(tmp_path):
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "overlap_comm": False}
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero}))
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({**SMALL["axolotl"], "deepspeed": "deepspeed_configs/ds.json"}))
    scenario = import_file(recipe).scenario()
    assert (scenario.plan.zero_stage, scenario.plan.optimizer_offload) == (2, 1.0)
    assert not scenario.stack.overlap_grad_reduce


def test_a_tpus_training_is_priced_on_the_gpus_that_the_caller_names():
    assert "priced on GPUs" in import_text(HARDWARE, "r.json", Given(8, "superpod-h100")).to_yaml()


STRANGE = (None, "x", "", -1, 0, 1.5, 10**30, True, [], [1, {"a": []}], {}, {"a": {"b": 1}}, "${a}", "1_000")


def mangled(data):
    """The data with each value, at any depth, left out or put in another way."""
    for key, value in data.items():
        yield {name: other for name, other in data.items() if name != key}
        yield from ({**data, key: strange} for strange in STRANGE)
        if isinstance(value, dict):
            for inner in mangled(value):
                yield {**data, key: inner}


@forms("every", 8, 1)
@rows("kind", SMALL)
def test_mangled_recipes_are_read_or_refused_and_nothing_else(kind, every):
    given = Given(8, None, "llama2-7b" if kind == "accelerate" else None)
    for data in islice(mangled(SMALL[kind]), 0, None, every):
        with contextlib.suppress(SpecError):
            import_text(json.dumps(data), "r.json", given, kind=kind)
