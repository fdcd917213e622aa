"""What importers once read wrongly, or took and forgot: each is read right now, or said to be left out."""

import json

import pytest
from facts import wrong_facts
from grammars.writing import SMALL, with_keys
from rows import rows

from sim.errors import SpecError
from sim.foreign.importers import Given, import_text

# Megatron-LM

SCRIPT = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 256 --num-attention-heads 8 --seq-length 512"
EXPERTS = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 128"
CHUNKS = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
GATED = "--swiglu --disable-bias-linear --hidden-dropout 0"
OPTIMIZER = [
    f"training.{name}" for name in ("optimizer", "moment_precision", "master_precision", "second_moment_precision")
]
AWARE = "--use-precision-aware-optimizer"
MEGATRON = [  # (more of the command, facts)
    ("--bf16 --fp8-format hybrid --fp8-recipe delayed", {"training.precision": "fp8"}),
    ("--bf16 --fp8-recipe mxfp8", {"training.precision": "bf16"}),
    ("--bf16 --fp4-format e2m1 --fp4-recipe nvfp4", {"training.precision": "nvfp4"}),
    ("--bf16 --fp8-format e4m3 --first-last-layers-bf16 --num-layers-at-start-in-bf16 3 --num-layers-at-end-in-bf16 0", {"training.high_precision_layers": 3}),
    ("--bf16 --first-last-layers-bf16", {"training.high_precision_layers": 0}),
    ("--bf16 --fp8-format e4m3 --num-layers-at-start-in-bf16 3", {"training.high_precision_layers": 0}),
    ("--bf16 --optimizer muon", {"plan.zero_stage": 0}),
    ("--bf16 --optimizer muon --use-layer-wise-distributed-optimizer", {"plan.zero_stage": 1}),
    (f"--bf16 {EXPERTS} --moe-enable-deepep --moe-flex-dispatcher-backend hybridep", {"stack.expert_dispatcher": "hybridep"}),
    (f"--bf16 {EXPERTS} --moe-latent-size 64", {"model.expert_latent_size": 64}),
    (f"--bf16 {CHUNKS} --microbatch-group-size-per-virtual-pipeline-stage 4", {"plan.microbatch_group": 4}),
    ("--bf16 --microbatch-group-size-per-virtual-pipeline-stage 4", {"plan.microbatch_group": None}),
    (f"--bf16 {GATED} --no-bias-swiglu-fusion", {"stack.fused_bias_activation": False}),
    (f"--bf16 {GATED} --no-bias-gelu-fusion", {"stack.fused_bias_activation": True}),
    ("--bf16 --no-bias-gelu-fusion --no-bias-dropout-fusion", {"stack.fused_bias_activation": False}),
    (f"--bf16 {EXPERTS} --attention-softmax-in-fp32 --moe-router-fusion --cross-entropy-loss-fusion --softmax-type learnable",
     {"stack.fp32_softmax": True, "stack.fused_router": True, "stack.fused_cross_entropy": True, "model.attention_sinks": True}),
    *((f"--bf16 {words}", dict(zip(OPTIMIZER, meant, strict=True))) for words, meant in (
        ("--optimizer muon", ("muon", "fp32", "fp32", None)),
        ("--optimizer lion --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", ("adam", "fp32", "fp32", None)),
        (f"{AWARE} --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", ("adam", "bf16", "fp32", None)),
        (f"{AWARE} --exp-avg-dtype fp8 --exp-avg-sq-dtype bf16", ("adam", "fp8", "fp32", "bf16")),
        (f"{AWARE} --main-params-dtype fp16 --main-grads-dtype bf16", ("adam", "fp32", "fp16", None)),
    )),
    *((f"--bf16 {words}", {"stack.cuda_graphs": graphs, "stack.cuda_graph_scope": scope}) for words, graphs, scope in (
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn mlp", "scoped", ["attn", "mlp"]),
        ("--cuda-graph-impl transformer_engine", "scoped", ["attn", "mlp"]),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "full_iteration", []),
        ("--cuda-graph-impl full_iteration", "full_iteration", []),
        ("--cuda-graph-impl none --cuda-graph-scope attn", "none", []),
    )),
    *((f"--bf16 {words}", {path: value}) for words, path, value in (
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 3", "plan.sharding_group", None),
        ("--data-parallel-sharding-strategy optim_grads", "plan.zero_stage", 0),
        ("--use-torch-fsdp2 --torch-fsdp2-reshard-after-forward false", "plan.zero_stage", 3),
        ("--optimizer hybridadam --optimizer-offload-policy auto", "plan.optimizer_offload", 0.0),
        ("--optimizer cpu-adam", "plan.optimizer_offload", 1.0),
        ("--cpu-offloading-num-layers 2", "plan.offloaded_layers", 2),
        ("--recompute-granularity selective --recompute-modules=core_attn,mhc", "plan.recompute_modules", ["core_attn"]),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0", "plan.recompute", "none"),
        ("--activations-checkpoint-method block --activations-checkpoint-num-layers 1", "plan.recompute_method", "block"),
    )),
    (f"--bf16 {CHUNKS} --no-overlap-p2p-communication", {"stack.overlap_p2p": False}),
    ("--bf16 --fp8-format e4m3 --fp8-param-gather --use-distributed-optimizer", {"stack.fp8_gathers": True}),
    ("--fp16", {"stack.gradient_precision": "fp16"}),
]  # fmt: skip


# torchtitan

TITAN = {
    "model": {"name": "llama3", "flavor": "8B"}, "training": {"local_batch_size": 8, "seq_len": 4096},
    "parallelism": {"data_parallel_shard_degree": 8}, "activation_checkpoint": {"mode": "full"},
}  # fmt: skip
PIPE = {
    "parallelism.pipeline_parallel_degree": 2,
    "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
    "parallelism.pipeline_parallel_microbatch_size": 1,
}
LOSS = "parallelism.disable_loss_parallel"
ROTATE, BALANCER = "parallelism.context_parallel_rotate_method", "parallelism.context_parallel_load_balancer"
CP = {"parallelism.context_parallel_degree": 2}
GATHER = "quantize.linear.float8.enable_fsdp_float8_all_gather"
FP8 = {"model.converters": ["quantize.linear.float8"]}
MX = {"model.converters": ["quantize.linear.mx"]}
TORCHTITAN = [  # (keys, facts)
    (MX, {"training.precision": "mxfp8"}),
    ({**MX, "quantize.linear.mx.recipe_name": "mxfp4_cublas"}, {"training.precision": "mxfp4"}),
    ({"model.converters": ["quantize.grouped_mm.mx"]}, {"training.precision": "mxfp8"}),
    ({**FP8, GATHER: True}, {"stack.fp8_gathers": True}),
    ({**FP8, GATHER: True, "quantize.linear.float8.recipe_name": "rowwise"}, {"stack.fp8_gathers": False}),
    ({**MX, GATHER: True}, {"stack.fp8_gathers": False}),
    ({"training.dtype": "bfloat16"}, {"training.master_precision": "none", "training.moment_precision": "bf16", "stack.fp32_shards": False}),
    ({"training.mixed_precision_reduce": "bfloat16", "parallelism.tensor_parallel_degree": 2, LOSS: True, "optimizer.implementation": "for-loop"},
     {"stack.gradient_precision": "bf16", "stack.vocab_parallel_loss": False, "stack.fused_optimizer": False}),
    ({**PIPE, "parallelism.pipeline_parallel_layers_per_stage": 9}, {"plan.num_chunks": 2}),
    ({**PIPE, "parallelism.pipeline_parallel_layers_per_stage": 4, "parallelism.pipeline_parallel_first_stage_less_layers": 0, "parallelism.pipeline_parallel_last_stage_less_layers": 0}, {"plan.num_chunks": 4}),
    ({**CP, ROTATE: "alltoall"}, {"stack.overlap_context": True}),
    ({**CP, ROTATE: "allgather"}, {"stack.overlap_context": False}),
    ({**CP, BALANCER: None}, {"stack.balanced_context": False}),
    *(({"activation_checkpoint": {"mode": mode, "selective_ac_option": option}}, {path: value}) for mode, option, path, value in (
        ("selective", "op", "plan.recompute", "per_op"), ("selective", "1", "plan.recompute_method", "uniform"),
        ("selective", "2", "plan.recompute_num_layers", 16), ("selective", "5", "plan.recompute_num_layers", 6),
        ("selective", "99", "plan.recompute", "none"), ("full", "2", "plan.recompute_num_layers", 1),
    )),
    ({"compile.enable": True, "compile.components": ["loss"]}, {"stack.compiled": False}),
    ({"compile.enable": True, "compile.enable_async_tensor_parallel": True, "parallelism.tensor_parallel_degree": 2}, {"stack.async_tensor_parallel": True}),
]  # fmt: skip


def test_rounds_of_a_pipeline_are_its_flushes():
    keys = {**PIPE, "training.global_batch_size": 128}
    imported = import_text(json.dumps(with_keys(TITAN, keys)), "run.json")
    assert imported.scenario().flushes == 2
    assert not any("drains" in entry.note for entry in imported.ledger.unpriced)


def test_rounds_of_automodel_are_flushes_whose_last_sums():
    keys = {
        "model.pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B",
        "distributed.pp_size": 2,
        "distributed.dp_size": 1,
    }
    for defers in (None, False):
        more = {} if defers is None else {"distributed.defer_fsdp_grad_sync": defers}
        text = json.dumps(with_keys(SMALL["automodel"], {**keys, **more}))
        scenario = import_text(text, "c.json", kind="automodel").scenario()
        assert (scenario.flushes, scenario.stack.sums_at_last_flush) == (32, defers is None)


@rows(("layers", "stages"), [(5, 7), (17, 2)])
def test_stages_that_torchtitan_refuses(layers, stages):
    data = with_keys(TITAN, {**PIPE, "parallelism.pipeline_parallel_layers_per_stage": layers})
    with pytest.raises(SpecError, match=f"makes {stages} stages on 2 ranks, each of which must hold several stages"):
        import_text(json.dumps(data), "run.json")


# DeepSpeed

SPEED = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 3}}
STAGE = {"zero_optimization.stage": 1}
BF16 = {"bf16.enabled": True}
DEEPSPEED = [  # (keys, facts)
    ({"fp16.enabled": False, "bf16.enabled": False}, {"training.precision": "fp32"}),
    ({"fp16.enabled": "auto", "bf16.enabled": "auto"}, {"training.precision": "bf16"}),
    ({"torch_autocast.enabled": True, "torch_autocast.dtype": "float16"}, {"training.precision": "fp16"}),
    ({**BF16, "data_types.grad_accum_dtype": "fp32"}, {"stack.gradient_precision": "fp32"}),
    ({**BF16, "communication_data_type": "fp32"}, {"stack.gradient_precision": "fp32"}),
    (
        {**BF16, "bf16.bf16_master_weights_and_grads": True, "bf16.bf16_optimizer_states": True},
        {"training.master_precision": "none", "training.moment_precision": "bf16"},
    ),
    ({"zero_optimization.overlap_comm": False}, {"stack.overlap_grad_reduce": False}),
    ({**STAGE, "zero_optimization.overlap_comm": True}, {"stack.overlap_grad_reduce": True}),
    (
        {"zero_optimization.stage3_max_reuse_distance": 1e9, "zero_optimization.sub_group_size": 2e8},
        {"stack.max_reuse_params": 1e9, "stack.update_group_params": 2e8},
    ),
    ({"zero_optimization.mics_shard_size": 8}, {"plan.sharding_group": 8}),
    ({**STAGE, "tensor_parallel.autotp_size": 4}, {"plan.tp": 4, "plan.dp": 4, "training.global_batch_size": 32}),
    ({"sequence_parallel_size": 2}, {"plan.cp": 2}),
]
LLAMA = Given(model="llama2-7b", gpus=16)


# Megatron-Bridge's overrides

OVERRIDES = """
torchrun --nnodes 2 --nproc-per-node 8 train.py \\
    model.num_layers=8 model.hidden_size=256 model.num_attention_heads=8 model.seq_length=512 model.vocab_size=1024 \\
    train.micro_batch_size=1 train.global_batch_size=64 model.tensor_model_parallel_size=2 {}
"""
BRIDGE = [
    ("mixed_precision=bf16_with_fp8_current_scaling_mixed", {"training.high_precision_layers": 2}),
    ("+mixed_precision.fp8=hybrid mixed_precision.fp8_recipe=mxfp8", {"training.precision": "mxfp8"}),
    ("model.moe_token_dispatcher_type=alltoall model.moe_router_fusion=false model.window_size=[127,0]", {"stack.expert_dispatcher": "alltoall", "stack.fused_router": False, "model.sliding_window": 128, "plan.dp": 8}),
    ("optimizer.use_precision_aware_optimizer=true optimizer.exp_avg_dtype=torch.bfloat16 " "optimizer.exp_avg_sq_dtype=torch.bfloat16 ddp.use_distributed_optimizer=true", {"training.moment_precision": "bf16"}),
]  # fmt: skip


PROVIDER = """
model: {{_target_: megatron.bridge.models.{}, tensor_model_parallel_size: 1, expert_model_parallel_size: 8, seq_length: 4096}}
train: {{train_iters: 100, global_batch_size: 512, micro_batch_size: 4}}
mixed_precision: bf16_with_mxfp8_mixed
"""


def test_a_field_stands_in_one_line_of_the_account_and_a_provider_is_a_model():
    given = Given(gpus=8, cluster="superpod-gb200")
    imported = import_text(PROVIDER.format("qwen.Qwen3MoEModelProvider30B_A3B"), "config.yaml", given)
    read, filled = ({entry.name for entry in each} for each in (imported.ledger.read, imported.ledger.defaulted))
    assert "training.precision" in read - filled
    assert "plan.zero_stage" not in filled  # left to the framework's rules, which shard
    scenario = imported.scenario()
    assert (scenario.model.name, scenario.plan.zero_stage, scenario.training.precision) == ("qwen3-30b-a3b", 1, "mxfp8")
    with pytest.raises(SpecError, match=r"model\._target_ 'GPTModelProvider' is none of the models"):
        import_text(PROVIDER.format("gpt_provider.GPTModelProvider"), "config.yaml", given)


@rows(
    ("more", "name", "why"),
    [
        ("--bf16 --fp8-recipe mxfp8", "--fp8-recipe", "without effect without --fp8-format"),
        ("--bf16 --no-bias-gelu-fusion", "--no-bias-gelu-fusion", "the other of them is fused"),
        ("--bf16 --no-overlap-p2p-communication", "--no-overlap-p2p-communication", "without virtual stages"),
        ("--bf16 --softmax-type off-by-one", "--softmax-type", "without weights"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe custom", "--fp8-recipe", "a recipe of one's own; priced as fp8"),
    ],
)
def test_what_has_no_effect_in_a_script_is_said(more, name, why):
    ignored = {entry.name: entry.note for entry in import_text(f"{SCRIPT} {more}", "run.sh").ledger.ignored}
    assert why in ignored[name]


def test_four_bits_are_priced_where_there_are_units_for_them():
    text = f"{SCRIPT} --bf16 --fp4-format e2m1"
    assert import_text(text, "run.sh").data["cluster"] == "superpod-b200"
    assert import_text(text, "run.sh", Given(cluster="superpod-gb200")).data["cluster"] == "superpod-gb200"
    assert json.dumps(import_text(f"{SCRIPT} --bf16", "run.sh").data["cluster"]) == '"superpod-h100"'


FINE_TUNING = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _sft_common

def tuned():
    cfg = _sft_common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-30B-A3B").to_megatron_provider(load_weights=False)
    cfg.model.expert_model_parallel_size = 8
    {}
    return cfg
"""


@rows(
    ("line", "packed"),
    [
        ("cfg.train.global_batch_size = 64", 180),
        ("cfg.dataset.seq_length = 128", None),
        ('cfg.dataset = HFDatasetConfig(dataset_name="openmathinstruct", seq_length=4096)', None),
    ],
)
def test_megatron_bridge_fine_tunes_on_packed_samples_of_squad(line, packed):
    imported = import_text(FINE_TUNING.format(line), "tuned.py", Given(cluster="superpod-h100"))
    scenario = imported.scenario()
    assert scenario.training.packed_length == packed
    assert scenario.stack.fused_rotary == scenario.stack.fused_router == (packed is None)


SAID = [  # text, name of the file, what is given, facts
    *((f"{SCRIPT} {more}", "run.sh", Given(), facts) for more, facts in MEGATRON),
    *((json.dumps(with_keys(TITAN, keys)), "c.json", Given(), facts) for keys, facts in TORCHTITAN),
    *((json.dumps(with_keys(SPEED, keys)), "ds.json", LLAMA, facts) for keys, facts in DEEPSPEED),
    *((OVERRIDES.format(more), "overrides.sh", Given(), facts) for more, facts in BRIDGE),
]  # fmt: skip


@rows(("text", "name", "given", "facts"), SAID, ids=lambda row: row[0][-300:])
def test_a_setting_is_read(text, name, given, facts):
    assert not wrong_facts(import_text(text, name, given).scenario(), facts)


UNPRICED = [
    *((SPEED, {key: True}, "ds.json", None, LLAMA) for key in (
        "zero_optimization.zero_hpz_partition_size", "zero_optimization.zero_quantized_weights",
        "activation_checkpointing.cpu_checkpointing", "zero_optimization.offload_param.device", "torch_autocast.enabled",
    )),
    *((SMALL[kind], keys, "c.json", kind, Given(gpus=8)) for kind, keys in (
        ("maxtext", {"remat_policy": "save_qkv_proj"}),  # stands for what only comes near
        ("levanter", {"model.gradient_checkpointing": "offload"}),
        ("maxtext", {"scan_layers": False}),  # usually on
        ("automodel", {"model.use_liger_kernel": False}),
    )),
]  # fmt: skip


@rows(("base", "keys", "name", "kind", "given"), UNPRICED)
def test_what_a_step_may_take_longer_for_is_said(base, keys, name, kind, given):
    ledger = import_text(json.dumps(with_keys(base, keys)), name, given, kind=kind).ledger
    assert any(next(iter(keys)).startswith(entry.name) for entry in ledger.unpriced)
