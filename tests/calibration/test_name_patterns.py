"""What names in tables of runs stand for: every pattern is met by a name of its kind, and every value is one of ours."""

import re
from typing import get_args

import pytest

from flopcast_calibration.readers.csv_values import name_patterns
from flopcast_calibration.readers.families import family_of
from flopcast_calibration.readers.field_columns import check_columns
from flopcast_calibration.readers.frameworks import fields_by_words, framework_of, with_remarks
from flopcast_calibration.readers.machines import cluster_of
from sim.specs import ClusterSpec, GpuSpec, ModelSpec, ParallelPlan, StackSpec, load_preset, preset_names
from sim.specs.base import file_name
from sim.specs.datasheet import NAME as DATASHEET
from sim.specs.frameworks import resolve_stack

# Name as tables have it -> node preset, profile
GPUS = {
    "V100-SXM2-16GB": ("dgx-1v-16gb", "v100"), "V100-SXM3-32GB": ("dgx-2h", "v100"), "V100-SXM2-32GB": ("dgx-1v", "v100"),
    "A100-SXM4-40GB": ("dgx-a100-40gb", "a100"), "A100-SXM4-80GB": ("dgx-a100-80gb", "a100"), "Ampere": ("dgx-a100-80gb", "a100"),
    "A800": ("hgx-a800", "a100"), "H800-SXM": ("hgx-h800", "h100"), "H200": ("dgx-h200", "h200"),
    "H100-94GB": ("dgx-h100", "h100"), "H100-96GB-HBM2e": ("dgx-h100", "h100"), "H100-SXM": ("dgx-h100", "h100"),
    "GB300": ("gb300-tray", "b300"), "GB200": ("gb200-tray", "b200"), "B300": ("dgx-b300", "b300"), "B200": ("dgx-b200", "b200"),
    "GH200-96GB": ("gh200-96gb-4", "datasheet"), "GH200-144GB": ("gh200-144gb-4", "datasheet"), "VR200": ("vr200-tray", "datasheet"),
    "MI300": ("mi300x-8", "datasheet"), "MI325X": ("mi325x-8", "datasheet"), "MI350X": ("mi350x-8", "datasheet"),
    "MI355X": ("mi355x-8", "datasheet"), "RTX A6000": ("rtx-a6000-8", "datasheet"), "L40S": ("l40s-8", "datasheet"),
}  # fmt: skip
# Framework, source and other cells as tables have them -> framework and version
FRAMEWORKS = [
    ({"framework": "Megatron-LM (modified)", "source": "Zero Bubble"}, ("zero-bubble", "latest")),
    ({"framework": "Megatron-LM", "source": "Shoeybi et al. 2019"}, ("megatron-lm", "2019")),
    ({"framework": "Megatron-LM", "source": "README (September 2020)"}, ("megatron-lm", "2020-09")),
    ({"framework": "Megatron-LM", "source": "Activation Recomputation"}, ("megatron-lm", "2022-05")),
    ({"framework": "Megatron-LM 23.04", "source": "MegaScale"}, ("megatron-lm", "2023")),
    ({"framework": "Megatron-LM", "source": "Megatron-LM examples/moe_recipes"}, ("megatron-lm", "latest")),
    ({"framework": "Megatron-LM", "gpu": "A100-SXM4-80GB"}, ("megatron-lm", "2021")),
    ({"framework": "Megatron-Core r0.8.0", "source": "Megatron-LM README"}, ("megatron-core-recipes", "2024-07")),
    ({"framework": "Megatron-Core MoE"}, ("megatron-core-recipes", "latest")),
    ({"framework": "GPT-NeoX (Megatron-DeepSpeed)"}, ("gpt-neox", "latest")),
    ({"framework": "Megatron-DeepSpeed"}, ("megatron-deepspeed", "latest")),
    ({"framework": "ZeRO-3 + Megatron TP", "recompute": "full"}, ("deepspeed", "2021")),
    ({"framework": "metaseq FSDP + Megatron TP"}, ("metaseq", "latest")),
    ({"framework": "ZeRO-3 + Megatron TP"}, ("deepspeed", "2021")),
    ({"framework": "DeepSpeed ZeRO-3 + Liger"}, ("deepspeed", "latest")),
    ({"framework": "DeepSpeed ZeRO-3"}, ("deepspeed", "2022")),
    ({"framework": "Aleph Alpha Scaling"}, ("aleph-alpha", "latest")),
    ({"framework": "Composer"}, ("llm-foundry", "latest")),
    ({"framework": "Meta in-house"}, ("llama3", "latest")),
    ({"framework": "NeMo AutoModel (PyTorch FSDP2)"}, ("nemo-automodel", "latest")),
    ({"framework": "torchtitan"}, ("torchtitan", "latest")),
    ({"framework": "PyTorch FSDP"}, ("pytorch-fsdp", "latest")),
    ({"framework": "InternEvo"}, ("internevo", "latest")),
    ({"framework": "MaxText"}, ("xla", "latest")),
    (
        {"framework": "Megatron-Bridge", "source": "Megatron-Bridge performance summary 26.02.01"},
        ("megatron-bridge", "26.02"),
    ),
    ({"framework": "NeMo/Megatron-Bridge (MLPerf)", "notes": "LoRA rank 16"}, ("mlperf-nvidia", "latest")),
    ({"framework": "NeMo/Megatron-Bridge (MLPerf)"}, ("megatron-bridge", "latest")),
    ({"framework": "NeMo/Megatron-Core (MLPerf)"}, ("mlperf-nvidia", "latest")),
    ({"framework": "NeMo", "source": "NeMo-Framework-Launcher 23.08.03 README"}, ("nemo", "23.08")),
    ({"framework": "NeMo"}, ("nemo", "latest")),
    ({"framework": "PyTorch FSDP", "notes": "FSDP2"}, ("torchtitan", "latest")),
    ({"framework": "prime-rl (PyTorch FSDP2)"}, ("prime-rl", "latest")),
    (
        {"framework": "prime-rl (PyTorch FSDP2)", "notes": "commit unknown; 2026-01-15; peak"},
        ("prime-rl", "2026-01-15"),
    ),
    ({"framework": "OLMo-core"}, ("olmo-core", "latest")),
    ({"framework": "MegaScale"}, ("megascale", "latest")),
    ({"framework": "HAI-LLM (DualPipe)"}, ("hai-llm", "latest")),
    ({"framework": "Primus (Megatron-LM)"}, ("megatron-lm", "latest")),
    ({"framework": "Alpa"}, ("alpa", "latest")),
    ({"framework": "xFormers/in-house"}, ("xformers", "latest")),
    ({"framework": "SageMaker SMP"}, ("sagemaker", "latest")),
]
# Words of cells -> a field that they stand for
WORDS = [
    ({"notes": "HybridEP; CP a2a; recompute moe"}, ("stack.context_by_heads", True)),
    ({"notes": "attention/norm kernel: torch"}, ("stack.fused_softmax", False)),
    ({"framework": "Aleph Alpha", "notes": "attention/norm kernel: fused"}, ("stack.fused_softmax", True)),
    ({"notes": "attention/norm kernel: flash_attention2"}, ("stack.flash_version", "2")),
    ({"notes": "attention/norm kernel: flash_attentionv1.0.8"}, ("stack.flash_version", "1")),
    ({"notes": "attention/norm kernel: flash_attention2 + RMS kernel"}, ("stack.fused_norm", True)),
    ({"framework": "torchtitan", "notes": "eager; FSDP2"}, ("stack.compiled", False)),
    ({"framework": "prime-rl (PyTorch FSDP2)", "notes": "SFT, full fine-tuning"}, ("stack.chunked_loss", False)),
    ({"framework": "Composer", "notes": "mode PURE"}, ("stack.gradient_precision", "bf16")),
    ({"notes": "all-to-all dispatcher"}, ("stack.expert_dispatcher", "alltoall")),
    ({"notes": "SFT; DeepEP; CP p2p"}, ("stack.expert_dispatcher", "deepep")),
    ({"notes": "dispatcher hybridep; image"}, ("stack.expert_dispatcher", "hybridep")),
    ({"notes": "torch.compile; flash_attention_2; EP 1"}, ("stack.flash_version", "2")),
    ({"notes": "torch.compile; flash_attention_3; EP 1"}, ("stack.flash_version", "3")),
    ({"notes": "cuda_graph=None"}, ("stack.overlap_experts", False)),
    ({"notes": "TE CUDA graphs moe_router"}, ("stack.cuda_graphs", "scoped")),
    ({"notes": "BF16; TE CUDA graphs attn+moe_router (48 layers)"}, ("stack.cuda_graph_scope", ["attn", "moe_router"])),
    ({"notes": "TE CUDA graph scope mamba"}, ("stack.cuda_graph_scope", ["mamba"])),
    ({"notes": "CUDA graph transformer_engine: attn+mlp"}, ("stack.cuda_graph_scope", ["attn", "mlp"])),
    ({"notes": "cuda_graph=transformer_engine/['attn', 'mlp'], x"}, ("stack.cuda_graph_scope", ["attn", "mlp"])),
    ({"notes": "recompute_modules=['moe_act', 'layernorm']"}, ("plan.recompute_modules", ["moe_act", "layernorm"])),
    ({"notes": "args: recompute-modules=[mlp moe_act] x"}, ("plan.recompute_modules", ["mlp", "moe_act"])),
    ({"notes": "SFT; recompute moe+core_attn"}, ("plan.recompute_modules", ["moe", "core_attn"])),
    ({"notes": "all-to-all, recompute moe_act, NeMo 26.04"}, ("plan.recompute", "selective")),
    ({"notes": "CUDA graph local: full_iteration"}, ("stack.cuda_graphs", "full_iteration")),
    ({"notes": "cuda_graph=full_iteration"}, ("stack.cuda_graphs", "full_iteration")),
    ({"source": "Megatron-LM examples/moe_recipes README"}, ("stack.overlap_experts", False)),
    (
        {"source": "Megatron-LM examples/moe_recipes README", "notes": "full; paged stash"},
        ("stack.fused_experts", True),
    ),
    ({"notes": "cuda_graph=None; moe_a2a_overlap=True"}, ("stack.overlap_experts", True)),
    ({"notes": "first and last stage hold one layer fewer"}, ("plan.head_as_layer", True)),
]
# Words that name no module of a layer
NO_MODULES = ["CUDA graphs off", "recompute_modules=None", "recompute_modules=[]", "recompute norm,act", "no recompute"]
# Model as tables call it -> a fact of its shape
MODELS = {
    "DeepSeekV3": ("num_dense_layers", 3), "Kimi-K2": ("num_dense_layers", 1), "DeepSeek-V2-Lite": ("intermediate_size", 10944),
    "DeepSeek V2": ("intermediate_size", 12288), "Qwen3 30B-A3B": ("query_key_norm", "head"), "Qwen2-57B": ("qkv_bias", True),
    "GPT OSS 120B": ("head_dim", 64), "llama4-17b-16e": ("shared_expert_intermediate_size", 8192), "Mixtral 8x7B": None,
    "Nemotron_3_5_Lightning": ("num_mtp_layers", 2), "Nemotron_3_Super": ("num_mtp_layers", 2),
    **dict.fromkeys(["Qwen3-0.6B", "Qwen3-4B-Instruct-2507"]),
    **dict.fromkeys(["Nemotron_3_Nano", "Nemotron-H-8B", "Nemotron-H 56B", "LLAMA4-Scout-LLM", "Llama 4 Maverick"]),
}  # fmt: skip


def first(section, fits):
    return next(number for number, entry in enumerate(name_patterns(section)) if fits(entry))


@pytest.mark.parametrize(("name", "meant"), GPUS.items())
def test_gpus(name, meant):
    cluster, profile, _ = cluster_of({"gpu": name}, 8)
    assert (cluster["node"]["preset"], profile) == meant


@pytest.mark.parametrize(("row", "meant"), FRAMEWORKS)
def test_frameworks(row, meant):
    found = framework_of(row)
    assert (found.name, found.version) == meant
    assert resolve_stack({"framework": found.name, "version": found.version}, {}).release in preset_names("stacks")


@pytest.mark.parametrize("notes", NO_MODULES)
def test_words_that_name_no_modules(notes):
    assert not {"plan.recompute_modules", "stack.cuda_graph_scope"} & fields_by_words({"notes": notes}).keys()


@pytest.mark.parametrize(("row", "meant"), WORDS)
def test_words(row, meant):
    path, value = meant
    assert fields_by_words(row)[path] == value


OFFLOADED = ["expert_fc1", "moe_act", "attn_norm", "mlp_norm", "qkv_linear", "core_attn", "attn_proj"]


def megatron(arguments, before=""):
    return {"framework": "Megatron-LM functional tests", "notes": f"{before}args: {arguments}; real data"}


# Notes, or a row's cells, and the cell that says the same.
BRIDGE = {"framework": "Megatron-Bridge/Megatron-Core", "source": "Megatron-Bridge performance summary 26.06"}
CARD = {**BRIDGE, "source": "Megatron-Bridge model verification card", "model_name": "Moonlight-16B-A3B"}
MLPERF = {"framework": "NeMo/Megatron-Core (MLPerf)"}
V3 = {"framework": "Megatron-Bridge/Megatron-Core", "model_name": "DeepSeek V3"}
FOUR = "Et*4|(t*4|)*14tmL"  # layers a chunk, of DeepSeek-V3's 61 and its module of multi-token prediction
REMARKS = [
    ({"source": "Llama 3 paper Table 4 (arXiv:2407.21783)"}, ("cluster.preset", "llama3-h100-roce")),
    (V3, ("model.num_mtp_layers", "1")),
    ({**V3, "pp": "16", "vp_stages": ""}, ("plan.pipeline_layout", FOUR)),
    ({**V3, "pp": "8", "vp_stages": "2"}, ("plan.pipeline_layout", FOUR)),
    ({**V3, "pp": "4", "vp_stages": "4"}, ("plan.pipeline_layout", FOUR)),
    ({**V3, "pp": "2", "vp_stages": "8"}, ("plan.pipeline_layout", FOUR)),
    ({**V3, "pp": "8", "vp_stages": "1"}, ("plan.pipeline_layout", "Et*8|(t*8|)*6t*5mL")),
    (
        {**V3, "model_name": "DeepSeek V3 (w/o MTP)", "pp": "4", "vp_stages": "4"},
        ("plan.pipeline_layout", "Et*4|(t*4|)*14tL"),
    ),
    (
        {**V3, "model_name": "DeepSeekV3", "gpu": "B200", "precision": "mxfp8", "pp": "8", "ep": "32"},
        ("plan.recompute_modules", "[mla_up_proj, mlp]"),
    ),
    (
        {"source": "DGX Cloud Benchmarking v25.05.04", "model_name": "DeepSeek-V3", "gpu": "GB200"},
        ("plan.recompute_modules", "[core_attn]"),
    ),
    (
        {"source": "Megatron-MoE-ModelZoo", "gpu": "GB200", "precision": "mxfp8", "pp": "4", "vp_stages": "6"},
        ("stack.overlap_experts", "true"),
    ),
    ({"source": "Megatron-Bridge skill card (cuda-graphs)", "model_name": "GPT-OSS-20B"}, ("seq_len", "4096")),
    ("recompute norm,act; also: tflops_per_gpu=245", ("plan.recompute_modules", "[layernorm, moe_act]")),
    ({"source": "Megatron-LM examples/moe_recipes README", "notes": ""}, ("stack.dispatcher_sms", "16")),
    ({**CARD, "notes": "SFT offline packed"}, ("training.packed_length", "180")),
    ({**BRIDGE, "notes": "NeMo container 26.06; SFT; also"}, ("training.packed_length", "180")),
    ({**BRIDGE, "notes": "NeMo container 26.06; LoRA; also"}, ("training.adapter_targets", "[linear_qkv]")),
    ({**BRIDGE, "gpu": "GB300", "notes": "26.06; LoRA; also"}, ("stack.cuda_graph_scope", "[mlp]")),
    ({**CARD, "notes": "MLA; SP from the 8-GPU recipe"}, ("stack.fused_router", "false")),
    ({**CARD, "notes": "recipe moonlight_16b_sft_8k_config"}, ("stack.fused_cross_entropy", "false")),
    ({**CARD, "notes": "recipe moonlight_16b_sft_8gpu_h100_bf16_tp1_config"}, ("stack.fused_router", "true")),
    ({**CARD, "notes": "recipe moonlight_16b_peft_4gpu_h100"}, ("stack.expert_dispatcher", "alltoall")),
    ("HybridEP; Adam moments BF16", ("training.moment_precision", "bf16")),
    ({**CARD, "tp": "2", "notes": "MLA"}, ("stack.bound_to_cpus", "false")),
    ("pretrain; LoRA", ("training.adapter_rank", "16")),
    ("LoRA rank 8 alpha 16 on attention projections", ("training.adapter_targets", "[linear_qkv, linear_proj]")),
    ("LoRA rank 8; packed", ("training.adapter_rank", "8")),
    ("LoRA rank 16, up to 4 adapters", ("training.adapter_rank", "16")),
    ("LoRA rank 32; packed 4K", ("training.adapter_rank", "32")),
    ("LoRA rank 64", ("training.adapter_rank", "64")),
    ({**MLPERF, "notes": "LoRA rank 16; FP8 healing phase"}, ("training.high_precision_layers", "2")),
    ({**MLPERF, "notes": "LoRA; config_GB200_1x4x2xtp1pp1cp1.sh (2 microbatches)"}, ("plan.offloaded_layers", "20")),
    ("MLPerf; FP8 hybrid", ("precision", "fp8")),
    ("torchao MXFP8 recipe; fp8 grads", ("precision", "mxfp8")),
    ("linear layers in MXFP4", ("precision", "mxfp4")),
    ("NVFP4 phase", ("precision", "nvfp4")),
    ("ONE layer forward+backward", ("unmodelled", "a single layer, not a training step")),
    ("CPU offload of checkpoints", ("offloaded_layers", "all")),
    ("activation checkpointing with CPU offloading of activations", ("offloaded_layers", "all")),
    ("activation CPU offload=True; mode PURE", ("offloaded_layers", "all")),
    ("series; optimizer CPU offload 25%", ("plan.optimizer_offload", "0.25")),
    ("series; optimizer CPU offload 50%", ("plan.optimizer_offload", "0.5")),
    ("series; optimizer CPU offload 75%", ("plan.optimizer_offload", "0.75")),
    ("series; optimizer CPU offload 100%", ("plan.optimizer_offload", "1.0")),
    ("optimizer CPU offload 100% with D2H/H2D overlap", ("stack.overlap_optimizer_offload", "true")),
    ("(the table itself states only node counts)", ("doubtful", "recompute")),
    ("table column Mic-BS = GBS/DP", ("doubtful", "micro_batch_seqs")),
    ("preset: cpu_offloading_num_layers=40, cuda_graph=None", ("plan.offloaded_layers", "40")),
    ("long-context table; routing: dropless (real routing)", ("training.expert_skew", "0.75")),
    ({"model_name": "DeepSeekV3 (tokendrop)"}, ("training.expert_capacity_factor", "1.0")),
    ({"model_name": "DeepSeekV3 (tokendrop)"}, ("training.pad_to_capacity", "true")),
    ({"model_name": "Qwen3_235B_a22B (tokendrop)", "gpu": "GB200"}, ("stack.cuda_graphs", "full_iteration")),
    ({"model_name": "Qwen3_30B_a3B (tokendrop)", "gpu": "B200"}, ("stack.cuda_graphs", "full_iteration")),
    ({"framework": "Megatron-Bridge/Megatron-Core", "notes": "LoRA rank 32; packed 4K"}, ("micro_batch_seqs", "1")),
    ({"framework": "NeMo AutoModel", "model_name": "Nemotron-3-Super-120B"}, ("model.num_mtp_layers", "0")),
    ("mock data; HybridEP permute fusion, 32 SMs", ("stack.dispatcher_sms", "32")),
    ("cp=2 vp= ep=8 experts=64; topk=6", ("cp", "2")),
    ("cp=2 vp=5 ep=8 experts=64; topk=6", ("vp_stages", "5")),
    ("cp=2 vp= ep=8 experts=64; topk=6", ("ep", "8")),
    ("cp=2 vp= ep=8 experts=64; topk=6", ("experts", "64")),
    ("cp=2 vp= ep=8 experts=64; topk=6", ("topk", "6")),
    ("kv_heads=16 zero=1; x", ("kv_heads", "16")),
    ("kv_heads=16 zero=1; x", ("zero_stage", "1")),
    ({"framework": "MLPerf", "notes": "LoRA"}, ("training.adapter_rank", "16")),
    ({"framework": "Megatron-Bridge", "notes": "mem_gb=36.6 (peak allocated after iteration 2)"}, ("peak_counts", "allocated")),
    ({"framework": "prime-rl", "notes": "peak 5.088 GiB as printed"}, ("peak_counts", "reserved")),
    ({"framework": "prime-rl", "notes": "LoRA rank 16, up to 4 adapters; fake"}, ("training.num_adapters", "4")),
    ({"framework": "Megatron-LM", "model_name": "deepseek_proxy_fsdp_ep2"}, ("training.fp32_activations", "true")),
    (megatron("", before="mem-max-allocated-bytes (torch peak); "), ("peak_rank", "last")),
    (megatron("overlap-grad-reduce"), ("stack.fused_cross_entropy", "false")),
    (megatron("overlap-grad-reduce"), ("model.tied_embeddings", "true")),
    (megatron("overlap-grad-reduce"), ("model.dropout", "0.1")),
    (megatron("untie-embeddings-and-output-weights"), ("model.tied_embeddings", "false")),
    (megatron("attention-backend=unfused"), ("stack.attention", "math")),
    (megatron("transformer-impl=local"), ("stack.attention", "math")),
    (megatron("multi-latent-attention"), ("model.key_value_rank", "32")),
    (megatron("moe-layer-freq=([0]*1+[1]*15)"), ("model.num_dense_layers", "1")),
    (megatron("moe-layer-freq=([0]*3+[1]*12)"), ("model.num_dense_layers", "3")),
    (megatron("moe-shared-expert-intermediate-size=1024"), ("model.shared_expert_intermediate_size", "1024")),
    (megatron("mtp-num-layers=2"), ("model.num_mtp_layers", "2")),
    (megatron("optimizer=muon"), ("training.optimizer", "muon")),
    (megatron(f"fine-grained-activation-offloading offload-modules=[{' '.join(OFFLOADED)}]"), ("offloaded_layers", "all")),
    ({"framework": "Megatron-LM", "model_name": "tp2_distill"}, ("unmodelled", "a teacher's forward pass beside the model's step")),
]  # fmt: skip


def row_of(said):
    return {"notes": said} if isinstance(said, str) else said


@pytest.mark.parametrize(("said", "meant"), REMARKS)
def test_remarks(said, meant):
    cell, text = meant
    assert with_remarks(row_of(said))[cell] == text
    assert with_remarks({**row_of(said), cell: "said"})[cell] == "said"
    assert check_columns([cell]) == []


@pytest.mark.parametrize(
    ("arguments", "cell"),
    [
        ("cross-entropy-loss-fusion cross-entropy-fusion-impl=native", "stack.fused_cross_entropy"),
        ("attention-backend=fused transformer-impl=transformer_engine", "stack.attention"),
        ("multi-latent-attention qk-layernorm", "model.dropout"),
        ("hybrid-layer-pattern=MEM*E", "model.dropout"),
        ("offload-modules=[core_attn]", "offloaded_layers"),
    ],
)
def test_arguments_that_say_nothing_of_a_cell(arguments, cell):
    assert cell not in with_remarks(megatron(arguments))


def test_settings_without_a_value_leave_cells_empty():
    assert not with_remarks({"notes": "cp=1 vp=1 ep= experts= topk="})["experts"]


def test_words_choose_and_switch_but_set_no_number():
    for entry in name_patterns("words"):
        for path, value in entry["set"].items():
            section, _, field = path.partition(".")
            info = {"stack": StackSpec, "plan": ParallelPlan}[section].model_fields[field]
            assert isinstance(value, bool) or value in get_args(info.annotation), path


def fits(entry, row):
    patterns = entry.get("cells_say") or {
        cell: pattern for cell, pattern in entry.items() if cell not in ("set", "cells")
    }
    return all(re.search(pattern, row.get(cell, "")) for cell, pattern in patterns.items())


def test_every_pattern_is_met():
    used = {
        "gpus": {
            first("gpus", lambda e, node=node, name=name: re.search(e["name"], name) and e["node"] == node)
            for name, (node, _) in GPUS.items()
        },
        "frameworks": {first("frameworks", lambda e, row=row: fits(e, row)) for row, _ in FRAMEWORKS},
        "words": {
            number for number, entry in enumerate(name_patterns("words")) if any(fits(entry, row) for row, _ in WORDS)
        },
        "remarks": {
            number
            for number, entry in enumerate(name_patterns("remarks"))
            if any(fits(entry, row_of(said)) for said, _ in REMARKS)
        },
        "models": {first("models", lambda e, name=name: re.search(e["name"], name.lower())) for name in MODELS},
    }
    for section, found in used.items():
        assert found == set(range(len(name_patterns(section)))), section


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    entry = next(entry for entry in name_patterns("models") if re.search(entry["name"], name.lower()))
    fields = entry.get("fields", {})
    assert entry.get("preset") in {None, *preset_names("models")}
    assert fields.keys() <= ModelSpec.model_fields.keys()
    assert MODELS[name] is None or fields[MODELS[name][0]] == MODELS[name][1]


def test_every_value_is_one_of_ours():
    for entry in name_patterns("gpus"):
        assert entry.keys() <= {"name", "memory", "node", "profile", "variants"}
        assert entry["node"] in preset_names("nodes")
        assert entry["profile"] in [*preset_names("profiles"), DATASHEET]
        for changes in entry.get("variants", {}).values():
            GpuSpec.read(
                {**load_preset("gpus", changes["preset"]), **{k: v for k, v in changes.items() if k != "preset"}}, ""
            )
    for entry in name_patterns("frameworks"):
        assert entry.keys() <= {"cells_say", "is", "version", "cells", "host_checkpoints", "because"}
        assert entry["is"] in preset_names("frameworks")
        assert "because" in entry or not entry.keys() & {"cells", "host_checkpoints"}
    for entry in name_patterns("links"):
        assert entry.keys() <= {"words", "profile", "norate", "set", "because"}
        assert {file_name(name) for name in ClusterSpec.model_fields} >= entry["set"].keys()


@pytest.mark.parametrize("entry", name_patterns("lineages"), ids=lambda entry: entry["word"])
def test_lineages(entry):
    assert entry["word"] == entry["word"].lower()
    assert family_of({"source": f"The {entry['word'].title()} paper", "model_name": "X"}) == f"{entry['lineage']} / x"
