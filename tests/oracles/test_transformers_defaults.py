"""Every model type that Hugging Face transformers knows is read or refused with a reason of its own; those that are read,
as their classes have them, have the parameters of the library's own models; and the table of defaults is its own."""

import json
import os
import re

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from class_defaults import class_defaults, written
from hypothesis import settings
from packaging.version import Version

from sim.errors import SpecError
from sim.foreign.importers import import_text
from sim.foreign.importers.huggingface.architectures import class_values, known_architectures
from sim.foreign.importers.keys import TABLES, by_name, table
from sim.specs import ModelSpec
from sim.work.sums import total_params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

WRAPPERS = by_name(table("huggingface_wrappers")["wrappers"])
SHIPPED = (TABLES / "huggingface_defaults.yaml").read_text()
INSTALLED, OF_TABLES = transformers.__version__, re.search(r"with transformers (\S+);", SHIPPED)[1]
pytestmark = pytest.mark.skipif(
    Version(INSTALLED) > Version(OF_TABLES),
    reason=f"transformers {INSTALLED} is newer than {OF_TABLES}, of which the importer's tables are",
)


def test_the_table_of_defaults_is_that_of_the_classes():
    if INSTALLED != OF_TABLES:
        pytest.skip(f"the table is of {OF_TABLES}, not of {INSTALLED}")
    assert {kind: class_values(kind) for kind in table("huggingface_defaults")["classes"]} == class_defaults()
    assert written(class_defaults()) == SHIPPED


def test_every_model_type_is_read_or_refused_for_a_reason():
    """None is one that nobody has thought of: a new one of the next release belongs into one of the tables."""
    for kind in {*CONFIG_MAPPING_NAMES, *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}:
        if kind.lower() not in {*known_architectures(), *WRAPPERS}:
            with pytest.raises(SpecError) as error:
                import_text(json.dumps({"model_type": kind}), "config.json")
            assert f"model_type {kind!r} is " in str(error.value)
            assert "is not known" not in str(error.value)


def some(kinds):
    """Every twelfth, or all with --hypothesis-profile=thorough: a model of the library takes a third of a second."""
    return sorted(kinds)[:: 1 if settings().max_examples > 100 else 12]


# Model types whose class, as it stands, builds no model -> what it needs.
NEEDED = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4, "moe_topk": 2},
    "hunyuan_vl_text": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "persimmon": {"qk_layernorm": False},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "deepseek_ocr2_text": {"num_experts_per_tok": 6, "mlp_layer_types": ["dense"] + ["sparse"] * 31},
    "gptj": {"vocab_size": 50400},  # its head has a bias as wide as its vocabulary, which its own default has not
}
NOT_COUNTED = ("act_fn.alpha", "embed_tokens_extend", "e_score_correction_bias")
"""Parts of names of parameters that the account says are not counted."""
NO_MODEL = {"dbrx"}
"""Classes that build no model in any release of transformers 5 that was looked at."""


def counted(decoder, head):
    total = sum(
        parameter.numel()
        for name, parameter in decoder.named_parameters()
        if parameter.requires_grad and not any(part in name for part in NOT_COUNTED)
    )
    same = head is None or head.weight is decoder.get_input_embeddings().weight
    return total + (0 if same or any(head.weight is each for each in decoder.parameters()) else head.weight.numel())


def read(config, **changes):
    data = json.loads(config.to_json_string(use_diff=True)) | changes
    imported = import_text(json.dumps(data), "config.json")
    assert not [entry for entry in imported.ledger.ignored if entry.note == "not known to flopcast"]
    return total_params(ModelSpec.read(imported.data["model"], "model").replace(num_mtp_layers=0))


@pytest.mark.parametrize("kind", some({*known_architectures()} & {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - NO_MODEL))
def test_a_class_as_it_stands_counts_as_its_model(kind):
    """At its full size, which on the meta device costs nothing."""
    config = transformers.AutoConfig.for_model(kind, **NEEDED.get(kind, {}))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert read(config) == counted(model, None)


@pytest.mark.parametrize("kind", some({*WRAPPERS} & {*CONFIG_MAPPING_NAMES}))
def test_the_language_model_in_another_counts_as_its_own(kind):
    """The larger model is built with its towers; its decoder and head are counted."""
    config = transformers.AutoConfig.for_model(kind)
    inner = config.get_text_config(decoder=True)
    for key, value in NEEDED.get(inner.model_type, {}).items():
        setattr(inner, key, value)
    model = wrapper_of(config)
    head = model.get_output_embeddings()
    if head is None:
        pytest.skip("the class has no head")
    tied = head.weight is model.get_decoder().get_input_embeddings().weight
    assert read(config, tie_word_embeddings=tied) == counted(model.get_decoder(), head)


def wrapper_of(config):
    """The library's model, on the meta device."""
    for factory in ("AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModel"):
        try:
            with torch.device("meta"):
                return getattr(transformers, factory).from_config(config)
        except (ImportError, AttributeError, TypeError, NotImplementedError) as error:
            pytest.skip(f"the library builds none as it stands: {error!r:.80}")
        except ValueError as error:
            last = error
    return pytest.skip(f"the library builds none as it stands: {last!r:.80}")
