"""Every field of a scenario file is explained, as what reading a file really takes; docs/fields.md says the same."""

import copy
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import jsonschema
import pydantic
import pytest
from rows import rows
from typer.testing import CliRunner

from sim import build_scenario, load_scenario
from sim.cli import app
from sim.errors import SpecError
from sim.report.fields import find_fields, scenario_schema, scenario_sections
from sim.schedules import schedule_names
from sim.specs import frameworks, loading
from sim.specs.yaml12 import load_yaml, parse_yaml
from sim.units import EXAMPLES, NOUNS, parse, pattern

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "scenarios").rglob("*.yaml"))
SECTIONS = scenario_sections()
FIELDS = {field.path: field for section in SECTIONS for field in section.fields}
SCHEMA = scenario_schema(schedule_names())


@pytest.fixture(scope="module")
def validator():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


@cache
def text_of_whole():
    scenario = load_scenario(ROOT / "scenarios" / "gpt3-175b-1024-a100.yaml")
    return json.dumps(scenario.model_dump(mode="json", exclude={"assumed"}))


def whole():
    """A scenario with nothing left to presets, as a file would hold it."""
    return json.loads(text_of_whole())


def test_scenarios_name_their_schema_to_editors():
    if tuple(map(int, pydantic.VERSION.split(".")[:2])) < (2, 11):
        pytest.skip("older releases of pydantic word the same schema otherwise")
    shipped = ROOT / "scenarios" / "scenario.schema.json"
    assert json.loads(shipped.read_text()) == SCHEMA, "make fields"
    for path in SCENARIOS:
        first = path.read_text().splitlines()[0]
        assert first.startswith("# yaml-language-server: $schema="), path
        assert (path.parent / first.partition("=")[2]).resolve() == shipped, path


def place(data, path):
    """The mapping that holds a field, by its long path; a level's name for NAME."""
    for part in path.split(".")[:-1]:
        data = data.get(part) if part != "NAME" else next(iter(data.values()), None)
        if data is None:
            return None
    return data


def test_every_field_says_what_it_means():
    assert not [path for path, field in FIELDS.items() if len(field.meaning) < 10]
    assert not [section.path for section in SECTIONS if not section.meaning]
    assert not [path for path, field in FIELDS.items() if "typing" in field.type or "class" in field.type]


def test_the_sections_are_those_that_are_read():
    top = {section.path for section in SECTIONS if section.path and "." not in section.path}
    assert top == set(loading.SECTIONS)
    assert {section.path for section in SECTIONS if section.preset} == set(loading.PRESET_AT)
    assert FIELDS["stack"].default_words == frameworks.DEFAULT


@rows("path", [path for path, field in FIELDS.items() if "NAME" not in path])
def test_required_is_what_cannot_be_left_out(path):
    field, data = FIELDS[path], whole()
    holder = place(data, field.long_path)
    if holder is None:
        pytest.skip("the scenario has no such part")
    holder.pop(field.long_path.rpartition(".")[2], None)
    if path == "model.head_dim":
        data["model"].pop("value_head_dim")
    if field.required:
        with pytest.raises(SpecError, match=r"missing"):
            build_scenario(data)
    else:
        build_scenario(data)


@rows(
    ("word", "found"),
    [
        ("plan.zero_stage", {"plan.zero_stage"}),
        ("cluster.node.gpu.memory_bytes", {"cluster.node.gpu.memory"}),
        ("cluster.network.levels.leaf.ports", {"cluster.network.levels.NAME.ports"}),
        ("recompute", {"plan.recompute"}),
        ("_as_layer", {"plan.embedding_as_layer", "plan.head_as_layer"}),
        ("deepep", {"stack.expert_dispatcher", "stack.dispatcher_sms", "profile.network.dispatch_efficiency", "profile.nvlink.dispatch_efficiency"}),
        ("scenario", {"name", "description", "model", "cluster", "plan", "training", "stack", "profile"}),
        ("training", {path for path in FIELDS if path.startswith("training.")}),
        ("cluster", {path for path in FIELDS if path.startswith("cluster.")}),
        ("Stack", {path for path in FIELDS if path.startswith("stack.")}),
    ],
)  # fmt: skip
def test_fields_are_found_by_path_section_part_and_meaning(word, found):
    assert {field.path for section in find_fields(word) for field in section.fields} == found


@rows(
    ("word", "says"),
    [
        ("zero_stag3", r"no field or section 'zero_stag3'; did you mean 'zero_stage'\?"),
        ("cluster.gpu.memory", r"did you mean 'cluster.node.gpu.memory'\?"),
        ("qqqq", r"`flopcast fields` lists them all"),
        ("", r"`flopcast fields` lists them all"),
    ],
)
def test_what_is_not_a_field_is_told_with_the_nearest(word, says):
    with pytest.raises(SpecError, match=says):
        find_fields(word)


def test_the_verbs_answer():
    run = CliRunner()
    assert (
        "plan.recompute  none, selective, per_op or full; default: none"
        in run.invoke(app, ["fields", "recompute"]).output
    )
    answer = json.loads(run.invoke(app, ["fields", "plan.tp", "--json"]).output)
    assert [each["path"] for each in answer] == ["plan.tp"]
    assert (answer[0]["default"], answer[0]["required"]) == (1, False)
    assert len(json.loads(run.invoke(app, ["fields", "--json"]).output)) == len(FIELDS)
    assert json.loads(run.invoke(app, ["schema"]).output) == SCHEMA


def test_the_page_is_what_the_records_say():
    page = (ROOT / "docs" / "fields.md").read_text(encoding="utf-8")
    made = subprocess.run([sys.executable, "docs/fields.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert page == made.stdout, "docs/fields.md is out of date; run: make fields"


@rows("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_keep_to_the_schema(path, validator):
    validator.validate(load_yaml(path))


GOOD = """
model: gpt3-175b
cluster: {preset: selene, inter_node_bandwidth: 100 Gbit/s}
plan: {tp: 8, pp: 16, dp: 8, recompute: full}
training: {global_batch_size: 1536, sequence_length: 2048, precision: fp16, tokens: 300e9}
"""


@rows(
    ("path", "value"),
    [
        ("plan.tpp", 4),
        ("plan.tp", True),
        ("plan.recompute", "ful"),
        ("plan.sequence_parallel", "yes"),
        ("modell", "gpt3-175b"),
        ("model", "gpt3-17b"),
        ("cluster.inter_node_bandwidth", 100),
        ("cluster.inter_node_bandwidth", "80 GB"),
        ("cluster.node", {"preset": "dgx-a100-80gb", "gpu": {"preset": "a100-sxm-80gb", "memory": 80}}),
        ("stack.flash_version", 5),
        ("assumed", []),
    ],
)
def test_mistakes_break_the_schema_as_they_break_the_reading(path, value, validator):
    data = parse_yaml(GOOD, "")
    validator.validate(data)
    build_scenario(copy.deepcopy(data))
    *above, name = path.split(".")
    holder = data
    for part in above:
        below = holder.get(part, {"preset": "megatron-core"} if part == "stack" else {})
        holder[part] = holder = below if isinstance(below, dict) else {"preset": below}
    holder[name] = value
    assert not validator.is_valid(data)
    with pytest.raises(SpecError):
        build_scenario(data)


@rows("dimension", NOUNS)
def test_the_patterns_take_what_is_read(dimension):
    for text in (*(each.strip("'") for each in EXAMPLES[dimension].split(" or ")), "1 GB", "2.5us", "1e3 W", "80", "x"):
        try:
            parse(text, dimension)
        except SpecError:
            assert not re.search(pattern(dimension), text), text
        else:
            assert re.search(pattern(dimension), text), text
