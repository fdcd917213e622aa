"""Models of the hub by name: their shapes have as many parameters as are published, and other names mean the same."""

import json

import pytest
from rows import rows

from sim.errors import SpecError
from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.keys import by_name, table
from sim.specs.loading import build_scenario, load_scenario
from sim.specs.model import ModelSpec
from sim.specs.presets import load_preset, preset_names
from sim.work.sums import total_params

HUB = table("hub_models")


@rows("name", HUB["models"])
def test_a_model_has_its_published_number_of_parameters(name):
    *_, published = HUB["models"][name]
    model = ModelSpec.read(known_model(name), name)
    assert total_params(model) == pytest.approx(published, rel=1e-6)


@rows(("name", "same"), by_name(HUB["same"]).items())
def test_another_name_is_that_of_a_model_that_is_known(name, same):
    assert same in HUB["models"] or same in preset_names("models") or name == same
    assert known_model(name) is not None
    assert name == name.lower()


@rows(
    ("name", "parameters"),
    [
        ("meta-llama/Llama-3.2-1B-Instruct", 1.236e9), ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", 8.03e9),
        ("casperhansen/llama-3-70b-fp16", 7.055e10), ("Qwen/Qwen2.5-Coder-7B-Instruct", 7.616e9),
        ("Qwen/Qwen3-4B-Instruct-2507", 4.022e9), ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 1.477e10),
        ("alignment-handbook/zephyr-7b-sft-qlora", 7.242e9), ("mistralai/Mistral-7B-Instruct-v0.2", 7.242e9),
        ("google/gemma-3-27b-it", 2.701e10),
        ("microsoft/Phi-3-mini-4k-instruct", 3.821e9), ("checkpoints/meta-llama/Llama-2-7b-hf/", 6.738e9),
        ("mosaicml/mpt-7b@68e1a8e0ebb9b30f3c45c1ef6195980f29063ae2", 6.649e9),
    ],
)  # fmt: skip
def test_repositories_by_other_owners_and_with_endings(name, parameters):
    found = known_model(name)
    model = ModelSpec.read(load_preset("models", found) if isinstance(found, str) else found, name)
    assert total_params(model) == pytest.approx(parameters, rel=5e-3)


@rows("name", ["meta-llama/Llama-3.2-11B-Vision-Instruct", "Qwen/Qwen2-Audio-7B", "nobody/nothing", ""])
def test_models_of_another_shape_are_not_taken_for_their_namesakes(name):
    assert known_model(name) is None


QWEN = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder with the files that a model may be: a config.json, a model's fields, a scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text(json.dumps(QWEN), encoding="utf-8")
    (tmp_path / "own.yaml").write_text("preset: qwen2.5-7b\nnum_layers: 14\n", encoding="utf-8")
    (tmp_path / "scenario.yaml").write_text("model: Qwen/Qwen2.5-7B\nplan: {}\n", encoding="utf-8")


@pytest.mark.usefixtures("beside")
@rows(
    ("name", "layers"),
    [("qwen2.5-7b", 28), ("Qwen/Qwen2.5-7B-Instruct", 28), ("weights/config.json", 28), ("weights", 28), ("own.yaml", 14),
     ("scenario.yaml", 28)],
)  # fmt: skip
def test_a_scenario_takes_a_model_by_any_of_its_names(name, layers):
    """In the file, as its preset, and on the command line: one and the same model."""
    rest = {"cluster": "superpod-h100", "plan": {}, "training": {"global_batch_size": 1, "sequence_length": "4k"}}
    said = build_scenario({"model": name, **rest}).model
    assert (said.hidden_size, said.num_layers) == (3584, layers)
    assert build_scenario({"model": {"preset": name}, **rest}).model == said
    assert build_scenario({"model": "gpt-1.7b", **rest}, [f"model={name}"]).model == said
    assert build_scenario({"model": {"preset": name, "num_layers": 4}, **rest}).model.num_layers == 4


@pytest.mark.usefixtures("beside")
def test_a_file_is_also_found_beside_the_scenario(tmp_path):
    text = "model: config.json\ncluster: selene\nplan: {}\ntraining: {global_batch_size: 1, sequence_length: 4k}\n"
    (tmp_path / "weights" / "mine.yaml").write_text(text, encoding="utf-8")
    assert load_scenario("weights/mine.yaml").model.hidden_size == 3584
    (tmp_path / "config.json").write_text(json.dumps(QWEN | {"num_hidden_layers": 2}), encoding="utf-8")
    assert load_scenario("weights/mine.yaml").model.num_layers == 2  # what is here comes first


def test_weights_in_fewer_bits_are_an_assumption_of_the_scenario():
    rest = {"cluster": "superpod-h100", "plan": {}, "training": {"global_batch_size": 1, "sequence_length": 4096}}
    stored = build_scenario({"model": "unsloth/Qwen2.5-7B-bnb-4bit", **rest})
    plain = build_scenario({"model": "unsloth/Qwen2.5-7B", **rest})
    assert [note for note in stored.assumed if note not in plain.assumed] == [
        "weights in fewer bits of unsloth/Qwen2.5-7B-bnb-4bit: weights that are stored in fewer bits are priced in the "
        "precision of the training"
    ]


def test_a_model_that_is_not_known_names_the_remedy():
    with pytest.raises(SpecError, match=r"unknown model preset 'nobody/none-9b'.* give the path of its config.json"):
        load_preset("models", "nobody/none-9b")
