"""The importers' tables: no key is misspelt, shadowed or read after all, and every value is one of ours."""

import json

import pytest
from facts import wrong_facts
from grammars.writing import SMALL, with_keys
from rows import rows

from sim.errors import SpecError
from sim.foreign.importers import Given, import_text
from sim.foreign.importers.huggingface.architectures import entry_of, known_architectures
from sim.foreign.importers.huggingface.hub_models import whole_shape
from sim.foreign.importers.imported import KINDS
from sim.foreign.importers.keys import UNKNOWN_KEY, by_name, table
from sim.foreign.importers.ledger import Ledger
from sim.foreign.importers.nemo.settings import model_named
from sim.specs import ModelSpec, ParallelPlan, TrainingSpec
from sim.work.sums import total_params

HUGGINGFACE = table("huggingface")
WRAPPERS = table("huggingface_wrappers")
ARCHITECTURES = {name: entry_of(name) for name in known_architectures()}
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1024, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
TITAN = {
    "job": {}, "training": {}, "parallelism": {"pipeline_parallel_degree": 2},
    "activation_checkpoint": {"mode": "full"},
}  # fmt: skip
DEEPSPEED = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
SCRIPT = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 512 --bf16"
EXPERTS = f"{SCRIPT} --num-experts 8 --expert-tensor-parallel-size 1 --sequence-parallel"
PYTHON = {
    "megatron_bridge": "import lib\nimport megatron.bridge.x\nr = lib.Config(train=lib.Train(global_batch_size=64, micro_batch_size=1),"
    " model=lib.Llama2ModelProvider7B(seq_length=512), dataset=lib.Data(seq_length=512))\n",
    "nemo": "import lib\nimport nemo_run\nr = lib._recipe(model=lib.Model(config=lib.Llama2Config7B()), trainer=lib.Trainer(strategy=lib.S()),"
    " data=lib.Data(seq_length=512, global_batch_size=64, micro_batch_size=1))\n",
}  # of Python's kinds, a recipe to which one more line is added
GIVEN = Given(model="llama2-7b", gpus=8)


def import_with(kind, names):
    """An import of a file of this kind that has the keys."""
    if kind == "huggingface":
        return import_text(json.dumps({**CONFIG, **dict.fromkeys(names, "x")}), "c.json")
    if kind == "megatron":
        words = " ".join(f"{'--' if len(name) > 1 else '-'}{name} x" for name in names)
        return import_text(f"{SCRIPT} {words}", "run.sh")
    if kind in PYTHON:
        lines = "".join(map(python_line, names))
        return import_text(f"{PYTHON[kind]}{lines}", "r.py", Given(gpus=64, model="llama2-7b"))
    data = SMALL.get(kind) or (TITAN if kind == "torchtitan" else DEEPSPEED)
    given = GIVEN if kind not in SMALL else Given(gpus=8, model="llama2-7b" if kind == "accelerate" else None)
    return import_text(json.dumps(with_keys(data, dict.fromkeys(names, "x"))), "c.json", given, kind=kind)


def python_line(name):
    """A line of a recipe in Python that sets a key."""
    *places, last = name.split(".")
    place = ".".join(["r", *places])
    if places == ["callbacks"]:
        name, place, last = "", "r.trainer", f"callbacks = [lib.C({last}='x')]; r.lib"
    call = f"lib.{name.removesuffix('()')}(r)" if name.endswith("()") else f"{place}.{last} = 'x'"
    return f"{call}\n"


def test_optimizers_are_ours():
    for names in table("optimizers").values():
        for name, fields in names.items():
            assert name == name.lower().replace("_", "").replace("-", "")
            TrainingSpec.read({"global_batch_size": 1, "sequence_length": 1, **fields}, name)


TOGETHER = 12
"""Keys that are tried in one file."""
IGNORED = [
    (kind, reason, name)
    for kind in KINDS
    for group in ("unpriced", "ignored")
    for reason, names in table(kind).get(group, {}).items()
    for name in names
]


@rows("kind", KINDS)
def test_an_ignored_key_is_left_out_for_its_own_reason(kind):
    reasons = {name.replace("*", "x" if name[-2:-1] in "._-" or name == "_*" else ""): reason
               for of, reason, name in IGNORED if of == kind}  # fmt: skip
    keys = list(reasons)
    assert len(keys) == sum(of == kind for of, _, _ in IGNORED), "listed twice"
    assert all(key == "".join(key.split()) for key in keys), "a name broken by a line's end"
    wrong = []
    for names in (keys[at : at + TOGETHER] for at in range(0, len(keys), TOGETHER)):
        if badly_left_out(kind, names, reasons):  # perhaps because they do not go together
            wrong += [name for name in names if badly_left_out(kind, [name], reasons)]
    assert not wrong


def badly_left_out(kind, names, reasons):
    try:
        entries = import_with(kind, names).ledger.ignored
    except SpecError:
        return names
    ignored = {entry.name.lstrip("-").rpartition(": ")[2]: entry.note for entry in entries}
    return [name for name in names if ignored.get(name) != reasons[name]]


@rows("field", HUGGINGFACE["fields"])
def test_every_key_of_a_field_is_read(field):
    assert field in ModelSpec.model_fields
    for key in HUGGINGFACE["fields"][field]:
        data = {name: value for name, value in CONFIG.items() if name not in HUGGINGFACE["fields"][field]}
        value = {"num_heads": 16, "num_kv_heads": 2, "head_dim": 64, "num_layers": 6}.get(field, 1024)
        model = import_text(json.dumps({**data, key: value}), "c.json").scenario().model
        assert getattr(model, field) == value


def test_required_fields_are_fields():
    assert set(HUGGINGFACE["required"]) <= HUGGINGFACE["fields"].keys()
    for field in HUGGINGFACE["required"]:
        data = {name: value for name, value in CONFIG.items() if name not in HUGGINGFACE["fields"][field]}
        with pytest.raises(SpecError, match=f"{HUGGINGFACE['fields'][field][0]} is missing"):
            import_text(json.dumps(data), "c.json")


@rows("key", HUGGINGFACE["dropout"])
def test_dropout(key):
    assert import_text(json.dumps({**CONFIG, key: 0.25}), "c.json").scenario().model.dropout == 0.25


@rows("key", HUGGINGFACE["numbers_of_experts"])
def test_a_dense_model_with_experts_is_refused(key):
    with pytest.raises(SpecError, match=f"{key} = 8, but model_type 'llama' has no experts"):
        import_text(json.dumps({**CONFIG, key: 8}), "c.json")


REFUSED = [(what, name) for what, names in table("huggingface_refused")["names"].items() for name in names]
PARTS = [(what, part) for what, parts in table("huggingface_refused")["parts"].items() for part in parts]


@rows(("what", "name"), [*REFUSED, *((None, f"Nu_{part}") for _, part in PARTS)])
def test_refused_architectures_and_their_kin(what, name):
    """Kin of a refused model are refused; where two parts of names fit, for the first reason."""
    with pytest.raises(SpecError) as error:
        import_text(json.dumps({**CONFIG, "model_type": name}), "c.json")
    what = what or next(reason for reason, other in PARTS if other in name.lower())
    assert f"c.json: model_type {name!r} is {what}, which flopcast does not model" in str(error.value)


def test_a_model_type_is_refused_once_and_read_or_refused():
    names = [name for _, name in REFUSED]
    assert len(names) == len(set(names))
    assert not set(names) & {*ARCHITECTURES, *by_name(WRAPPERS["wrappers"])}
    assert not set(ARCHITECTURES) & by_name(WRAPPERS["wrappers"]).keys()
    assert set(WRAPPERS["wrappers"]) <= ARCHITECTURES.keys()


@rows("name", ARCHITECTURES)
def test_what_a_left_out_key_means_is_known(name):
    """Above all whether the head is the embedding: a matrix more or less."""
    assert "tie_word_embeddings" in ARCHITECTURES[name]["left_out"]


@rows("section", WRAPPERS["sections"])
def test_every_section_of_a_language_model_is_read(section):
    text = json.dumps({"model_type": "new_vl", section: CONFIG, "vision_config": {"depth": 2}, "odd_thing": 3})
    imported = import_text(text, "c.json")
    assert imported.scenario().model == import_text(json.dumps(CONFIG), "c.json").scenario().model
    ignored = {entry.name: entry.note for entry in imported.ledger.ignored}
    assert ignored["model_type"] == f"a model around a language model, which alone is read, from {section}"
    assert ignored["vision_config"] == "beside the language model; it is left out and not priced"
    assert ignored["odd_thing"] == "of the model around the language model, not of that itself"


KNOWN_READERS = {*HUGGINGFACE["readers"], *HUGGINGFACE["experts"], *HUGGINGFACE["sizes"], *HUGGINGFACE["positions"]}


@rows("name", ARCHITECTURES)
def test_an_architecture_is_made_of_fields_switches_and_readers(name):
    entry = ARCHITECTURES[name]
    assert name == name.lower()
    own = {
        "family", "fixed", "switches", "readers", "layers", "forbidden", "notes", "like", "left_out", "further_rows",
        "equal",
    }  # fmt: skip
    assert entry.keys() <= own
    assert all(isinstance(note, str) for note in entry.get("notes", ()))
    assert entry.get("family", "llama") in HUGGINGFACE["families"]
    assert set(entry.get("readers", ())) <= KNOWN_READERS
    fields = [entry.get("fixed", {})]
    for rule in entry.get("switches", {}).values():
        assert rule.keys() in ({True, False}, {True}, set(), {"refused", "because"})
        fields += [rule.get(True, {}), rule.get(False, {})]
    assert {field for each in fields for field in each} <= ModelSpec.model_fields.keys()


# Megatron-LM


@rows(("section", "record"), [("fields", ModelSpec), ("expert_fields", ModelSpec), ("degrees", ParallelPlan)])
def test_every_argument_of_a_field_is_read(section, record):
    for path, rule in table("megatron")[section].items():
        field = path.rpartition(".")[2]
        assert field in record.model_fields
        for name in rule["keys"] if isinstance(rule, dict) else rule:
            value = {"hidden-size": 64}.get(name, 4)
            groups = "--moe-router-num-groups 8" if name in ("moe-router-group-topk", "topk-group") else ""
            text = f"{EXPERTS.replace(f'--{name} ', '--unused ')} --{name} {value} {groups}"
            scenario = import_text(text, "run.sh", Given(gpus=32)).scenario()
            assert getattr(scenario.model if record is ModelSpec else scenario.plan, field) == value
    if section == "fields":
        assert set(table("megatron")["required"]) <= table("megatron")[section].keys()


SAID = [  # words of a script, facts
    *((f"--{switch}", {f"model.{name}": value for name, value in fields.items()}) for switch, fields in table("megatron")["switches"].items()),
    *((f"--position-embedding-type {kind}", {"model.position": ours}) for kind, ours in table("megatron")["positions"].items()),
    *((f"--{name} 1", {"stack.name": "megatron-2021"}) for name in table("megatron")["old"]),
]  # fmt: skip


@rows(("words", "facts"), SAID)
def test_switches_positions_and_old_arguments_of_a_script(words, facts):
    assert not wrong_facts(import_text(f"{SCRIPT} {words}", "run.sh").scenario(), facts)


VALUES = {
    "pipeline-model-parallel-layout": "Et*31|tL", "recompute-granularity": "full", "recompute-method": "block",
    "recompute-modules": ["core_attn"], "data-parallel-sharding-strategy": "optim", "outer-dp-sharding-strategy": "optim",
    "optimizer": "adam", "global-batch-size": 64, "exp-avg-dtype": "fp32", "exp-avg-sq-dtype": "fp32", "main-params-dtype": "fp32", "main-grads-dtype": "fp32",
    "cuda-graph-impl": "local", "cuda-graph-modules": ["attn"], "moe-token-dispatcher-type": "flex",
    "moe-flex-dispatcher-backend": "deepep", "seq-length": 512, "decoder-first-pipeline-num-layers": 32,
    "decoder-last-pipeline-num-layers": 32,
}  # fmt: skip
CORE = [
    (kind, group, argument, name)
    for kind in PYTHON
    for group in ("arguments", "switches")
    for argument, names in table(kind)[group].items()
    for name in names
    if not name.startswith(("callbacks.", "trainer.strategy.megatron_fsdp", "trainer.strategy.pytorch_fsdp"))
]
MEGATRON_MODELS = {
    name: family for family, models in table("megatron_models")["families"].items() for name in models if name != "all"
}
COUNTS = {  # of the hub's configs
    "codellama34b": 33.74e9, "phi3mini": 3.821e9, "llama321b": 1.236e9, "llama323b": 3.213e9, "mistral7b": 7.242e9,
    "mistralnemo12b": 12.25e9, "mixtral8x22b": 140.6e9, "qwen25500m": 494e6, "qwen251p5b": 1.544e9, "qwen253b": 3.086e9,
    "qwen257b": 7.616e9, "qwen2514b": 14.77e9, "qwen2532b": 32.76e9, "qwen2572b": 72.71e9, "qwen31p7b": 1.721e9,
    "gemma2b": 2.506e9, "gemma7b": 8.538e9, "gemma22b": 2.614e9, "gemma29b": 9.242e9, "gemma227b": 27.23e9, "gemma31b": 1.0e9,
    "deepseekv2": 235.7e9, "olmoe": 6.919e9, "chatglm36b": 6.244e9, "baichuan27b": 7.506e9, "nemotron4340b": 341.0e9,
    "nemotronnano9bv2": 8.888e9, "nemotronnano12bv2": 12.31e9, "moonlight16b": 15.96e9, "starcoder27b": 7.4e9,
}  # fmt: skip


@rows(("kind", "group", "argument", "name"), CORE, ids=[f"{kind} {name}" for kind, _, _, name in CORE])
def test_settings_of_recipes_are_arguments_that_are_read(kind, group, argument, name):
    value = True if group == "switches" else VALUES.get(argument, 2 if argument.startswith("pipeline") else 1)
    text = f"{PYTHON[kind]}r.{name} = {value!r}\n"
    text += f"r.{name.replace('flex_dispatcher_backend', 'token_dispatcher_type')} = 'flex'\n" * ("backend" in name)
    layout = "r.model.pipeline_model_parallel_size = r.pipeline_model_parallel_size = 2\n"
    text += layout * (kind == "megatron_bridge" and "layout" in name)
    text += "r.trainer.strategy.pipeline_model_parallel_size = 2\n" * (kind == "nemo" and "layout" in name)
    imported = import_text(text, "r.py", Given(gpus=64, model="llama2-7b"))
    assert name in imported.ledger.settings
    assert name not in {entry.name for entry in imported.ledger.ignored if entry.note == UNKNOWN_KEY}
    assert group == "arguments" or name not in table(kind)["arguments"]


@rows("name", MEGATRON_MODELS)
def test_models_by_their_classes(name):
    model = ModelSpec.read(whole_shape(model_named(name, "class", Ledger("f"))), name)
    assert total_params(model) == pytest.approx(COUNTS.get(name, total_params(model)), rel=2e-3)


OWN = [
    (kind, name)
    for kind in PYTHON
    for group in table(table(kind)["recipes"]).values()
    for name in group
    if name not in ("all", "columns")
]
CALLS = {
    "nemo": "import nemo_run as run\nfrom nemo.collections import llm\nrecipe = llm.{}(name='x')\nrun.run(recipe)\n",
    "megatron_bridge": "from megatron.bridge.recipes import {0}\ncfg = {0}()\n",
}


@pytest.mark.thorough
@rows(("kind", "name"), OWN, ids=[name for _, name in OWN])
def test_every_recipe_of_the_frameworks(kind, name):
    text, refusal = CALLS[kind].format(name), ""
    for gpus in (None, 64, 256, 384, 40, 6144):
        try:
            imported = import_text(text, "script.py", Given(gpus=gpus))
        except SpecError as error:
            refusal = str(error)
        else:
            assert imported.kind == kind
            assert "as of" in imported.to_yaml()
            return
    # Of these the recipe's own numbers do not go together.
    assert "must divide the" in refusal or "needs plan.sequence_parallel" in refusal, refusal


def test_a_call_of_a_recipe_that_changes_it_otherwise_is_not_known():
    text = CALLS["nemo"].replace("name='x'", "peft_scheme=None").format("llama3_8b.finetune_recipe")
    with pytest.raises(SpecError, match=r"line 3: flopcast knows finetune_recipe\(\) with peft_scheme='lora' alone"):
        import_text(text, "script.py")


def test_other_spellings_of_models():
    assert all(model_named(name, "class", Ledger("f")) for name in table("megatron_models")["aliases"].values())
    assert not table("megatron_models")["aliases"].keys() & MEGATRON_MODELS.keys()
    for name in ("Llama3Config8B", "Llama3ModelProvider8B", "meta-llama/Meta-Llama-3-8B", "llama3_8b_16k", "llama3_8b"):
        assert model_named(name, "class", Ledger("f")) == "llama3-8b"


# torchtitan


@rows(("name", "meant"), table("torchtitan")["schedules"].items())
def test_schedules(name, meant):
    data = with_keys(TITAN, {"parallelism.pipeline_parallel_schedule": name, "training.local_batch_size": 8})
    plan = import_text(json.dumps(data), "c.json", GIVEN).scenario().plan
    assert [plan.schedule, plan.num_chunks] == meant


FLAVORS = [
    (name, flavor) for name, flavors in table("torchtitan")["flavors"].items() for flavor in flavors if flavor != "all"
]
SIZES = {  # parameters without multi-token prediction, of the hub's configs or of torchtitan's own log of a run
    "llama2 7B": 6.738e9, "llama2 13B": 13.02e9, "llama2 70B": 68.98e9, "llama3 1B": 1.236e9, "llama3 3B": 3.213e9,
    "llama3 8B": 8.030e9, "llama3 70B": 70.55e9, "llama3 405B": 405.9e9, "llama4 17bx16e": 107.8e9, "llama4 17bx128e": 400.7e9,
    "deepseek_v3 16B": 15.71e9, "deepseek_v3 236B": 235.7e9, "deepseek_v3 671B": 671.0e9, "kimi_k2_7 moonlight-16B-A3B": 15.96e9,
    "kimi_k2_7 Kimi-K2.5": 1026e9, "qwen3 0.6B": 596e6, "qwen3 1.7B": 1.721e9, "qwen3 4B": 4.022e9, "qwen3 8B": 8.191e9,
    "qwen3 14B": 14.77e9, "qwen3 32B": 32.76e9, "qwen3 30B-A3B": 30.53e9, "qwen3 235B-A22B": 235.1e9, "gpt_oss 20b": 20.91e9,
    "gpt_oss 120b": 116.8e9, "llama3 debugmodel": 6_163_712,
}  # fmt: skip


@rows(("name", "flavor"), FLAVORS)
def test_flavors_are_models(name, flavor):
    keys = {"model.name": name, "model.flavor": flavor, "parallelism.pipeline_parallel_degree": 1}
    model = import_text(json.dumps(with_keys(TITAN, keys)), "c.json").scenario().model
    assert total_params(model) == pytest.approx(SIZES.get(f"{name} {flavor}", total_params(model)), rel=1e-3)
    said = flavor.rpartition("-")[2].rstrip("Bb").replace("M", "e-3")
    if said.replace(".", "").replace("e-3", "").isdecimal():
        assert total_params(model) == pytest.approx(float(said) * 1e9, rel=0.27)
