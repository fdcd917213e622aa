"""Launch scripts of Megatron-LM as people write them: variables, arrays, texts over several lines, Slurm's headers,
arguments of the script, conditions and cases, and one of the usual launchers."""

MORE = [  # (arguments, facts): each by itself, whatever else the script says
    ({"context-parallel-size": 2}, {"plan.cp": 2}),
    ({"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}, {"training.precision": "mxfp8"}),
    ({"attention-backend": "unfused"}, {"stack.attention": "math"}),
    ({"grad-reduce-in-bf16": None}, {"stack.gradient_precision": "bf16"}),
    ({"use-precision-aware-optimizer": None, "exp-avg-dtype": "fp8", "exp-avg-sq-dtype": "bf16"}, {"training.moment_precision": "fp8", "training.second_moment_precision": "bf16"}),
    ({"group-query-attention": None, "num-query-groups": 4}, {"model.num_kv_heads": 4}),
    ({"hidden-dropout": 0.0, "attention-dropout": 0.0}, {"model.dropout": 0.0}),
    ({"tp-comm-overlap": None}, {"stack.async_tensor_parallel": True}),
    ({"overlap-grad-reduce": None}, {"stack.overlap_grad_reduce": True}),
    ({"num-distributed-optimizer-instances": 1}, {"plan.sharding_group": None}),
    ({"qk-layernorm": None}, {"model.query_key_norm": "head"}),
]  # fmt: skip
SIZES = {"7B": (32, 4096, 32, 11008), "13B": (40, 5120, 40, 13824), "1.5B": (24, 2048, 16, 5504)}


def write(rng):
    tp, pp, micro = rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.choice([1, 2])
    nodes, each = rng.choice([(1, 8), (2, 8), (4, 4)])
    nodes = max(nodes, tp * pp // each)
    replicas = nodes * each // (tp * pp)
    batch, length = micro * replicas * rng.choice([1, 4, 16]), rng.choice([2048, 4096])
    size = rng.choice(list(SIZES))
    layers, hidden, heads, width = SIZES[size]
    slurm, positional = rng.random() < 0.4, rng.random() < 0.5
    name = rng.choice(["MODEL_SIZE", "SIZE", "model_size"])
    values = {"tensor-model-parallel-size": tp, "pipeline-model-parallel-size": pp, "micro-batch-size": micro,
              "global-batch-size": batch, "seq-length": length, "max-position-embeddings": length}  # fmt: skip
    lines = ["#!/bin/bash", *(header(rng, nodes, each) if slurm else ()), "", "export CUDA_DEVICE_MAX_CONNECTIONS=1"]
    lines += [f"{name}={'$1' if positional else quoted(rng, size)}", *shapes(rng, name)]
    lines += [f"TP={tp}", f"PP=${{PP:-{pp}}}", f"GPUS={each}", f"NODES={'$SLURM_NNODES' if slurm else nodes}"]
    values["tensor-model-parallel-size"], values["pipeline-model-parallel-size"] = "$TP", "${PP}"
    shape = {"num-layers": "$NUM_LAYERS", "hidden-size": "${HIDDEN}", "num-attention-heads": "$HEADS",
             "ffn-hidden-size": "$((FFN))"}  # fmt: skip
    switches = [
        "bf16", "swiglu", "untie-embeddings-and-output-weights", "disable-bias-linear", "use-distributed-optimizer",
    ]  # fmt: skip
    lines += block(
        rng, "MODEL_ARGS", {**shape, "position-embedding-type": "rope", "normalization": "RMSNorm"}, switches
    )
    chosen = rng.sample(MORE, 3)
    cp = 2 if any("context-parallel-size" in keys for keys, _ in chosen) and replicas % 2 == 0 else 1
    chosen = [row for row in chosen if cp == 2 or "context-parallel-size" not in row[0]]
    more = {key: value for keys, _ in chosen for key, value in keys.items()}
    values |= {key: value for key, value in more.items() if value is not None}
    replicas //= cp
    lines += block(
        rng, "TRAINING", {**values, "lr": "3e-4", "train-samples": "1_000_000"},
        [key for key, value in more.items() if value is None],
    )  # fmt: skip
    tokenizer, words = rng.choice(
        [("Llama2Tokenizer", 32000), ("HuggingFaceTokenizer --tokenizer-model /models/Meta-Llama-3-8B", 128256)]
    )
    lines += [f'DATA="--mock-data --tokenizer-type {tokenizer} --split 99,1,0"']
    full = rng.random() < 0.5
    lines += [f"AC={'full' if full else 'none'}", 'if [ "$AC" = full ]; then',
              '    RECOMPUTE="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"', "fi"]  # fmt: skip
    lines += start(rng, slurm, lines[-1])
    padded = -(-words // (128 * tp)) * 128 * tp
    expected = {
        "model.num_layers": layers, "model.hidden_size": hidden, "model.num_heads": heads, "model.intermediate_size": width,
        "model.vocab_size": padded, "plan.tp": tp, "plan.pp": pp, "plan.dp": replicas, "plan.microbatch_size": micro,
        "plan.zero_stage": 1, "plan.recompute": "full" if full else "none", "training.global_batch_size": batch,
        "training.sequence_length": length, "training.precision": "bf16", "gpus": nodes * each,
        "training.tokens": 1e6 * length,
    }  # fmt: skip
    for _, facts in chosen:
        expected |= facts
    return (
        rng.choice(["run.sh", "train_gpt.sh", "job.slurm"]), "\n".join(lines) + "\n", expected,
        ({"args": [size]} if positional else {}),
    )  # fmt: skip


def quoted(rng, text):
    """A word as one of the shell's quotations."""
    return rng.choice([text, f'"{text}"', f"'{text}'"])


def header(rng, nodes, each):
    """Lines for Slurm."""
    count = rng.choice([f"--nodes={nodes}", f"-N {nodes}", f"--nodes {nodes}", f"-N{nodes}"])
    gpus = rng.choice([f"--gres=gpu:{each}", f"--gpus-per-node={each}", f"--gres=gpu:h100:{each}"])
    return [f"#SBATCH {count}   # how many", "#SBATCH --ntasks-per-node=1", f"#SBATCH {gpus}", "#SBATCH -t 1:00:00"]


def shapes(rng, name):
    """The shape by the model's size: a case, or conditions."""
    sets = {size: f"NUM_LAYERS={a}; HIDDEN={b}; HEADS={c}; FFN={d}" for size, (a, b, c, d) in SIZES.items()}
    if rng.random() < 0.5:
        arms = [f"    {quoted(rng, size)})\n        {text}\n        ;;" for size, text in sets.items()]
        return [f'case "${name}" in', *arms, '    *) echo "unknown"; exit 1 ;;', "esac"]
    lines = []
    for at, (size, text) in enumerate(sets.items()):
        test = rng.choice([f"[ ${name} = {size} ]", f'[[ "${{{name}}}" == "{size}" ]]'])
        lines += [f"{'elif' if at else 'if'} {test}; then", f"    {text}"]
    return [*lines, "fi"]


def block(rng, name, values, switches):
    """Arguments in an array, or in a text over several lines."""
    items = [f"--{key}{rng.choice([' ', '='])}{value}" for key, value in values.items()]
    items += [f"--{key}" for key in switches]
    rng.shuffle(items)
    if rng.random() < 0.5:
        return [
            f"{name}=(", *(f"    {item}{rng.choice(['', '  # as usual'])}" for item in items), ")",
            f'{name}="${{{name}[*]}}"',
        ]  # fmt: skip
    return [f'{name}=" \\', *(f"    {item} \\" for item in items), '    "']


def start(rng, slurm, _):
    """The command that trains, by one of the launchers."""
    ends = "--nproc_per_node $GPUS --nnodes $NODES --node_rank 0"
    launcher = rng.choice([f"torchrun {ends}", f"python -m torch.distributed.launch {ends}",
                           f"python -u -m torch.distributed.run {ends}"])  # fmt: skip
    command = f"{launcher} pretrain_gpt.py $MODEL_ARGS $TRAINING $DATA $RECOMPUTE"
    kind = rng.choice(["plain", "eval", "lines"])
    if slurm and rng.random() < 0.5:
        return [f'srun --jobid $SLURM_JOBID bash -c "{command}" 2>&1 | tee log.txt']
    if kind == "eval":
        return [f'CMD="{command}"', "echo $CMD", "eval $CMD"]
    return [command.replace(" $", " \\\n    $") if kind == "lines" else command]
