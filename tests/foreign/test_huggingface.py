"""Hugging Face's config.json: what a left-out key means, language models inside others, and files that are none."""

import json

import pytest
from rows import rows

from sim.errors import SpecError
from sim.foreign.importers import import_text
from sim.foreign.importers.keys import by_name, table

TEXT = {
    "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
    "sliding_window": 1024,
}  # fmt: skip
BY_CLASS = "default of the model's class in transformers"
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "vocab_size": 1024,
}  # fmt: skip


def imported(**data):
    return import_text(json.dumps(data), "config.json")


def filled_in(account):
    return {entry.name: entry.value for entry in account.ledger.defaulted if entry.note == BY_CLASS}


def test_inside_another_model_sizes_may_be_left_out_and_are_listed():
    """Gemma 3 of 4 billion parameters, whose file on the hub says no more than this of its language model."""
    found = imported(model_type="gemma3", text_config=TEXT, vision_config={"model_type": "siglip_vision_model"})
    model = found.scenario().model
    assert (model.num_heads, model.num_kv_heads, model.head_dim, model.vocab_size) == (8, 4, 256, 262208)
    assert model.tied_embeddings
    assert model.layer_types == ("sliding_attention",) * 5 + ("full_attention",)
    listed = {"num_attention_heads": "8", "num_key_value_heads": "4", "head_dim": "256", "vocab_size": "262208"}
    assert {f"text_config.{name}": value for name, value in listed.items()}.items() <= filled_in(found).items()
    assert "model.num_heads" not in {entry.name for entry in found.ledger.read}


def test_null_is_no_left_out_key():
    none = {"model_type": "mistral", "num_key_value_heads": None, "sliding_window": None}
    model = imported(**{**LLAMA, **none}).scenario().model
    assert (model.num_kv_heads, model.sliding_window) == (8, 0)
    none = {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": None}
    assert imported(**{**LLAMA, **none}).scenario().model.head_dim == 32


def test_a_key_in_another_word_is_no_left_out_key():
    """What the class has for num_attention_heads must not stand beside the file's n_head."""
    data = {
        "model_type": "falcon", "n_head": 8, "n_layer": 2, "hidden_size": 512, "vocab_size": 1000,
        "multi_query": False,
    }  # fmt: skip
    model = imported(**data).scenario().model
    assert (model.num_heads, model.num_kv_heads, model.num_layers) == (8, 8, 2)


@rows(("outer", "inner", "tied"), [(True, False, True), (False, True, False), (None, True, True)])
def test_whether_embeddings_are_tied_is_said_around_the_language_model(outer, inner, tied):
    around = {} if outer is None else {"tie_word_embeddings": outer}
    found = imported(model_type="internvl", text_config={**LLAMA, "tie_word_embeddings": inner}, **around)
    assert found.scenario().model.tied_embeddings is tied
    told = {entry.name: entry.note for entry in found.ledger.ignored}
    assert (told.get("text_config.tie_word_embeddings") == "internvl around it says otherwise") is (outer is not None)


@rows(("wrapper", "kind"), by_name(table("huggingface_wrappers")["wrappers"]).items())
def test_a_section_without_a_model_type_is_what_the_model_around_it_means(wrapper, kind):
    small = {"hidden_size": 256, "vocab_size": 1000}
    named, meant = ({"model_type": kind, **small}, small)
    assert outcome(model_type=wrapper, text_config=named) == outcome(model_type=wrapper, text_config=meant)


def outcome(**data):
    """The model, or why there is none: some classes have no numbers that go with those of the test."""
    try:
        return imported(**data).scenario().model
    except SpecError as error:
        return str(error)


def test_infinity_and_nan_stand_where_they_do_not_matter():
    text = json.dumps(LLAMA)[:-1] + ', "time_step_limit": [0.0, Infinity], "attention_multiplier": NaN}'
    ignored = {entry.name: entry.value for entry in import_text(text, "config.json").ledger.ignored}
    assert (ignored["time_step_limit"], ignored["attention_multiplier"]) == ("[0.0, inf]", "nan")
    with pytest.raises(SpecError, match="vocab_size = inf must be a whole number"):
        import_text(text.replace('"vocab_size": 1024', '"vocab_size": Infinity'), "config.json")


@rows(
    ("data", "says"),
    [
        ({"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 8}, "an adapter .LORA. for org/base; import"),
        ({"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.6.0"}, "part of a diffusion pipeline .UNet2D"),
        ({"architectures": ["GPT2LMHeadModel"], "n_embd": 64}, "num_hidden_layers is missing"),
    ],
)  # fmt: skip
def test_files_that_are_no_models_config(data, says):
    with pytest.raises(SpecError, match=says):
        imported(**data)
