"""Parameter counts are those of Hugging Face transformers' own models, built on the meta device from a config."""

import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from counts import embedding_params
from rows import mostly_thorough, rows

from sim.foreign.importers import import_text
from sim.foreign.importers.keys import by_name, table
from sim.specs import ModelSpec, load_preset, preset_names
from sim.specs.yaml12 import load_yaml
from sim.work.sums import active_params, total_params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGURATIONS = load_yaml(Path(__file__).with_name("configurations.yaml"))
DENSE, MIXTURES, HYBRIDS = (table("huggingface")[kind] for kind in ("dense", "mixtures", "hybrids"))


FOREIGN, PUBLISHED = CONFIGURATIONS["library"], CONFIGURATIONS["published"]
SAME_AS = {"kimi_k2": "deepseek_v3"}
"""Model types of files on the hub that bring their own code, and the library's of the same shape."""
LAYERS = 2
"""Enough to tell a layer from the rest, and quick to build."""


@pytest.mark.parametrize("name", mostly_thorough(FOREIGN, [*FOREIGN][::3]))
def test_imported_config_counts_as_transformers_does(name):
    kind = name.partition(" ")[0].removesuffix("-rw")
    shape = dict(FOREIGN[name])
    if "num_layers" not in shape:
        shape.setdefault("num_hidden_layers", LAYERS)
    config, count = counted(kind, shape)
    # As a file says it, with what differs from the defaults only, and with everything.
    for text in (config.to_json_string(use_diff=True), config.to_json_string(use_diff=False)):
        text = text.replace(f'"model_type": "{SAME_AS.get(kind)}"', f'"model_type": "{kind}"')
        model = ModelSpec.read(import_text(text, "config.json").data["model"], "model")
        assert total_params(model.replace(num_mtp_layers=0)) == count


def published(name):
    """The model that a published configuration describes."""
    kind, shape, _ = PUBLISHED[name]
    return ModelSpec.read(import_text(json.dumps({"model_type": kind, **shape}), "config.json").data["model"], name)


@pytest.mark.parametrize("name", mostly_thorough(PUBLISHED, [*PUBLISHED][::3]))
def test_published_configuration_counts_as_transformers_does(name):
    kind, shape, billions = PUBLISHED[name]
    assert total_params(published(name)) == counted(kind, shape)[1] == pytest.approx(billions * 1e9, rel=0.001)


@pytest.mark.parametrize(
    "name", sorted({name.lower(): name for name in PUBLISHED}.keys() & set(preset_names("models")))
)
def test_preset_is_the_published_model(name):
    theirs = next(each for each in PUBLISHED if each.lower() == name)
    preset = ModelSpec.read(load_preset("models", name), name)
    assert total_params(preset.replace(num_mtp_layers=0)) == total_params(published(theirs))
    besides = {"name", "bias", "max_sequence_length", "num_mtp_layers"}
    ours, read = (model.model_dump(exclude=besides) for model in (preset, published(theirs)))
    assert ours == read


def test_multi_token_prediction_of_deepseek_v3():
    """The hub's file has 685B: 671B of the model, and its module with copies of the embedding and the head."""
    model = published("DeepSeek-V3")
    assert round(total_params(model) / 1e9, 2) == 671.03
    with_module = total_params(model.replace(num_mtp_layers=1))
    assert round((with_module - total_params(model)) / 1e9, 2) == 11.61
    assert with_module + 2 * embedding_params(model) == pytest.approx(685e9, rel=1e-3)


@rows(
    ("name", "count", "billions"),
    [  # arXiv:2508.10925, table 1, and Gemma 3's report, arXiv:2503.19786, without the embedding; Nemotron 3 Nano's with it
        ("gpt-oss-120b", lambda model: active_params(model) - embedding_params(model), 5.13),
        ("gpt-oss-20b", lambda model: active_params(model) - embedding_params(model), 3.61),
        ("DeepSeek-V3", lambda model: active_params(model) - embedding_params(model), 37),  # arXiv:2412.19437, abstract
        ("Qwen3-235B-A22B", active_params, 22),
        ("Qwen3-30B-A3B", total_params, 30.5),
        ("Gemma3-27B", lambda model: total_params(model) - embedding_params(model), 25.6),
        ("Nemotron-3-Nano-30B-A3B", total_params, 31.6),
        ("Nemotron-3-Nano-30B-A3B", active_params, 3.6),
    ],
)
def test_counts_that_reports_print(name, count, billions):
    digits = len(str(billions).partition(".")[2])
    assert round(count(published(name)) / 1e9, digits) == billions


def counted(kind, shape):
    """The library's configuration, and the parameters of its model that a gradient moves.

    Modules of multi-token prediction are none of its: it loads them for faster decoding only.
    """
    try:
        config = transformers.AutoConfig.for_model(SAME_AS.get(kind, kind), **shape)
    except ValueError:
        pytest.skip(f"this release of transformers does not know {kind}")
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    return config, sum(p.numel() for p in theirs.parameters() if p.requires_grad)


HUB = CONFIGURATIONS["hub"]
SMALL = {
    "num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip
MORE_NORMS = {"grok-1": 3 * 2 * 256}
"""Norms after attention and experts, in three layers."""


@pytest.mark.parametrize("name", HUB)
def test_a_model_type_of_the_hub_counts_as_its_like(name):
    keys, like, theirs = HUB[name]
    count = counted(like, {**SMALL, "pad_token_id": 0, **theirs})[1] + MORE_NORMS.get(name, 0)
    model = import_text(json.dumps({"model_type": name, **SMALL, **keys}), "config.json").scenario().model
    assert total_params(model) == count


def test_dbrx():
    """132B in all and 36B active, by its card; no release of transformers 5 builds it."""
    text = json.dumps({
        "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768, "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}, "tie_word_embeddings": False,
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    })  # fmt: skip
    model = import_text(text, "config.json").scenario().model
    assert (round(total_params(model) / 1e9), round(active_params(model) / 1e9)) == (132, 36)


def test_every_architecture_is_compared():
    """Here, or as its class stands, alone or in another, in test_transformers_defaults.py."""
    here = {name.partition(" ")[0].removesuffix("-rw") for name in FOREIGN} | {*HUB, "dbrx"}
    inside = set(table("huggingface_wrappers")["wrappers"])
    assert {*DENSE, *MIXTURES, *HYBRIDS} == here | (set(table("huggingface_defaults")["classes"]) - {"kimi_k2"})
    assert {
        name for name in table("huggingface_defaults")["classes"] if name.endswith(("_text", "_text_model"))
    } - here <= inside


def test_the_page_says_how_many_there_are():
    page = (Path(__file__).parents[2] / "docs" / "importing.md").read_text()
    assert f"**Dense decoders** of {len(DENSE)} model types" in page
    assert f"**Mixtures of experts** of {len(MIXTURES)} model types" in page
    assert f"**Hybrids** of {len(HYBRIDS)} model types" in page
    assert (
        f"**Language models inside** {len(by_name(table('huggingface_wrappers')['wrappers']))} multimodal types" in page
    )
