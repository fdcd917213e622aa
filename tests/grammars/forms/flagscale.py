"""FlagScale's YAML of a training: keys of Megatron-LM's arguments in nested sections (examples/*/conf/train)."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself
    ({"system.recompute_granularity": "full", "system.recompute_method": "uniform", "system.recompute_num_layers": 1}, {"plan.recompute": "full"}),
    ({"system.use_distributed_optimizer": False}, {"plan.zero_stage": 0}),
    ({"system.overlap_grad_reduce": True, "system.overlap_param_gather": True}, {"stack.overlap_grad_reduce": True}),
    ({"model.group_query_attention": True, "model.num_query_groups": 8}, {"model.num_kv_heads": 8}),
    ({"model.qk_layernorm": True}, {"model.query_key_norm": "head"}),
    ({"model.optimizer.use_precision_aware_optimizer": True, "model.optimizer.exp_avg_dtype": "bf16"}, {"training.moment_precision": "bf16"}),
    ({"model.mtp_num_layers": 1}, {"model.num_mtp_layers": 1}),
    ({"system.no_rope_fusion": True}, {"stack.fused_rotary": False}),
    ({"model.transformer_impl": "local"}, {"stack.attention": "math"}),
]  # fmt: skip
WIDTHS = [  # (keys, width of the MLP)
    ({}, 10880),
    ({"ffn_hidden_size": 13824, "multiple_of": 256}, 13824),
    ({"multiple_of": 256}, 11008),
    ({"multiple_of": 256, "hidden_dim_multiplier": 1.3}, 14336),
]
EXPERTS = {
    "num_experts": 64, "moe_ffn_hidden_size": 1408, "moe_router_topk": 6, "moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True,
    "moe_shared_expert_intermediate_size": 2816, "moe_layer_freq": "[0]+[1]*31", "moe_router_load_balancing_type": "seq_aux_loss",
}  # fmt: skip
OF_EXPERTS = {
    "model.num_experts": 64, "model.expert_intermediate_size": 1408, "model.experts_per_token": 6, "stack.expert_dispatcher": "alltoall",
    "model.shared_expert_intermediate_size": 2816, "model.num_dense_layers": 1, "plan.ep": 8,
}  # fmt: skip


def write(rng):
    tp, pp, micro, batch = rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.choice([1, 2]), rng.choice([256, 1024])
    half, experts, chunks = rng.choice(["bf16", "fp16"]), rng.random() < 0.3, rng.choice([1, 2])
    chunks = chunks if pp > 1 else 1
    said, wide = rng.choice(WIDTHS)
    system = {
        "no_shared_fs": "${experiment.runner.no_shared_fs}", "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp,
        "disable_bias_linear": True, "use_distributed_optimizer": True, "sequence_parallel": tp > 1,
        "precision": {half: True, "attention_softmax_in_fp32": True, "initial_loss_scale": 522893},
        "logging": {"log_interval": 1, "wandb_project": "${experiment.exp_name}"}, "checkpoint": {"save_interval": 2000},
    }  # fmt: skip
    model = {
        "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048, "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5, "use_rotary_position_embeddings": True, "no_position_embedding": True, "swiglu": True,
        "normalization": "RMSNorm", "untie_embeddings_and_output_weights": True, "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "train_samples": 1_000_000, "micro_batch_size": micro, "global_batch_size": batch, "seed": "${experiment.seed}",
        "optimizer": {"adam_beta1": 0.9, "lr_scheduler": {"lr": 2e-5, "lr_decay_style": "cosine"}}, **said,
    }  # fmt: skip
    data = {
        "data_path": "${data_path:??}",
        "split": 1,
        "tokenizer": {"tokenizer_type": "QwenTokenizerFS", "vocab_size": 151851},
    }
    facts = {
        "model.num_layers": 32, "model.intermediate_size": wide, "model.gated_mlp": True, "model.norm": "rmsnorm", "model.bias": False,
        "model.vocab_size": -(-151851 // (128 * tp)) * 128 * tp, "model.tied_embeddings": False, "model.num_kv_heads": 32, "gpus": 32,
        "plan.tp": tp, "plan.pp": pp, "plan.num_chunks": chunks, "plan.microbatch_size": micro, "plan.zero_stage": 1,
        "plan.recompute": "none", "training.global_batch_size": batch, "training.sequence_length": 2048, "training.precision": half,
        "training.tokens": 1e6 * 2048,
    }  # fmt: skip
    if chunks > 1:
        system["num_layers_per_virtual_pipeline_stage"] = 32 // pp // chunks
    if experts:
        system |= {"expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1}
        model, facts = model | EXPERTS, facts | OF_EXPERTS
    whole = {"system": system, "model": model, "data": data}
    with_some(rng, whole, facts, MORE, 3)
    return "train_7b.yaml", as_yaml(rng, whole), facts, {"gpus": 32}
