"""Logs into which Megatron-LM printed its arguments, after `validate_args` has filled them in (megatron/training/arguments.py)."""

DEFAULTS = """account_for_embedding_in_pipeline_split=False add_qkv_bias=False apply_query_key_layer_scaling=False
attention_softmax_in_fp32=False bert_embedder_type=megatron biencoder_projection_dim=0 bias_dropout_fusion=True
ckpt_fully_parallel_save=True cp_comm_type=['p2p'] cross_entropy_loss_fusion=False cuda_graph_impl=none
cuda_graph_scope=[] data_parallel_sharding_strategy=no_shard decoder_first_pipeline_num_layers=None
exp_avg_dtype=torch.float32 exp_avg_sq_dtype=torch.float32 first_last_layers_bf16=False fp8=None fp8_recipe=delayed
grad_reduce_in_bf16=False gradient_accumulation_fusion=True img_h=224 iter_per_epoch=1250 kv_lora_rank=32
main_grads_dtype=torch.float32 main_params_dtype=torch.float32 make_vocab_size_divisible_by=128
masked_softmax_fusion=True moe_enable_deepep=False moe_layer_freq=1 moe_router_load_balancing_type=aux_loss
moe_router_topk=2 moe_token_dispatcher_type=allgather mtp_num_layers=None multi_latent_attention=False
num_distributed_optimizer_instances=1 num_experts=None num_layers_per_virtual_pipeline_stage=None
num_virtual_stages_per_pipeline_rank=None optimizer=adam optimizer_cpu_offload=False optimizer_offload_fraction=1.0
overlap_grad_reduce=False overlap_param_gather=False padded_vocab_size=None q_lora_rank=None qk_head_dim=128
qk_layernorm=False rampup_batch_size=None recompute_granularity=None recompute_method=None recompute_modules=None
recompute_num_layers=None rotary_base=10000 softmax_type=vanilla spec=None tp_comm_overlap=False train_samples=None
transformer_impl=transformer_engine use_distributed_optimizer=False use_flash_attn=False use_megatron_fsdp=False
use_precision_aware_optimizer=False use_torch_fsdp2=False vocab_size=None wandb_project= window_size=None yaml_cfg=None"""
MORE = [  # (values as printed, facts): each by itself
    ({"exp_avg_dtype": "torch.bfloat16", "exp_avg_sq_dtype": "torch.bfloat16", "use_precision_aware_optimizer": True}, {"training.moment_precision": "bf16", "training.second_moment_precision": None}),
    ({"main_grads_dtype": "torch.bfloat16", "use_precision_aware_optimizer": True, "accumulate_allreduce_grads_in_fp32": False}, {"stack.gradient_precision": "bf16"}),
    ({"fp8": "hybrid", "fp8_recipe": "mxfp8"}, {"training.precision": "mxfp8"}),
    ({"attention_backend": "AttnBackend.unfused"}, {"stack.attention": "math"}),
    ({"qk_layernorm": True}, {"model.query_key_norm": "head"}),
    ({"window_size": "(1023, 0)"}, {"model.sliding_window": 1024}),
    ({"overlap_grad_reduce": True}, {"stack.overlap_grad_reduce": True}),
    ({"group_query_attention": True, "num_query_groups": 4}, {"model.num_kv_heads": 4}),
    ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}, {"plan.optimizer_offload": 0.5}),
]  # fmt: skip
RECOMPUTED = [
    ({}, {"plan.recompute": "none"}),
    ({"recompute_granularity": "selective", "recompute_modules": "['core_attn', 'layernorm']"}, {"plan.recompute": "selective", "plan.recompute_modules": ["core_attn", "layernorm"]}),
    ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2}, {"plan.recompute": "full", "plan.recompute_method": "block", "plan.recompute_num_layers": 2}),
]  # fmt: skip


def write(rng):
    layers, hidden, heads = rng.choice([(32, 4096, 32), (40, 5120, 40), (24, 2048, 16)])
    tp, pp, cp, micro = rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.choice([1, 2]), rng.choice([1, 2])
    chunks, gated, experts = (pp > 1 and rng.choice([1, 2])) or 1, rng.random() < 0.6, rng.random() < 0.3
    world, length = 32 * cp, rng.choice([2048, 4096])
    dp, wide = world // (tp * pp * cp), int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    batch = micro * dp * pp * 4
    newer = rng.random() < 0.5
    values = dict(each.split("=", 1) for each in DEFAULTS.split()) | {
        "num_layers": layers, "encoder_num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "ffn_hidden_size": wide,
        "kv_channels": hidden // heads, "group_query_attention": False, "num_query_groups": 1, "swiglu": gated, "seq_length": length,
        "encoder_seq_length": length, "max_position_embeddings": length, "tensor_model_parallel_size": tp, "data_parallel_size": dp,
        "pipeline_model_parallel_size": pp, "context_parallel_size": cp, "world_size": world, "micro_batch_size": micro,
        "global_batch_size": batch, "sequence_parallel": tp > 1, "expert_tensor_parallel_size": 1 if experts else tp,
        "add_bias_linear": not gated, "bias_gelu_fusion": not gated, "add_qkv_bias": not gated, "bf16": True, "fp16": False,
        "params_dtype": "torch.bfloat16", "accumulate_allreduce_grads_in_fp32": True, "use_distributed_optimizer": True,
        "position_embedding_type": "rope", "normalization": "RMSNorm", "hidden_dropout": 0.0, "attention_dropout": 0.0,
        "expert_model_parallel_size": 2 if experts else 1, "untie_embeddings_and_output_weights": True, "apply_rope_fusion": True,
        "overlap_p2p_comm": chunks > 1, "tokenizer_type": "Llama2Tokenizer", "train_iters": 1000, "attention_backend": "AttnBackend.auto",
        "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
    }  # fmt: skip
    if chunks > 1 and newer:
        values["num_virtual_stages_per_pipeline_rank"] = chunks
    elif chunks > 1:
        values["num_layers_per_virtual_pipeline_stage"] = layers // pp // chunks
    facts = {
        "model.num_layers": layers, "model.hidden_size": hidden, "model.intermediate_size": wide, "model.num_kv_heads": heads,
        "model.gated_mlp": gated, "model.bias": not gated, "model.vocab_size": -(-32000 // (128 * tp)) * 128 * tp, "gpus": world,
        "plan.tp": tp, "plan.pp": pp, "plan.cp": cp, "plan.dp": dp, "plan.num_chunks": chunks, "plan.microbatch_size": micro,
        "plan.zero_stage": 1, "training.global_batch_size": batch, "training.precision": "bf16",
        "training.sequence_length": length, "training.tokens": 1000.0 * batch * length, "model.tied_embeddings": False,
    }  # fmt: skip
    if experts:
        values |= {"num_experts": 8, "moe_ffn_hidden_size": 1024, "moe_router_topk": 4, "moe_grouped_gemm": True}
        facts |= {"model.num_experts": 8, "model.experts_per_token": 4, "model.expert_intermediate_size": 1024, "plan.ep": 2,
                  "stack.expert_dispatcher": "allgather"}  # fmt: skip
    said, known = rng.choice(RECOMPUTED)
    values, facts = values | said, facts | known
    for said, known in rng.sample(MORE, 2):
        values, facts = values | said, facts | known
    names = sorted(values, key=str.lower)
    lines = [f"  {name} {'.' * max(2, 48 - len(name))} {values[name]}" for name in names]
    head = f"using world size: {world}, data-parallel size: {dp}, tensor-model-parallel size: {tp}"
    text = [head, "------------------------ arguments ------------------------", *lines]
    return "train.log", "\n".join([*text, "-------------------- end of arguments ---------------------", ""]), facts, {}
