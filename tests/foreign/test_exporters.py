"""Scenarios become what frameworks take: nothing is lost in silence, and their own parsers accept it."""

import argparse
import json
import math
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import settings
from random_scenarios import exported_of, scenario_of
from rows import rows
from typer.testing import CliRunner

from sim import build_scenario, estimate, load_scenario, preset_names
from sim.cli import app
from sim.errors import SpecError
from sim.foreign.exporters import FRAMEWORKS, export_scenario
from sim.foreign.exporters.account import SECTIONS, exporter_table
from sim.foreign.exporters.torchtitan import flavor_of
from sim.foreign.importers import Given, import_text
from sim.foreign.importers.keys import table
from sim.specs import ModelSpec, load_preset
from sim.specs.plan import layers_of_stages
from sim.specs.writing import scenario_yaml
from sim.specs.yaml12 import load_yaml, parse_yaml

ROOT = Path(__file__).parents[2]
SCHEMAS = Path(__file__).parent / "schemas"
TABLES = load_yaml(Path(__file__).with_name("exported.yaml"))
SEEDS = range(60 if settings().max_examples > 100 else 16)
"""Random scenarios: more of them where laws draw more examples too (--hypothesis-profile=thorough)."""
NAMES = {
    "megatron-lm": "run.sh", "torchtitan": "run.toml", "deepspeed": "ds_config.json",
    "megatron-bridge": "overrides.sh",
}  # fmt: skip
"""Frameworks that are read back, and what their files are called."""
NAMED = ("name", "framework", "version", "fitted_families")
DEALING = ("plan.uneven_layers", "plan.pipeline_layout", "plan.embedding_as_layer", "plan.head_as_layer")
KINDS_OF_LAYERS = ("model.layer_types", "model.mlp_layer_types", "model.num_dense_layers")
FLAVORS = table("torchtitan")["flavors"]
MODELS = sorted({each for flavors in FLAVORS.values() for each in flavors.values() if isinstance(each, str)})


def differences(one, other, sections=SECTIONS):
    """Fields that differ, dealing and kinds of layers by what they come to."""
    found = set()
    for section in sections:
        mine, theirs = getattr(one, section), getattr(other, section)
        for name in type(mine).model_fields:
            path = f"{section}.{name}"
            if (
                name not in NAMED
                and path not in (*DEALING, *KINDS_OF_LAYERS)
                and getattr(mine, name) != getattr(theirs, name)
            ):
                found.add(path)
    if "model" in sections and one.model.kind_of_layer != other.model.kind_of_layer:
        found.add("model.layer_types")
    if one.model.num_layers == other.model.num_layers and one.plan.num_stages == other.plan.num_stages:
        layers = one.model.num_layers
        if layers_of_stages(layers, one.plan) != layers_of_stages(layers, other.plan):
            found.add("plan.pipeline_layout")
    return found


@rows("seed", SEEDS)
@pytest.mark.parametrize("framework", NAMES)
def test_what_a_way_out_and_back_loses_is_in_the_account(framework, seed):
    exported = exported_of(framework, seed)
    if exported is None:
        return
    scenario, account = scenario_of(framework, seed), exported.account
    given = Given(gpus=scenario.plan.num_gpus, model=_model_beside(exported))
    if given.model == "":
        return
    back = import_text(exported.with_account(), NAMES[framework], given).scenario()
    told = {entry.name for entry in (*account.decided, *account.unsaid)}
    written = {path for entry in account.written for path in entry.note.split(", ")}
    of_model = given.model is None
    lost = differences(scenario, back, SECTIONS if of_model else SECTIONS[1:])
    lost = {path for path in lost if not path.startswith("stack.") or path in written}
    assert lost <= told, f"{lost - told}\n{exported.with_account()}"


def _model_beside(exported):
    """The model that must be given beside the file: none where it says it; "" where no preset has as many layers."""
    if exported.kind == "deepspeed":
        return "llama2-7b"
    if exported.kind != "torchtitan" or "flavor" in exported.data.get("model", {}):
        return None
    layers = exported.account.scenario.model.num_layers
    return next((name for name in preset_names("models") if load_preset("models", name)["num_layers"] == layers), "")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_field_of_what_is_exported_is_accounted_for(framework):
    exports = [each for each in (exported_of(framework, seed) for seed in SEEDS) if each is not None]
    assert 2 < len(exports) < len(SEEDS)
    for exported in exports:
        names = [entry.name for entry in exported.account.unsaid]
        assert len(names) == len(set(names))
        entries = (*exported.account.unsaid, *exported.account.decided)
        assert not [entry for entry in entries if "not known" in entry.note]


@pytest.mark.thorough
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_nearest_that_a_refusal_names_is_nearer(framework):
    """Each `--set` of a refusal can be laid over the scenario, and then that refusal is gone."""
    tried = 0
    for seed in SEEDS[:12]:
        scenario = scenario_of(framework, seed)
        for path, mends in refusals(scenario, framework):
            if not mends:
                continue
            try:
                changed = build_scenario(parse_yaml(scenario_yaml(scenario), "again"), mends)
            except SpecError:  # the scenario's other fields do not go with it
                continue
            tried += 1
            assert path not in {each for each, _ in refusals(changed, framework)}, (path, mends)
    assert tried > 5


def refusals(scenario, framework):
    """(field, what `--set` would mend it) of every reason."""
    try:
        export_scenario(scenario, framework)
    except SpecError as error:
        lines = str(error).splitlines()
    else:
        return []
    title = exporter_table(framework)["title"]
    found = [re.fullmatch(rf"{title} cannot run ([\w.]+) = .*: .+; nearest: (.+)", line) for line in lines]
    assert all(found), lines
    return [(each[1], re.findall(r"--set (\S+=[^\s,]+)", each[2].partition(", or ")[0])) for each in found]


LLAMA = {
    "model": "llama3-8b", "cluster": "superpod-h100", "plan": {"dp": 8, "zero_stage": 1},
    "training": {"global_batch_size": 64, "sequence_length": 4096}, "stack": "megatron-core",
}  # fmt: skip


def llama(*overrides):
    return build_scenario(LLAMA, overrides)


@rows(("framework", "overrides", "why"), TABLES["refused"])
def test_what_a_framework_cannot_run_is_refused_with_the_reason(framework, overrides, why):
    with pytest.raises(SpecError, match=re.escape(why)):
        export_scenario(llama(*overrides), framework)


def test_an_unknown_framework_is_refused_with_the_nearest():
    with pytest.raises(SpecError, match=r"cannot export to 'megatron'.*megatron-lm"):
        export_scenario(llama(), "megatron")


# What is written


def arguments(*overrides):
    """Megatron-LM's options as a mapping from names to words."""
    data = export_scenario(llama(*overrides), "megatron-lm").data["arguments"]
    found, name = {}, ""
    for word in (word for words in data.values() for word in words):
        name = word if word.startswith("--") else name
        found.setdefault(name, [])
        found[name] += [word] * (word != name)
    return found


@rows(("overrides", "expected"), TABLES["written"])
def test_megatron_lm_options(overrides, expected):
    found = arguments(*overrides)
    assert {name: found.get(name) for name in expected} == expected


@rows(("framework", "overrides", "words"), TABLES["said"])
def test_what_a_plan_needs_stands_in_the_file(framework, overrides, words):
    assert words in export_scenario(llama(*overrides), framework).text


def test_a_script_reads_in_bash_and_starts_the_right_program():
    text = export_scenario(llama("plan.dp=16"), "megatron-lm").with_account()
    assert "--nnodes 2 --nproc-per-node 8 --node-rank" in text
    assert "pretrain_gpt.py" in text
    assert "pretrain_mamba.py" in export_scenario(llama("model=nemotron-h-8b"), "megatron-lm").text
    bash = shutil.which("bash")
    if bash:
        assert subprocess.run([bash, "-n"], input=text, text=True, check=False).returncode == 0


@rows(("framework", "own", "other", "says"), TABLES["changes"])
def test_what_a_script_has_to_lose_change_and_gain_is_said(framework, own, other, says):
    told = "\n".join(export_scenario(llama(*other), framework).beside_own(llama(*own)).account_lines())
    assert ("your own plan" in told) == bool(says)
    assert [each for each in says if each not in told] == []


@rows(("overrides", "name", "says"), TABLES["asked"])
def test_deepspeed_says_what_the_program_has_to_set(overrides, name, says):
    yours = export_scenario(llama(*overrides), "deepspeed").account.yours
    assert [says in entry.note for entry in yours if entry.name == name] == [True]


# Acceptance: the schemas are names, types and choices taken from the frameworks' own parsers


def megatron_parser():
    """Megatron-LM's parser, as far as the schema has it."""
    schema = load_yaml(SCHEMAS / "megatron_lm.yaml")
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for part in (schema, schema["fields"]):
        for name, kind in (("int", int), ("float", float), ("str", str), ("pairs", _pair), ("marks", _marks)):
            for option in part.get(name, ()):
                parser.add_argument(f"--{option}", type=kind)
        for option in part.get("lists", ()):
            parser.add_argument(f"--{option}", nargs="+")
        for option, choices in part.get("choices", {}).items():
            parser.add_argument(f"--{option}", choices=[str(each) for each in choices])
        for option in part.get("switches", ()):
            parser.add_argument(f"--{option}", action="store_true")
    return parser


def _pair(text):
    first, second = text.strip("()").split(",")
    return int(first), int(second)


def _marks(text):
    if re.search(r"[^,\d\[\]()+*]", text):
        raise argparse.ArgumentTypeError(text)
    return text


def megatron_lm_accepts(exported):
    words = [word for each in exported.data["arguments"].values() for word in each]
    scenario = exported.account.scenario
    parsed = megatron_parser().parse_args(words)
    assert parsed.num_layers == scenario.model.num_layers
    assert parsed.tensor_model_parallel_size == scenario.plan.tp
    names = [word for word in words if word.startswith("--")]
    assert len(names) == len(set(names))
    assert not (parsed.use_torch_fsdp2 and parsed.use_distributed_optimizer)
    assert not parsed.overlap_param_gather or parsed.overlap_grad_reduce
    assert not parsed.use_precision_aware_optimizer or parsed.use_distributed_optimizer


def torchtitan_accepts(exported):
    schema = load_yaml(SCHEMAS / "torchtitan.yaml")
    data = tomllib.loads(exported.with_account())
    _check_keys(data, schema)
    cut, plan = data["parallelism"], exported.account.scenario.plan
    # torchtitan/distributed/parallel_dims.py, _validate.
    degrees = [f"{name}_degree" for name in ("tensor_parallel", "context_parallel", "pipeline_parallel")]
    shard = cut["data_parallel_shard_degree"]
    product = math.prod(cut[name] for name in degrees) * cut["data_parallel_replicate_degree"] * shard
    assert product == plan.num_gpus
    ep = cut.get("expert_parallel_degree", 1)
    within = plan.cp * (plan.tp if cut.get("expert_tensor_parallel_degree", 1) == 1 else 1)
    assert ep == 1 or (ep % within == 0 and shard * within % ep == 0)


def _check_keys(data, schema):
    types = {"int": int, "bool": bool, "str": str, "float": float, "list[str]": list}
    for key, value in data.items():
        kind = schema[key]
        if isinstance(kind, dict):
            _check_keys(value, kind)
        elif isinstance(kind, list):
            assert value in kind, key
        else:
            plain = re.sub(r" \| None$", "", kind)
            assert isinstance(value, types.get(plain, list)), key


def deepspeed_accepts(exported):
    schema = load_yaml(SCHEMAS / "deepspeed.yaml")
    data = json.loads(exported.text)
    offload = data["zero_optimization"].pop("offload_optimizer", {})
    assert offload.keys() <= {*schema["zero_optimization.offload_optimizer"]}
    for key, value in data.items():
        assert (value.keys() <= {*schema[key]}) if isinstance(value, dict) else key in schema[""]
    steps = data["gradient_accumulation_steps"] * data["train_micro_batch_size_per_gpu"]
    assert data["train_batch_size"] == steps * exported.account.scenario.plan.num_gpus


def megatron_bridge_accepts(exported):
    schema = load_yaml(SCHEMAS / "megatron_bridge.yaml")
    names = []
    for override in exported.data["overrides"]:
        name, _, value = override.partition("=")
        names.append(name)
        section, _, field = name.partition(".")
        if section == "mixed_precision":
            assert value in (*schema["mixed_precision"], "null")
        else:
            assert field in schema[section], override
    assert len(names) == len(set(names))
    assert all(len(shlex.split(line)) == 1 for line in exported.text.splitlines() if line.startswith("    model."))


ACCEPTS = {
    "megatron-lm": megatron_lm_accepts, "torchtitan": torchtitan_accepts, "deepspeed": deepspeed_accepts,
    "megatron-bridge": megatron_bridge_accepts,
}  # fmt: skip


@pytest.mark.parametrize("framework", ACCEPTS)
@rows("seed", SEEDS)
def test_the_framework_accepts_what_is_written(framework, seed):
    exported = exported_of(framework, seed)
    if exported is not None:
        ACCEPTS[framework](exported)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tables_name_fields_that_there_are(framework):
    fields = {f"{section}.{name}" for section in SECTIONS for name in type(getattr(llama(), section)).model_fields}
    for names in exporter_table(framework)["unsaid"].values():
        for name in names:
            assert name in fields or (name.endswith("*") and any(field.startswith(name[:-1]) for field in fields)), name
    for path in _paths(exporter_table(framework)["rows"]):
        assert path in fields, path


def _paths(rows):
    """Fields that rows of a table name, in whatever verb."""
    for row in rows:
        for verb, what in row.items():
            if verb in ("rows", "first"):
                yield from _paths(what)
            elif verb in ("cover", "decide", "leave", "refuse"):
                yield from what
            elif verb == "of":
                yield from [what] if isinstance(what, str) else what


@rows("preset", MODELS)
def test_a_flavor_that_is_written_is_read_as_the_same_model(preset):
    shape = ModelSpec.read(load_preset("models", preset), "model").replace(num_mtp_layers=0)
    name, flavor = flavor_of(shape)
    data = {"model": {"name": name, "flavor": flavor}, "training": {"steps": 1}, "parallelism": {}}
    back = import_text(json.dumps(data), "run.json", Given(gpus=64), overrides=["plan.ep=1"]).scenario()
    assert back.model.replace(name=shape.name) == shape


# The command line


def flopcast(*words, text=None):
    return CliRunner().invoke(app, [*words], input=text)


def test_the_command_prints_the_file_with_its_account_or_writes_it(tmp_path):
    path, script = tmp_path / "llama.yaml", tmp_path / "run.sh"
    path.write_text(scenario_yaml(llama()))
    result = flopcast("export", str(path), "--to", "megatron-lm", "-s", "plan.tp=2", "-s", "plan.dp=4")
    assert result.exit_code == 0
    assert "--tensor-model-parallel-size 2" in result.output
    assert "# To be given:" in result.output
    again = flopcast("export", "-", "--to", "deepspeed", text=path.read_text())
    # Older runners print both streams as one.
    assert json.JSONDecoder().raw_decode(again.stdout)[0]["train_batch_size"] == 64
    assert "To be given:" in again.stderr
    written = flopcast("export", str(path), "--to", "megatron-lm", "-o", str(script))
    assert written.exit_code == 0
    assert "Megatron-LM decides itself" in written.output
    assert "--use-distributed-optimizer" in script.read_text()
    data = json.loads(flopcast("export", str(path), "--to", "megatron-bridge", "--json").stdout)
    assert data.keys() == {"framework", "text", "data", "written", "decided", "unsaid", "yours"}
    assert {"name", "value", "note"} == data["written"][0].keys()


def test_what_changes_nothing_in_a_plan_is_not_left_out_aloud():
    """The estimate is the same whatever an idle field says, and the account is silent of it."""
    said = {"offload_masters": False, "overlap_tp_backward": False, "overlap_p2p": False, "fused_router": False}
    alone = ["plan.tp=1", "plan.sequence_parallel=false"]
    changed = load_scenario(ROOT / "scenarios/korthikanti-2022/22b-selective.yaml", alone)
    other = changed.replace(stack=changed.stack.replace(**{name: not value for name, value in said.items()}))
    one = changed.replace(stack=changed.stack.replace(**said))
    assert estimate(one).step_time_s == estimate(other).step_time_s
    for framework in ("megatron-lm", "megatron-bridge"):
        for scenario in (one, other):
            named = {entry.name for entry in export_scenario(scenario, framework).account.unsaid}
            assert not named & {f"stack.{name}" for name in said}
