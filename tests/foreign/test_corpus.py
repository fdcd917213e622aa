"""Real files of other people's making, by name, origin and the facts expected of each: read right, or refused with a true
reason.

The files are not part of this repository. Lay them out as FOLDER/<origin>/<path>, as `corpus/*.yaml` names them, and run
FLOPCAST_CORPUS=FOLDER python -m pytest tests/foreign/test_corpus.py
"""

import os
from pathlib import Path

import pytest
from facts import wrong_facts
from rows import rows

from sim.errors import SpecError
from sim.foreign.importers import Given, import_file
from sim.foreign.importers.huggingface.hub_models import known_model
from sim.specs import ModelSpec, load_preset
from sim.specs.yaml12 import load_yaml
from sim.work.sums import total_params

TABLES = Path(__file__).parent / "corpus"
FILES = os.environ.get("FLOPCAST_CORPUS")
ENTRIES = [(table.stem, entry) for table in sorted(TABLES.glob("*.yaml")) for entry in load_yaml(table)]


def name_of(entry):
    return f"{entry['origin']}/{entry['path']}"


@pytest.mark.skipif(FILES is None, reason="FLOPCAST_CORPUS names no folder with the files")
@rows(("kind", "entry"), ENTRIES, ids=[name_of(entry) for _, entry in ENTRIES])
def test_a_real_file_is_read_right_or_refused(kind, entry):
    path = Path(FILES or "") / entry["origin"] / entry["path"]
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    options = dict(entry.get("options", {}))
    overrides = options.pop("set", ())
    if "refused" in entry:
        with pytest.raises(SpecError, match=entry["refused"]):
            import_file(path, Given(**options), overrides=overrides)
        return
    imported = import_file(path, Given(**options), overrides=overrides)
    assert imported.kind == kind
    assert not wrong_facts(imported.scenario(), entry["expect"])
    told = imported.to_yaml()
    for words in entry.get("says", ()):
        assert words in told


CONFIGS = sorted(Path(FILES or ".").rglob("*--*_config.json")) if FILES else []


@pytest.mark.skipif(FILES is None, reason="FLOPCAST_CORPUS names no folder with the files")
@rows("file", CONFIGS, ids=[file.name for file in CONFIGS])
def test_a_model_known_by_name_is_that_of_its_file(file):
    """Shapes of `hub_models.yaml` and presets against the config.json of that name."""
    known = known_model(file.name.removesuffix("_config.json").replace("--", "/"))
    if known is None:
        pytest.skip("not known by name")
    ours = ModelSpec.read(load_preset("models", known) if isinstance(known, str) else known, "model")
    theirs = ModelSpec.read(import_file(file).data["model"], "model")
    # The first are free, of biases the parts count, and presets are as pre-trained: before positions are stretched.
    said_otherwise = ("name", "max_sequence_length", "dropout", "bias", "rotary_scaled")
    for field in ModelSpec.model_fields.keys() - said_otherwise:
        assert getattr(ours, field) == getattr(theirs, field), field
    assert total_params(ours) == total_params(theirs)
