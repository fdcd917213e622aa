"""What names in tables of runs stand for: every pattern is met by a name of its kind, and every value is one of ours."""

import re

import pytest

from calibration.readers.csv_values import name_patterns
from calibration.readers.families import family_of
from calibration.readers.machines import cluster_of
from calibration.readers.stacks import stack_of
from sim.specs import GpuSpec, ModelSpec, load_preset, preset_names

# Name as tables have it -> node preset, profile
GPUS = {
    "V100-SXM2-16GB": ("dgx-1v-16gb", "v100"), "V100-SXM3-32GB": ("dgx-2h", "v100"), "V100-SXM2-32GB": ("dgx-1v", "v100"),
    "A100-SXM4-40GB": ("dgx-a100-40gb", "a100"), "A100-SXM4-80GB": ("dgx-a100-80gb", "a100"), "Ampere": ("dgx-a100-80gb", "a100"),
    "A800": ("hgx-a800", "a100"), "H800-SXM": ("hgx-h800", "h100"), "GH200-96GB": ("dgx-h200", "h200"), "H200": ("dgx-h200", "h200"),
    "H100-94GB": ("dgx-h100", "h100"), "H100-96GB-HBM2e": ("dgx-h100", "h100"), "H100-SXM": ("dgx-h100", "h100"),
    "GB300": ("gb300-tray", "b300"), "GB200": ("gb200-tray", "b200"), "B300": ("dgx-b300", "b300"), "B200": ("dgx-b200", "b200"),
}  # fmt: skip
# Framework and source as tables have them -> stack preset
STACKS = {
    ("Megatron-LM", "Shoeybi et al. 2019"): "megatron-2019",
    ("Megatron-LM", "Activation Recomputation"): "megatron-2022",
    ("Megatron-LM", "Zero Bubble"): "megatron-2023",
    ("Megatron-LM 23.04", "MegaScale"): "megatron-2023",
    ("Megatron-LM", ""): "megatron-2021",
    ("GPT-NeoX", ""): "megatron-2021",
    ("Megatron-DeepSpeed", ""): "megatron-deepspeed",
    ("DeepSpeed + Liger", ""): "deepspeed-liger",
    ("ZeRO + Megatron TP", ""): "deepspeed-zero3",
    ("DeepSpeed ZeRO-3", ""): "deepspeed-zero3",
    ("Aleph Alpha Scaling", ""): "aleph-alpha",
    ("Composer", ""): "llm-foundry",
    ("Meta in-house", ""): "llama3",
    ("torchtitan", ""): "torchtitan",
    ("NeMo", "NeMo Launcher 23.05"): "nemo-2023",
    ("InternEvo", ""): "internevo",
    ("MaxText", ""): "xla",
    ("NeMo", ""): "megatron-core",
}
# Model as tables call it -> a fact of its shape
MODELS = {
    "DeepSeekV3": ("num_dense_layers", 3), "Kimi-K2": ("num_dense_layers", 1), "DeepSeek-V2-Lite": ("intermediate_size", 10944),
    "DeepSeek V2": ("intermediate_size", 12288), "Qwen3 30B-A3B": ("query_key_norm", "head"), "Qwen2-57B": ("qkv_bias", True),
    "GPT OSS 120B": ("head_dim", 64), "Llama4 Scout": ("shared_expert_intermediate_size", 8192), "Mixtral 8x7B": None,
}  # fmt: skip


def first(section, fits):
    return next(number for number, entry in enumerate(name_patterns(section)) if fits(entry))


@pytest.mark.parametrize(("name", "meant"), GPUS.items())
def test_gpus(name, meant):
    cluster, profile, _ = cluster_of({"gpu": name}, 8)
    assert (cluster["node"]["preset"], profile) == meant


@pytest.mark.parametrize(("names", "meant"), STACKS.items())
def test_stacks(names, meant):
    stack, _ = stack_of({"framework": names[0], "source": names[1]}, {})
    assert stack["preset"] == meant


def test_every_pattern_is_met():
    used = {
        "gpus": {
            first("gpus", lambda e, node=node, name=name: re.search(e["name"], name) and e["node"] == node)
            for name, (node, _) in GPUS.items()
        },
        "stacks": {
            first("stacks", lambda e, f=f, s=s: re.search(e["framework"], f) and re.search(e.get("source", ""), s))
            for f, s in STACKS
        },
        "models": {first("models", lambda e, name=name: re.search(e["name"], name.lower())) for name in MODELS},
    }
    for section, found in used.items():
        assert found == set(range(len(name_patterns(section)))), section


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    fields = next(entry["fields"] for entry in name_patterns("models") if re.search(entry["name"], name.lower()))
    assert fields.keys() <= ModelSpec.model_fields.keys()
    assert MODELS[name] is None or fields[MODELS[name][0]] == MODELS[name][1]


def test_every_value_is_one_of_ours():
    for entry in name_patterns("gpus"):
        assert entry.keys() <= {"name", "memory", "node", "profile", "variants"}
        assert entry["node"] in preset_names("nodes")
        assert entry["profile"] in preset_names("profiles")
        for changes in entry.get("variants", {}).values():
            GpuSpec.read(
                {**load_preset("gpus", changes["preset"]), **{k: v for k, v in changes.items() if k != "preset"}}, ""
            )
    for entry in name_patterns("stacks"):
        assert entry.keys() <= {"framework", "source", "stack"}
        assert entry["stack"] in preset_names("stacks")


@pytest.mark.parametrize("entry", name_patterns("lineages"), ids=lambda entry: entry["word"])
def test_lineages(entry):
    assert entry["word"] == entry["word"].lower()
    assert family_of({"source": f"The {entry['word'].title()} paper", "model_name": "X"}) == f"{entry['lineage']} / x"
