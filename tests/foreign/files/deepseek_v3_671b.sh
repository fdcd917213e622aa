#!/bin/bash

# DeepSeek-V3 in the shape of Megatron-LM's recipes for mixtures of experts: latent attention, 256 experts over 64 GPUs,
# a layout of pipeline stages that gives the loss a stage of its own.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=1

NNODES=${NNODES:-128}
GPUS_PER_NODE=8
TP=${TP:-1}
PP=${PP:-8}
EP=${EP:-64}
MOE_LAYER_FREQ="([0]*3+[1]*58)"

MODEL_ARGS="
    --use-mcore-models
    --num-layers 61
    --hidden-size 7168
    --ffn-hidden-size 18432
    --num-attention-heads 128
    --kv-channels 128
    --seq-length 4096
    --max-position-embeddings 4096
    --position-embedding-type rope
    --rotary-base 10000
    --rotary-scaling-factor 40
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --qk-layernorm
    --hidden-dropout 0.0
    --attention-dropout 0.0
    --make-vocab-size-divisible-by 1280
    --tokenizer-type HuggingFaceTokenizer
    --vocab-size 129280
    --mtp-num-layers 1
    --mtp-loss-scaling-factor 0.1
"
MLA_ARGS="
    --multi-latent-attention
    --q-lora-rank 1536
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
"
MOE_ARGS="
    --num-experts 256
    --moe-layer-freq $MOE_LAYER_FREQ
    --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048
    --moe-router-topk 8
    --moe-router-num-groups 8
    --moe-router-group-topk 4
    --moe-router-score-function sigmoid
    --moe-router-topk-scaling-factor 2.5
    --moe-router-enable-expert-bias
    --moe-router-bias-update-rate 1e-3
    --moe-router-dtype fp32
    --moe-router-load-balancing-type seq_aux_loss
    --moe-aux-loss-coeff 1e-4
    --moe-token-dispatcher-type flex
    --moe-enable-deepep
    --moe-grouped-gemm
    --moe-permute-fusion
    --overlap-moe-expert-parallel-comm
"
TRAINING_ARGS="
    --micro-batch-size 1
    --global-batch-size 8192
    --train-samples 3600000
    --bf16
    --fp8-format e4m3
    --fp8-recipe blockwise
    --recompute-granularity selective
    --recompute-modules mla_up_proj mlp layernorm
    --lr 2.2e-4
    --manual-gc
"
PARALLEL_ARGS="
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size $PP
    --pipeline-model-parallel-layout Et*3|(tt|)*29m|L
    --expert-model-parallel-size $EP
    --expert-tensor-parallel-size 1
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
"

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
    $MODEL_ARGS $MLA_ARGS $MOE_ARGS $TRAINING_ARGS $PARALLEL_ARGS
