"""Files that say one thing and are easily read as another: what their tool does with them."""

import json

import pytest
from grammars.writing import SMALL, with_keys
from rows import rows

from sim.errors import SpecError
from sim.foreign.importers import Given, import_text
from sim.foreign.importers.huggingface.hub_models import whole_shape

MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length "
    "1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 "
)
EXPERTS = f"{MEGATRON} --bf16 --num-experts 8 --expert-model-parallel-size 8 --moe-router-topk 2"
MAXTEXT = (
    "base_emb_dim: 1024\nbase_num_query_heads: 8\nbase_num_kv_heads: 4\nbase_mlp_dim: 4096\nbase_num_decoder_layers: 4\n"
    "head_dim: 128\nvocab_size: 32000\nper_device_batch_size: 1\nmax_target_length: 2048\nglobal_parameter_scale: "
)
HERE = 'DIR="$(cd "$(dirname "$0")" &> /dev/null && pwd)"\ncd $DIR\n'
SLIME = (
    'SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\nsource "${SCRIPT_DIR}/models/glm4-9B.sh"\n'
    "ray job submit -- python3 train.py --actor-num-nodes 1 ${MODEL_ARGS[@]} --rollout-batch-size 32 --advantage-estimator grpo\n"
)
EXPERTS_OF_NEMO = {
    "model.tensor_model_parallel_size": 1, "model.num_moe_experts": 8, "model.expert_model_parallel_size": 4,
    "model.moe_expert_capacity_factor": 1.25, "model.moe_pad_expert_input_to_capacity": True, "model.vocab_size": 1024,
}  # fmt: skip
CAPACITY = {"expert_capacity_factor": 1.25, "pad_to_capacity": True, "expert_dispatcher": "allgather", "ep": 4}
AWARE = f"{MEGATRON} --bf16 --use-distributed-optimizer --use-precision-aware-optimizer"
BRIDGE = (
    "torchrun --nproc-per-node 8 run_recipe.py --recipe llama3_8b_pretrain_config train.global_batch_size=128 "
    "train.micro_batch_size=1 model.context_parallel_size=1"
)
BRIDGE_RECIPE = """from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common


def llama3_8b_pretrain_16gpu_h100_bf16_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 4
    cfg.train.global_batch_size = 64
    cfg.train.micro_batch_size = 1
    cfg.dataset.seq_length = 8192
    return cfg
"""
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: "
LLAMA_FACTORY = "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: sft\nfinetuning_type: full\ntemplate: qwen\nbf16: true\ndataset: x\n"
SWIFT = "model: Qwen/Qwen2.5-7B-Instruct\ntrain_type: full\ntorch_dtype: bfloat16\ndataset: [x]\n"


IN_16_BITS = {"precision": "bf16", "master_precision": "none", "moment_precision": "bf16", "gradient_precision": "bf16"}
FUSED_ADAM = {
    "_target_": "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam", "master_weights": True,
    "store_param_remainders": True, "exp_avg_dtype": "torch.bfloat16", "exp_avg_sq_dtype": "torch.bfloat16",
}  # fmt: skip
IN_32_BITS = {"master_precision": None}
QWEN_EXPERTS = {"base_model": "Qwen/Qwen3-30B-A3B", "experts_implementation": "grouped_mm"}
NEOX = (
    '{"pipe_parallel_size": 1, "model_parallel_size": 1, "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8,\n'
    '"seq_length": 512, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1, "overlap_comm": True,},}\n'
)


FLAGSCALE = (
    "model:\n  num_layers: 8\n  hidden_size: 1024\n  num_attention_heads: 16\n  seq_length: 1024\n  max_position_embeddings: 1024\n"
    "  swiglu: true\n  multiple_of: 256\n  micro_batch_size: 1\n  global_batch_size: 64\n  seed: ${experiment.seed}\n"
    "data:\n  data_path: ${data_path:??}\n  tokenizer: {vocab_size: 32000}\nsystem:\n  tensor_model_parallel_size: 2\n"
    "  pipeline_model_parallel_size: 2\n  sequence_parallel: false\n  precision: {bf16: true}\n"
)


def deepspeed(**batch):
    """A DeepSpeed configuration with some of its three numbers."""
    return json.dumps({**batch, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}})


@rows(
    ("name", "text", "facts"),
    [
        ("run.sh", f"{MEGATRON} --bf16 --recompute-granularity full --recompute-activations", {"recompute": "selective"}),
        ("run.sh", f"{EXPERTS} --moe-flex-dispatcher-backend deepep", {"expert_dispatcher": "allgather"}),
        ("run.sh", f"{EXPERTS} --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", {"expert_dispatcher": "hybridep"}),
        ("run.sh", f"{AWARE} --main-grads-dtype bf16", {"gradient_precision": "bf16"}),
        ("run.sh", f"{AWARE} --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32", "exclude each other"),
        ("run.sh", f"{HERE}{MEGATRON} --bf16 --tensor-model-parallel-size 2", {"tp": 2, "num_layers": 8}),
        ("run.sh", SLIME, "line 3: --rollout-batch-size is of training by reinforcement"),
        ("nemo_yaml", EXPERTS_OF_NEMO, CAPACITY),
        ("bridge_yaml", EXPERTS_OF_NEMO, CAPACITY),
        ("gpt_neox", {"pipe_parallel_size": 0, "model_parallel_size": 2}, {"tp": 2, "dp": 4, "global_batch_size": 32}),
        # Two thirds of 4 · 256 are the gate and the value; of configs/llama2/13B.yml, 41,472, both have 13,824.
        ("gpt_neox", {"activation": "swiglu"}, {"gated_mlp": True, "intermediate_size": 341}),
        ("gpt_neox", {"activation": "swiglu", "hidden_size": 5120, "intermediate_size": 41472, "mlp_multiple_of": 256}, {"intermediate_size": 13824}),
        ("gpt_neox", {"activation": "silu", "mlp_type": "llama"}, {"gated_mlp": True, "intermediate_size": 768}),
        ("gpt_neox", {"num_experts": 4}, "num_experts = 4: experts of GPT-NeoX are not read"),
        ("automodel", {"distributed.pp_size": 2}, {"reshard_after_forward": "default"}),
        ("automodel", {"model.pretrained_model_name_or_path": "Qwen/Qwen3-30B-A3B"}, {"reshard_after_forward": False}),
        ("flagscale.yaml", FLAGSCALE, {"tp": 2, "pp": 2, "intermediate_size": 2816, "num_layers": 8, "precision": "bf16"}),
        ("flagscale.yaml", f"{FLAGSCALE}  schedules_method: dualpipev\n", {"schedule": "dualpipe_v", "num_chunks": 2}),
        ("flagscale.yaml", f"{FLAGSCALE}  enable_zero_bubble: true\n", "--enable-zero-bubble cuts backwards in two"),
        ("surogate", {"parallelism": "dispatch_pp"}, "parallelism = dispatch_pp streams layers through GPUs"),
        ("surogate", {"cpu_training": True}, "cpu_training = true streams all weights from host memory"),
        # A degree by a name that a kind has not, which would be another plan.
        ("trl", {"tensor_parallel_size": 4}, "tensor_parallel_size = 4 splits work over GPUs"),
        ("trl", {"tensor_parallel_size": 1}, {"tp": None}),
        ("run.sh", f"{BRIDGE} dataset.sequence_length=4096", {"sequence_length": 4096}),
        ("run.sh", f"{BRIDGE} model.seq_length=4096", "refuses; set both"),
        ("run.sh", "torchrun --nproc-per-node 8 train.py model.num_layers=8 model.hidden_size=256 model.num_attention_heads=8 model.seq_length=512 model.vocab_size=1024 train.micro_batch_size=1 train.global_batch_size=64 train=3", "in one override and has keys in another"),
        ("recipe.py", BRIDGE_RECIPE, {"dp": 4}),
        ("run.sh", f"{MEGATRON} --bf16 --fp16", "exclude each other"),
        ("run.sh", f"{MEGATRON} --bf16 --train-iters 10 --train-samples 640", "exclude each other"),
        ("run.sh", f"{MEGATRON} --bf16 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1 " "--num-virtual-stages-per-pipeline-rank 2", "keep one"),
        ("ds.json", deepspeed(train_batch_size=64), {"microbatch_size": 8, "global_batch_size": 64}),
        ("ds.json", deepspeed(train_micro_batch_size_per_gpu=4), {"microbatch_size": 4, "global_batch_size": 32}),
        ("ds.json", deepspeed(train_batch_size=64, gradient_accumulation_steps=4), {"microbatch_size": 2, "global_batch_size": 64}),
        ("maxtext.yml", f"{MAXTEXT}2", "multiplies the base_. sizes; write them out"),
        ("maxtext.yml", f"{MAXTEXT}1\nmodel_name: llama2-7b", {"num_layers": 32, "hidden_size": 4096}),
        ("maxtext.yml", f"{MAXTEXT}1\nmodel_name: a-name-of-ones-own", {"num_layers": 4}),
        ("bridge_yaml", {"peft.dim": 16}, {"adapter_rank": 16}),
        ("nemo_yaml", {"model.peft.lora_tuning.adapter_dim": 16}, {"adapter_rank": None}),
        ("olmo", {"activation_checkpointing": "three_in_four"}, {"recompute": "full", "recompute_num_layers": 3}),
        ("olmo", {"activation_checkpointing": "one_in_seven"}, "must be whole_layer, fine_grained or one of"),
        ("automodel", {"packed_sequence.packed_sequence_size": 0}, {"sequence_length": 512}),
        ("levanter", {"trainer.per_device_parallelism": -1}, {"microbatch_size": 8, "global_batch_size": 64}),
        ("accelerate.yaml", f'{ACCELERATE}"no"', {"precision": "fp32"}),
        ("recipe.yaml", f"{LLAMA_FACTORY}gradient_checkpointing: false", {"recompute": "full"}),
        ("recipe.yaml", SWIFT, {"recompute": "full", "microbatch_size": 1, "global_batch_size": 16}),
        *(
            (kind, keys, {"frozen_precision": "nf4", "adapter_rank": 8})
            for kind, keys in (
                ("axolotl", {"adapter": "qlora", "load_in_4bit": True, "lora_r": 8}),
                ("torchtune", {"model._component_": "torchtune.models.llama3_2.qlora_llama3_2_1b", "model.lora_rank": 8, "model.lora_attn_modules": ["q_proj"]}),
            )
        ),
        ("axolotl", {"adapter": "lora", "load_in_8bit": True}, {"frozen_precision": None}),
        ("recipe.yaml", f"{LLAMA_FACTORY.replace('type: full', 'type: lora')}quantization_bit: 4", {"frozen_precision": "nf4"}),
        ("recipe.yaml", f"{SWIFT.replace('type: full', 'type: lora')}quant_bits: 4", {"frozen_precision": "nf4"}),
        # Of files in the tools' own repositories, what was read wrong.
        ("torchtune", {}, IN_16_BITS),
        ("torchtune", {"dtype": "fp16"}, "must be bf16 or fp32"),
        ("litgpt", {"precision": "bf16-true"}, IN_16_BITS),
        ("levanter", {"trainer.mp": "p=bfloat16,c=bfloat16"}, IN_16_BITS),
        ("nanotron", {"model.dtype": "bfloat16", "optimizer.accumulate_grad_in_fp32": False}, IN_16_BITS),
        ("axolotl", {"optimizer": "adamw_torch_fused"}, IN_16_BITS),
        ("axolotl", {"fsdp_config.reshard_after_forward": True}, IN_32_BITS),
        ("axolotl", {"fsdp_config.reshard_after_forward": True, "bf16": "full"}, IN_16_BITS),
        ("axolotl", {"deepspeed": "deepspeed_configs/zero3_bf16.json"}, IN_32_BITS),
        ("axolotl", {"fsdp_config.reshard_after_forward": True, "expert_parallel_size": 2, "dp_shard_size": 4, **QWEN_EXPERTS}, {"dp": 8, "ep": 2, "sharding_group": 4, "expert_multiplies": "grouped"}),
        ("trl", {"torch_dtype": "bfloat16", "bf16": True}, IN_16_BITS),
        ("recipe.yaml", f"{LLAMA_FACTORY}pure_bf16: true", IN_16_BITS),
        ("recipe.yaml", SWIFT, IN_16_BITS),
        ("automodel", {"model.torch_dtype": "bf16"}, {**IN_16_BITS, "gradient_precision": "fp32"}),
        ("automodel", {"optimizer": FUSED_ADAM}, {"master_precision": "fp16", "moment_precision": "bf16", "second_moment_precision": "bf16"}),
        ("automodel", {"model.backend": {"experts": "gmm", "dispatcher": "torch", "attn": "te"}}, {"expert_multiplies": "grouped", "expert_dispatcher": "allgather", "attention": "flash"}),
        ("automodel", {"loss_fn._target_": "nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy"}, {"chunked_loss": True}),
        ("olmo", {"model.max_sequence_length": 8192}, {"sequence_length": 8192, "max_sequence_length": 8192}),
        ("olmo", {"model.max_sequence_length": None}, {"sequence_length": 1024, "dropout": 0.1}),
        ("olmo", {"fsdp.precision": "mixed"}, {"gradient_precision": "fp32"}),
        ("llm_foundry", {"fsdp_config.mixed_precision": "PURE"}, {"gradient_precision": "bf16"}),
        ("gpt_neox", {"gradient_accumulation_steps": None}, {"global_batch_size": 16}),
        ("neox.yml", NEOX, {"num_layers": 4, "zero_stage": 1, "global_batch_size": 32}),
    ],
)  # fmt: skip
def test_a_file_is_read_as_its_tool_reads_it(name, text, facts):
    if name in SMALL:
        text, kind = json.dumps(with_keys(SMALL[name], text)), name
    else:
        kind = None
    kind = {"accelerate.yaml": "accelerate", "ds.json": "deepspeed", "maxtext.yml": "maxtext"}.get(name, kind)
    kind = "swift" if text.startswith(SWIFT[:30]) else "llama_factory" if text.startswith(LLAMA_FACTORY[:50]) else kind
    model = "llama3-8b" if kind in ("accelerate", "deepspeed") else None
    gpus = None if name == "recipe.py" else 8
    given = Given(cluster="superpod-h100", gpus=gpus, model=model)
    if isinstance(facts, str):
        with pytest.raises(SpecError, match=facts):
            import_text(text, "c.json" if name in SMALL else name, given, kind=kind)
        return
    data = import_text(text, "c.json" if name in SMALL else name, given, kind=kind).data
    said = {**data["plan"], **data["training"], **data["stack"], **whole_shape(data["model"])}
    assert {field: said.get(field) for field in facts} == facts
