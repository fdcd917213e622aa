"""Files for Megatron-LM's --yaml-cfg: sections of Megatron-Core's records, and everything else beside them
(megatron/training/yaml_arguments.py, examples/gpt3/gpt_config.yaml)."""

from grammars.recipe_parts import as_yaml, with_some

LANGUAGE = {
    "fp32_residual_connection": False, "layernorm_epsilon": 1e-5, "add_qkv_bias": False, "gated_linear_unit": False, "window_size": None,
    "apply_query_key_layer_scaling": False, "attention_softmax_in_fp32": False, "bias_swiglu_fusion": True, "masked_softmax_fusion": True,
    "persist_layer_norm": True, "bias_dropout_fusion": True, "apply_rope_fusion": True, "recompute_granularity": None, "fp8": None,
    "recompute_method": None, "recompute_num_layers": None, "fp8_margin": 0, "moe_router_topk": 2, "moe_grouped_gemm": False,
    "kv_channels": None, "num_moe_experts": None, "normalization": "RMSNorm", "attention_dropout": 0.0, "hidden_dropout": 0.0,
}  # fmt: skip
PARALLEL = {
    "virtual_pipeline_model_parallel_size": None, "expert_model_parallel_size": 1, "perform_initialization": True, "params_dtype": None,
    "gradient_accumulation_fusion": True, "tp_comm_overlap": False, "overlap_p2p_comm": True, "batch_p2p_comm": True,
    "cpu_offloading_num_layers": 0, "barrier_with_L1_time": True, "fp16": False, "bf16": True,
}  # fmt: skip
TRAINING = {
    "spec": None, "rampup_batch_size": None, "encoder_num_layers": None, "decoder_num_layers": None, "group_query_attention": False,
    "position_embedding_type": "rope", "transformer_impl": "transformer_engine", "use_flash_attn": False, "optimizer": "adam",
    "lr": 2.5e-4, "accumulate_allreduce_grads_in_fp32": False, "scatter_gather_tensors_in_pipeline": True, "train_iters": None,
    "make_vocab_size_divisible_by": 128, "tokenizer_type": "Llama2Tokenizer", "mock_data": True, "encoder_seq_length": None,
    "profile_ranks": [0], "swiglu": False, "vocab_size": None, "overlap_grad_reduce": False, "overlap_param_gather": False,
}  # fmt: skip
MORE = [  # (keys, facts): each by itself
    ({"language_model.num_query_groups": 4}, {"model.num_kv_heads": 4}),
    ({"language_model.fp8": "hybrid"}, {"training.precision": "fp8"}),
    ({"language_model.recompute_granularity": "full", "language_model.recompute_method": "block", "language_model.recompute_num_layers": 2}, {"plan.recompute": "full", "plan.recompute_num_layers": 2}),
    ({"language_model.hidden_dropout": 0.1, "language_model.attention_dropout": 0.1}, {"model.dropout": 0.1}),
    ({"language_model.masked_softmax_fusion": False}, {"stack.fused_softmax": False}),
    ({"language_model.apply_rope_fusion": False}, {"stack.fused_rotary": False}),
    ({"language_model.persist_layer_norm": False}, {"stack.persistent_norm": False}),
    ({"model_parallel.gradient_accumulation_fusion": False}, {"stack.fused_gradient_accumulation": False}),
    ({"scatter_gather_tensors_in_pipeline": False}, {"stack.p2p_scatter_gather": False}),
    ({"overlap_grad_reduce": True}, {"stack.overlap_grad_reduce": True}),
    ({"swiglu": True}, {}),  # language_model.activation_func alone counts
    ({"model_parallel.virtual_pipeline_model_parallel_size": 2}, {}),  # num_layers_per_virtual_pipeline_stage alone counts
]  # fmt: skip
ACTIVATIONS = [  # activation_func, gated_linear_unit, what ffn_hidden_size is of 1,024 where it is null, gated
    ("swiglu", False, 2688, True), ("swiglu", True, 2688, True), ("gelu", False, 4096, False), ("gelu", True, 4096, True),
    ("squaredrelu", False, 4096, False),
]  # fmt: skip


def write(rng):
    tp, pp, cp, chunks = rng.choice([1, 2, 4]), rng.choice([1, 4]), rng.choice([1, 2]), rng.choice([1, 2])
    micro, batch, bias, untied = rng.choice([1, 2]), rng.choice([128, 256]), rng.random() < 0.5, rng.random() < 0.5
    activation, unit, wide, gated = rng.choice(ACTIVATIONS)
    chunks = chunks if pp > 1 else 1
    experts = (
        {"num_moe_experts": 8, "moe_ffn_hidden_size": 512, "moe_router_topk": 4}
        if rng.random() < 0.3 and not bias
        else {}
    )
    shape = {
        "num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "num_query_groups": None,
        "activation_func": activation,
    }  # fmt: skip
    shape |= {"ffn_hidden_size": None, "add_bias_linear": bias, "gated_linear_unit": unit}
    degrees = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "context_parallel_size": cp}
    degrees |= {"sequence_parallel": True, "expert_model_parallel_size": 2 if experts else 1}
    data = {"language_model": LANGUAGE | shape | experts, "model_parallel": PARALLEL | degrees, **TRAINING}
    data |= {"micro_batch_size": micro, "global_batch_size": batch, "seq_length": 2048, "max_position_embeddings": 4096}
    data |= {"use_distributed_optimizer": untied, "untie_embeddings_and_output_weights": untied, "train_samples": 1000}
    data["num_layers_per_virtual_pipeline_stage"] = 24 // pp // chunks if chunks > 1 else None
    facts = {
        "model.num_layers": 24, "model.num_kv_heads": 16, "model.intermediate_size": wide, "model.gated_mlp": gated, "model.bias": bias,
        "model.norm": "rmsnorm", "model.position": "rotary", "model.tied_embeddings": not untied, "model.max_sequence_length": 4096,
        "plan.tp": tp, "plan.pp": pp, "plan.cp": cp, "plan.num_chunks": chunks, "plan.zero_stage": int(untied), "gpus": 32,
        "plan.microbatch_size": micro, "plan.recompute": "none", "training.global_batch_size": batch, "training.precision": "bf16",
        "plan.sequence_parallel": tp > 1, "training.sequence_length": 2048, "training.tokens": 1000.0 * 2048,
        "model.vocab_size": -(-32000 // (128 * tp)) * 128 * tp,
    }  # fmt: skip
    if experts:
        facts |= {
            "model.num_experts": 8, "model.experts_per_token": 4, "model.expert_intermediate_size": 512, "plan.ep": 2,
        }  # fmt: skip
    with_some(rng, data, facts, MORE, 3)
    return "gpt_config.yaml", as_yaml(rng, data), facts, {"gpus": 32}
