"""The importers' tables: no key is misspelt, shadowed or read after all, and every value is one of ours."""

import json
from pathlib import Path

import pytest
from small_recipes import SMALL

from sim.errors import SpecError
from sim.specs import ModelSpec, ParallelPlan, TrainingSpec, preset_names
from sim.specs.importers import Given, import_text
from sim.specs.importers.architectures import entry_of, known_architectures
from sim.specs.importers.imported import KINDS
from sim.specs.importers.keys import table
from sim.specs.importers.own_keys import READERS
from sim.specs.yaml12 import load_yaml
from sim.work.params import total_params

FOLDER = Path(__file__).parents[2] / "sim" / "presets" / "importers"
HUGGINGFACE = table("huggingface")
WRAPPERS = table("huggingface_wrappers")
ARCHITECTURES = {name: entry_of(name) for name in known_architectures()}
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1024, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
LATENT = {"kv_lora_rank": 32, "q_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
MIXTURE = {
    "moe_intermediate_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 128,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "intermediate_size_mlp": 128,
    "moe_num_experts": 8,
    "moe_k": 2,
    "moe_topk": 2,
    "ffn_config": {"moe_num_experts": 8, "moe_top_k": 2, "ffn_hidden_size": 64},
    "attn_config": {"kv_n_heads": 2},
}
HYBRID = {
    "linear_num_value_heads": 8, "linear_value_head_dim": 32, "linear_num_key_heads": 4, "linear_key_head_dim": 32,
    "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_num_heads": 8, "mamba_head_dim": 64,
    "ssm_state_size": 128, "hybrid_override_pattern": "M-*M", "shared_intermediate_size": 128,
}  # fmt: skip
TITAN = {
    "job": {},
    "training": {},
    "parallelism": {"pipeline_parallel_degree": 2},
    "activation_checkpoint": {"mode": "full"},
}
DEEPSPEED = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
SCRIPT = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 512 --bf16"
EXPERTS = f"{SCRIPT} --num-experts 8 --expert-tensor-parallel-size 1 --sequence-parallel"
GIVEN = Given(model="llama2-7b", gpus=8)


def nested(base, path, value):
    """The data with a value at a dotted path."""
    data = json.loads(json.dumps(base))
    *sections, last = path.split(".")
    place = data
    for name in sections:
        place[name] = place[name] if isinstance(place.get(name), dict) else {}
        place = place[name]
    place[last] = value
    return data


def with_key(kind, name):
    """An import of a file of this kind that has the key."""
    if kind == "huggingface":
        return import_text(json.dumps({**CONFIG, name: "x"}), "c.json")
    if kind == "megatron":
        return import_text(f"{SCRIPT} {'--' if len(name) > 1 else '-'}{name} x", "run.sh")
    if kind in SMALL:
        given = Given(gpus=8, model="llama2-7b" if kind == "accelerate" else None)
        return import_text(json.dumps(nested(SMALL[kind], name, "x")), "c.json", given, kind=kind)
    base = TITAN if kind == "torchtitan" else DEEPSPEED
    return import_text(json.dumps(nested(base, name, "x")), "c.json", GIVEN, kind=kind)


def test_every_kind_of_file_has_a_table_and_no_other():
    more = {f"huggingface_{part}" for part in ("defaults", "refused", "wrappers")}
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {
        *KINDS,
        *more,
        "optimizers",
        "tokenizers",
        "adapters",
        "hub_models",
    }


def test_optimizers_are_ours():
    for names in table("optimizers").values():
        for name, fields in names.items():
            assert name == name.lower().replace("_", "").replace("-", "")
            TrainingSpec.read({"global_batch_size": 1, "sequence_length": 1, **fields}, name)


IGNORED = [
    (kind, reason, name)
    for kind in KINDS
    for group in ("unpriced", "ignored")
    for reason, names in table(kind).get(group, {}).items()
    for name in names
]


@pytest.mark.parametrize(("kind", "reason", "name"), IGNORED, ids=[f"{kind} {name}" for kind, _, name in IGNORED])
def test_an_ignored_key_is_left_out_for_its_own_reason(kind, reason, name):
    assert name == "".join(name.split()), "a name broken by a line's end"
    key = name.replace("*", "x" if name[-2:-1] in "._-" or name == "_*" else "")
    ignored = {entry.name.lstrip("-"): entry.note for entry in with_key(kind, key).ledger.ignored}
    assert ignored.get(key) == reason


@pytest.mark.parametrize("kind", KINDS)
def test_no_ignored_key_is_listed_twice(kind):
    names = [name for of, _, name in IGNORED if of == kind]
    assert len(names) == len(set(names))


# Hugging Face


@pytest.mark.parametrize("field", HUGGINGFACE["fields"])
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


@pytest.mark.parametrize("key", HUGGINGFACE["dropout"])
def test_dropout(key):
    assert import_text(json.dumps({**CONFIG, key: 0.25}), "c.json").scenario().model.dropout == 0.25


@pytest.mark.parametrize("key", HUGGINGFACE["numbers_of_experts"])
def test_a_dense_model_with_experts_is_refused(key):
    with pytest.raises(SpecError, match=f"{key} = 8, but model_type 'llama' has no experts"):
        import_text(json.dumps({**CONFIG, key: 8}), "c.json")


REFUSED = [(what, name) for what, names in table("huggingface_refused")["names"].items() for name in names]
PARTS = [(what, part) for what, parts in table("huggingface_refused")["parts"].items() for part in parts]


@pytest.mark.parametrize(("what", "name"), REFUSED)
def test_refused_architectures(what, name):
    with pytest.raises(SpecError) as error:
        import_text(json.dumps({**CONFIG, "model_type": name}), "c.json")
    assert f"c.json: model_type {name!r} is {what}, which flopcast does not model" in str(error.value)


@pytest.mark.parametrize(("what", "part"), PARTS)
def test_refused_kin(what, part):
    """Kin of a refused model are refused; where two parts of names fit, for the first reason."""
    with pytest.raises(SpecError) as error:
        import_text(json.dumps({**CONFIG, "model_type": f"Nu_{part}"}), "c.json")
    first = next(reason for reason, other in PARTS if other in f"nu_{part}")
    assert f"is {first}, which flopcast does not model" in str(error.value)


def test_a_model_type_is_refused_once_and_read_or_refused():
    names = [name for _, name in REFUSED]
    assert len(names) == len(set(names))
    assert not set(names) & {*ARCHITECTURES, *WRAPPERS["wrappers"]}
    assert not set(ARCHITECTURES) & WRAPPERS["wrappers"].keys()
    assert set(WRAPPERS["wrappers"].values()) <= ARCHITECTURES.keys()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_a_left_out_key_means_is_known(name):
    """Above all whether the head is the embedding: a matrix more or less."""
    assert "tie_word_embeddings" in ARCHITECTURES[name]["left_out"]


@pytest.mark.parametrize("section", WRAPPERS["sections"])
def test_every_section_of_a_language_model_is_read(section):
    text = json.dumps({"model_type": "new_vl", section: CONFIG, "vision_config": {"depth": 2}, "odd_thing": 3})
    imported = import_text(text, "c.json")
    assert imported.scenario().model == import_text(json.dumps(CONFIG), "c.json").scenario().model
    ignored = {entry.name: entry.note for entry in imported.ledger.ignored}
    assert ignored["model_type"] == f"a model around a language model, which alone is read, from {section}"
    assert ignored["vision_config"] == "beside the language model; it is left out and not priced"
    assert ignored["odd_thing"] == "of the model around the language model, not of that itself"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_made_of_fields_switches_and_readers(name):
    entry = ARCHITECTURES[name]
    assert name == name.lower()
    own = {"family", "fixed", "switches", "readers", "layers", "forbidden", "notes", "like", "left_out", "further_rows"}
    assert entry.keys() <= own
    assert all(isinstance(note, str) for note in entry.get("notes", ()))
    assert entry.get("family", "llama") in HUGGINGFACE["families"]
    assert set(entry.get("readers", ())) <= READERS.keys()
    fields = [entry.get("fixed", {})]
    for rule in entry.get("switches", {}).values():
        assert rule.keys() in ({True, False}, {True}, set(), {"refused", "because"})
        fields += [rule.get(True, {}), rule.get(False, {})]
    assert {field for each in fields for field in each} <= ModelSpec.model_fields.keys()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_switch_of_an_architecture_does_what_it_says(name):
    base = {**CONFIG, "model_type": name} | (MIXTURE if name in HUGGINGFACE["mixtures"] else {})
    if name in HUGGINGFACE["hybrids"]:
        dense = not {"sparse_step", "first_dense"} & set(ARCHITECTURES[name].get("readers", ()))
        base |= HYBRID | ({} if dense else MIXTURE)
    readers = ARCHITECTURES[name].get("readers", ())
    shared = {"n_shared_experts": "first_dense", "shared_expert_intermediate_size": "shared_expert"}
    base = {key: value for key, value in base.items() if shared.get(key) in (None, *readers)}
    base |= LATENT if "latent" in readers else {}
    if ARCHITECTURES[name].get("layers", {}).get("pattern") == "listed":
        base["layer_types"] = ["full_attention"] * 4
    base |= {
        "opt": {"word_embed_proj_dim": 256},
        "persimmon": {"qk_layernorm": False},
        "granitemoehybrid": {"num_local_experts": 0},
    }.get(name, {})
    total_params(import_text(json.dumps(base), "c.json").scenario().model)
    for key, rule in ARCHITECTURES[name].get("switches", {}).items():
        for value in (True, False):
            text = json.dumps({**base, key: value})
            if rule.get("refused") is value:
                with pytest.raises(SpecError, match=f"c.json: {key} = .*cannot count"):
                    import_text(text, "c.json")
                continue
            imported = import_text(text, "c.json")
            model = imported.scenario().model
            assert {field: getattr(model, field) for field in rule.get(value, {})} == rule.get(value, {})
            assert key not in {entry.name for entry in imported.ledger.ignored}


def test_every_reader_and_family_is_used():
    used = {reader for entry in ARCHITECTURES.values() for reader in entry.get("readers", ())}
    assert used == READERS.keys()
    assert {entry.get("family") for entry in ARCHITECTURES.values()} - {None} == HUGGINGFACE["families"].keys()


# Megatron-LM


@pytest.mark.parametrize(
    ("section", "record"), [("fields", ModelSpec), ("expert_fields", ModelSpec), ("degrees", ParallelPlan)]
)
def test_every_argument_of_a_field_is_read(section, record):
    for field, names in table("megatron")[section].items():
        assert field in record.model_fields
        for name in names:
            value = {"hidden-size": 64}.get(name, 4)
            groups = "--moe-router-num-groups 8" if name in ("moe-router-group-topk", "topk-group") else ""
            text = f"{EXPERTS.replace(f'--{name} ', '--unused ')} --{name} {value} {groups}"
            scenario = import_text(text, "run.sh", Given(gpus=32)).scenario()
            assert getattr(scenario.model if record is ModelSpec else scenario.plan, field) == value
    if section == "fields":
        assert set(table("megatron")["required"]) <= table("megatron")[section].keys()


@pytest.mark.parametrize("switch", table("megatron")["switches"])
def test_every_switch_of_a_script(switch):
    model = import_text(f"{SCRIPT} --{switch}", "run.sh").scenario().model
    assert {field: getattr(model, field) for field in table("megatron")["switches"][switch]} == (
        table("megatron")["switches"][switch]
    )


@pytest.mark.parametrize(("kind", "position"), table("megatron")["positions"].items())
def test_every_kind_of_position(kind, position):
    assert import_text(f"{SCRIPT} --position-embedding-type {kind}", "run.sh").scenario().model.position == position


@pytest.mark.parametrize("name", table("megatron")["old"])
def test_old_arguments_tell_the_stack(name):
    assert import_text(f"{SCRIPT} --{name} 1", "run.sh").scenario().stack.name == "megatron-2021"


@pytest.mark.parametrize(("kind", "words"), table("megatron")["vocabularies"].items())
def test_vocabularies(kind, words):
    rows = import_text(f"{SCRIPT} --tokenizer-type {kind}", "run.sh").scenario().model.vocab_size
    assert words <= rows < words + 128


@pytest.mark.parametrize("name", table("megatron")["nodes"])
def test_variables_that_say_how_many_nodes(name):
    text = f"{name}=3\n{SCRIPT.replace('torchrun', 'torchrun --nproc_per_node 8')}"
    assert import_text(text, "run.sh").scenario().plan.num_gpus == 24


@pytest.mark.parametrize("name", table("megatron")["gpus_per_node"])
def test_variables_that_say_how_many_gpus(name):
    text = f"{name}=4\n{SCRIPT.replace('torchrun', 'torchrun --nnodes 3')}"
    assert import_text(text, "run.sh").scenario().plan.num_gpus == 12


# torchtitan


@pytest.mark.parametrize(("name", "meant"), table("torchtitan")["schedules"].items())
def test_schedules(name, meant):
    data = nested(TITAN, "parallelism.pipeline_parallel_schedule", name)
    plan = import_text(json.dumps(nested(data, "training.local_batch_size", 8)), "c.json", GIVEN).scenario().plan
    assert [plan.schedule, plan.num_chunks] == meant


def test_models_of_other_names_are_presets():
    for name, preset in table("torchtitan")["models"].items():
        assert name not in preset_names("models")
        assert preset in preset_names("models")


def test_tables_are_read_once_and_only_when_asked(monkeypatch):
    table.cache_clear()
    read = []
    monkeypatch.setattr("sim.specs.importers.keys.load_yaml", lambda path: read.append(path.stem) or load_yaml(path))
    import_text(json.dumps(CONFIG), "c.json")
    import_text(json.dumps(CONFIG), "c.json")
    assert read == ["huggingface_wrappers", "huggingface", "huggingface_defaults"]
