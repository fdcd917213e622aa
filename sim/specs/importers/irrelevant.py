"""What of foreign files does not change a step's time, or is priced in another way: names, and the reason to show."""

from __future__ import annotations

from sim.specs.importers.ledger import NO_EFFECT

_ROTARY = "rotary positions cost the same whatever their base and scaling"
_WINDOW = "every layer is priced with attention over the whole sequence"
_STORED = "of the stored weights; training.precision says what is trained in"
_ONE_DROPOUT = "priced with the residual branches' dropout"
_ROUTING = "routing is priced as even, whatever chooses the experts and balances them"
_FURTHER = "layers that predict further tokens are neither counted nor priced"
_STACK = "the stack describes what is fused and overlapped; see stack.*"

_HUGGINGFACE = {
    "the class that loads the weights; model_type says what it is": "architectures",
    _WINDOW: (
        "sliding_window* use_sliding_window max_window_layers layer_types window_size attention_types attention_layers"
    ),
    _ROTARY: "rope_* rotary* no_rope_layer*",
    "the rotation is priced over all columns of a head": "partial_rotary_factor",
    "bounding scores and logits is not priced": "attn_logit_softcapping final_logit_softcapping",
    _STORED: "torch_dtype dtype quantization_config*",
    _ROUTING: (
        "router_* aux_loss_alpha seq_aux norm_topk_prob n_group topk_group topk_method scoring_func "
        "routed_scaling_factor input_jitter_noise ep_size"
    ),
    _FURTHER: "num_nextn_predict_layers num_mtp* use_mtp mtp_*",
    "of latent attention; the columns of a head are those of its two parts": "qk_head_dim",
    "attention is priced in full, biases by distance cost nothing": "attn_config*",
    _ONE_DROPOUT: "attention_dropout attn_pdrop",
    NO_EFFECT: (
        "_* bos_token_id eos_token_id pad_token_id sep_token_id initializer_range hidden_act "
        "hidden_activation activation_function activation rms_norm_eps layer_norm_eps norm_epsilon norm_eps "
        "layer_norm_epsilon use_cache pretraining_tp cache_implementation query_pre_attn_scalar "
        "classifier_dropout embd_pdrop emb_pdrop embed_dropout embedding_dropout summary_* layerdrop init_std "
        "task_specific_params* id2label* label2id* scale_att* reorder_and_upcast_attn attention_softmax_* "
        "logit_scale embedding_multiplier residual_multiplier logits_scaling attention_multiplier clip_qkv "
        "is_decoder return_dict output_* tokenizer_class auto_map* is_encoder_decoder add_cross_attention "
        "tie_encoder_decoder chunk_size_feed_forward norm_type init_device no_bias use_return_dict "
        "problem_type finetuning_task slow_but_exact offset_alibi num_logits_to_keep hidden_dropout_prob "
        "bias_dropout_fusion embedding_fraction learned_pos_emb original_max_position_embeddings "
        "swiglu_limit swiglu_alpha rope_interleave initial_context_length inference_runner "
        "use_bidirectional_attention transformers_version num_labels"
    ),
}
_MEGATRON = {
    "the data's place and form; " + NO_EFFECT: (
        "data* train-data* valid-data* test-data* vocab-file merge-file tokenizer* split mock-data num- "
        "workers dataloader* reset-* eod-* create-attention* no-create-attention*"
    ),
    "the batch grows for a while at the beginning; the full batch is priced": "rampup-batch-size",
    _STACK: (
        "transformer-impl use-mcore* use-legacy* attention-backend cross-entropy* no-gradient-accumulation* "
        "no-persist* no-masked* gradient-accumulation-fusion fp8* fp4* accumulate-allreduce* grad-reduce-in- "
        "bf16 ddp-* overlap-param-gather-with* tp-comm* defer-embedding* delay-* no-bias-* no-async* bias-* "
        "masked-softmax*"
    ),
    _ROUTING: (
        "moe-router-* moe-aux-loss-coeff moe-z-loss-coeff moe-input-jitter-eps moe-token-drop-policy "
        "moe-expert-capacity-factor moe-pad-expert-input-to-capacity moe-per-layer-logging moe-upcycling*"
    ),
    "experts are priced as one grouped multiply; see stack.launches_per_expert": (
        "moe-grouped-gemm moe-use-legacy-grouped-gemm moe-permute-fusion moe-apply-probs-on-input"
    ),
    "shared experts run after the others, not beside the exchange of tokens": "moe-shared-expert-overlap",
    "what is recomputed is what plan.recompute says": "moe-layer-recompute",
    "of experts: not priced": "moe-*",
    _FURTHER: "mtp-*",
    _ROTARY: "rope-* rotary-* use-rope* no-rope*",
    "of Megatron-DeepSpeed; import the DeepSpeed JSON for what it sets": (
        "deepspeed* no-pipeline-parallel cpu-optimizer checkpoint-in-cpu partition-activations"
    ),
    "activations are priced as the recomputation says": "checkpoint-activations distribute-*",
    NO_EFFECT: (
        "lr lr-* min-lr weight-decay* adam-* sgd-* clip-grad init-method* seed override-* use-checkpoint-* "
        "start-weight* end-weight* no-load* no-save* exit-* finetune apply-* layernorm-* norm-epsilon "
        "squared-relu attention-softmax* loss-scale* initial-loss* min-loss* hysteresis openai-gelu log-* "
        "tensorboard* wandb* timing* eval-* save* load load-* ckpt* dist-ckpt* auto-detect* manual-gc* "
        "distributed-backend distributed-timeout* local-rank master* node-rank rdzv* max-restarts tee role "
        "async-* empty-unused* check-* no-check* profile* use-pytorch-profiler te-* deterministic* enable-* "
        "no-one* no-bias no-log* train-iters train-samples use-cpu-initialization DDP-impl no-initialization*"
    ),
    "of the launcher": "nproc* nnodes num-gpus num-nodes nodes ntasks* gpus* standalone np N n l u m",
}


def _by_name(reasons: dict[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in reasons.items() for name in names.split()}


HUGGINGFACE = _by_name(_HUGGINGFACE)
"""Key -> reason; a key may end in `*`."""
MEGATRON = _by_name(_MEGATRON)
"""Argument without its dashes -> reason; the same."""
