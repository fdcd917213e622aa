"""Launch scripts as a shell would read them: arguments, environment, conditions, functions, files beside them; what only a run
would know is asked for or listed, and nothing outside the script's folder is opened."""

import os
import random
import shutil
import subprocess

import pytest
from rows import rows

from sim.errors import SpecError
from sim.foreign.importers import Given, import_file, import_text
from sim.foreign.importers.ledger import Ledger
from sim.foreign.importers.shell.reader import read_script

SHAPE = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --bf16"


def plan(*lines, words="$MORE", launcher="torchrun --nproc_per_node 8", **given):
    """The plan of a script of these lines that starts a training."""
    text = "\n".join((*lines, f"{launcher} pretrain_gpt.py {SHAPE} {words}"))
    return import_text(text, "run.sh", Given(**given)).scenario().plan


@rows(
    ("lines", "size"),
    [
        (["while [[ $# -gt 0 ]]; do case $1 in --mbs) N=$2; shift 2;; esac; done", 'MORE="--micro-batch-size ${N:-4}"'], 4),
        (["[[ $SIZE == big ]] && { N=4; M=1; } || N=2", 'MORE="--micro-batch-size $N"'], 4),
        (["N=4; [ $SIZE = tiny ] && N=1", 'mkdir -p x && MORE="--micro-batch-size $N"'], 4),
        (["B=a", "C=4", "D=$B/$C/`ls`/y", 'MORE="--save $B/$C/ --load $D --micro-batch-size $C"'], 4),
        (['A="1 2"; MORE="$A --micro-batch-size ${N:-4}  $A"'], 4),
    ],
)  # fmt: skip
def test_what_a_script_decides_itself(lines, size):
    assert plan("SIZE=big", *lines).microbatch_size == size


@rows("value", ['`bc <<< "scale=3; $1/10"`', "`date +'%s'`", '`basename "$PWD"`', "`hostname`"])
def test_a_command_between_backticks_takes_nothing_of_what_follows(value):
    assert plan(f'MORE="--min-lr {value} --micro-batch-size 4"').microbatch_size == 4


def test_arguments_are_shifted_and_an_environment_stands_in_where_the_script_asks_a_command():
    assert plan("shift", 'MORE="--tensor-model-parallel-size $1"', args=["big", 2]).tp == 2
    assert plan("MBS=$(nvidia-smi | wc -l)", 'MORE="--micro-batch-size $MBS"', env={"MBS": 8}).microbatch_size == 8


LOOP = "N, which the loop in line {} sets; give --env N=VALUE"


@rows(
    ("lines", "says"),
    [
        (["MODEL=$2", "case $MODEL in 7B) N=2;; 8B) N=4;; esac", 'MORE="--micro-batch-size $N"'], r"argument 2 \(used as MODEL in line 1\)"),
        (['MORE="--tensor-model-parallel-size ${TP}"'], r"the environment's TP \(line 1\); give --env TP=VALUE"),
        (["N=$(nvidia-smi | wc -l)", 'MORE="--micro-batch-size $N"'], r"what `nvidia-smi \| wc -l` gives \(line 1\); give --env N=VALUE"),
        (["S=mbs_4", 'MORE="--micro-batch-size ${S##*_}"'], r"what `\$\{S##\*_\}` gives \(line 2\); write it out"),
        (["N=2; [ -d /data ] && N=4", 'MORE="--micro-batch-size $N"'], "the condition in line 1"),
        (["N=1", "for ((i = 0; i < 2; i++)); do N=$((N * 2)); done", 'MORE="--micro-batch-size $N"'], LOOP.format(2)),
        (["N=1", "while [ $N -lt 4 ]; do N=$((N + 1)); done", 'MORE="--micro-batch-size $N"'], LOOP.format(2)),
        (["f() { local A=$1; N=$A; }", "f 4", 'MORE="--micro-batch-size $N"'], "N, which the function in line 2 sets"),
        (["N=1; ((N++))", 'MORE="--micro-batch-size $N"'], r"give --env N=VALUE"),
    ],
)  # fmt: skip
def test_what_decides_is_asked_for(lines, says):
    with pytest.raises(SpecError, match=says):
        plan(*lines)


LINES = """\
TP=2
TP=${TP:-4}; PP=$((TP * 2))
A=1 B="x y" C=$TP
ARR=(--a "$B" $TP # a comment
  --b $((PP + 1)) )
ARR+=(--c "${ARR[1]}" ${#ARR[@]})
OPT="--d ${TP}x$PP/$A/ --e \\
  ${B}"
OPT=$OPT" --f"' --g $TP'
OPT="$OPT ${ARR[*]}"
S=mbs_4_$TP; OPT="$OPT ${#S}"
if [ "$TP" = 2 ] && [[ $B == x* ]]; then OPT="$OPT --h"; elif [ $PP -gt 3 ]; then TP=4; else TP=1; fi
[ -z "$NONE" ] && OPT+=" --i" || OPT="--j"
((TP > 2)) && PP=1 || PP=$((PP > 8 ? 8 : -1 + PP * 2))
case $TP in 1) A=a;; 2|4) A="b c";; *) A=d;; esac
f() { OPT="$OPT --k$1"; PP=$2; }
f 3 $PP
(TP=9; PP=9)
eval "Q=$TP"; set -- $Q "$B"; OPT="$OPT $1 $#"
OPT="$OPT `echo $PP`-$(basename /a/b.sh) ${NONE:-none} ${B:+set}"
""".replace("\n  ", "\0").splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_words_are_those_that_bash_makes_of_them():
    """Scripts put together from lines as people write them; what bash would start is told by a function in its place."""
    for seed in range(40):
        rng = random.Random(seed)
        lines = [rng.choice(LINES).replace("\0", "\n  ") for _ in range(rng.randint(3, 12))]
        text = "\n".join(
            ["TP=1 PP=1 A= B= C= Q= OPT= NONE=; ARR=()", *lines, 'torchrun x.py $OPT "${ARR[@]}" --l "$A$B" $TP', ""]
        )
        told = "torchrun() { printf '%s\\0' torchrun \"$@\"; }\n" + text
        run = subprocess.run(["bash"], input=told, capture_output=True, text=True, env={"PATH": os.defpath}, check=True)
        script = read_script(text, Ledger("run.sh"))
        assert script.commands[-1].words == run.stdout.split("\0")[:-1], text


def test_a_loop_is_not_passed_over():
    """What it may set can be said; a training in it is noted as one in doubt."""
    lines = ["for N in 1 2 4; do", f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} --micro-batch-size $N", "done"]
    with pytest.raises(SpecError, match="N, which the loop in line 1 sets; give --env N=VALUE"):
        import_text("\n".join(lines), "run.sh")
    found = import_text("\n".join(lines), "run.sh", Given(env={"N": 4}))
    assert found.scenario().plan.microbatch_size == 4
    assert any("a loop, which is not followed" in entry.note for entry in found.ledger.ignored)


@rows(
    ("launcher", "gpus"),
    [
        ("torchrun --nproc_per_node 8", 8), ("torchrun --nnodes=2 --nproc-per-node=8", 16), ("mpirun -np 32 python", 32),
        ("mpirun -np 16 -N 8 python", 16), ("srun -N 4 --ntasks-per-node=8 python -u", 32), ("srun -N4 -n 16 python", 16),
        ("deepspeed --num_nodes 2 --num_gpus 8", 16), ("accelerate launch --num_processes 16 --num_machines 2", 16),
        ("srun --nodes=2 --gres=gpu:a100:4 python", 8), ("python -m torch.distributed.launch --nproc_per_node=4 --nnodes 4", 16),
        ("pdsh -w node[1-2] torchrun --nproc_per_node 8 --nnodes 2", 16),
    ],
)  # fmt: skip
def test_launchers(launcher, gpus):
    assert plan(launcher=launcher, words="").num_gpus == gpus
    assert plan(launcher=launcher, words="", gpus=64).num_gpus == 64


@rows(
    "header", ["--nodes=4\n#SBATCH --gpus-per-node=8", "-N 4\n#SBATCH --gres=gpu:8 # each", "-N4 --ntasks-per-node=8"]
)
def test_headers_of_slurm(header):
    lines, torchrun = ("#!/bin/bash", f"#SBATCH {header}"), "torchrun --nnodes $N --nproc_per_node 8"
    assert plan(*lines, launcher="srun python", words="").num_gpus == 32
    assert plan(*lines, "N=$SLURM_NNODES", launcher=torchrun, words="").num_gpus == 32


def test_files_beside_a_script_are_read_and_no_others(tmp_path):
    folder = tmp_path / "job"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "sizes.sh").write_text("MBS=4\n")
    (tmp_path / "outside.sh").write_text("TP=2\n")
    (folder / "link.sh").symlink_to(tmp_path / "outside.sh")
    run = folder / "run.sh"
    run.write_text(
        'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nsource $HERE/conf/sizes.sh\nsbatch --nodes=2 inner.sh\n'
        f"srun -N 2 --ntasks-per-node=8 python pretrain_gpt.py {SHAPE} --micro-batch-size $MBS\n"
    )
    imported = import_file(run)
    found = imported.scenario().plan
    assert (found.microbatch_size, found.num_gpus) == (4, 16)
    assert any(entry.note == "starts another script; import that" for entry in imported.ledger.ignored)
    for name in ("../outside.sh", "link.sh", str(tmp_path / "outside.sh")):
        run.write_text(f"source {name}\ntorchrun pretrain_gpt.py {SHAPE} --tensor-model-parallel-size ${{TP:-1}}\n")
        imported = import_file(run)
        assert imported.scenario().plan.tp == 1
        assert any("not beside this one" in entry.note for entry in imported.ledger.ignored)


DEEPSPEED = 'cat <<EOT > ds.json\n{"zero_optimization": {"stage": $Z, "offload_optimizer": {"device": "cpu"}}}\nEOT'


def test_the_json_that_a_script_writes_says_the_stage(tmp_path):
    words = "--deepspeed --deepspeed_config ds.json --zero-stage 1"
    assert (
        plan('echo "{\\"zero_optimization\\": {\\"stage\\": $(echo 2)}}" > ds.json 2> err', words=words).zero_stage == 2
    )
    found = plan("Z=2", DEEPSPEED, words=words)
    assert (found.zero_stage, found.optimizer_offload) == (2, 1.0)
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "fp16": {"enabled": true}}')
    run = tmp_path / "run.sh"
    shape = SHAPE.replace(" --bf16", "")
    run.write_text(f"deepspeed --num_gpus 8 pretrain_gpt.py {shape} {words}\n")
    scenario = import_file(run).scenario()
    assert (scenario.plan.zero_stage, scenario.training.precision) == (3, "fp16")


def test_experts_of_deepspeed_are_asked_for():
    assert plan(words="--deepspeed --num-experts 1").ep == 1
    for words in ("--deepspeed --num-experts 16", "--ds-num-experts 4 4 8 8"):
        with pytest.raises(SpecError, match="DeepSpeed's own mixtures of experts"):
            plan(words=words)


@rows(
    ("program", "says"),
    [
        ("pretrain_bert.py", "an encoder, BERT"), ("pretrain_t5.py", "T5"), ("pretrain_vision_classify.py", "model of pictures"),
        ("pretrain_retro.py", "retrieved"), ("pretrain_ict.py", "retriever"), ("pretrain_vlm.py", "pictures or sounds and text"),
        ("tools/run_text_generation_server.py", "generates text"), ("tasks/main.py", "evaluates"),
        ("tools/preprocess_data.py", "prepares data"), ("train_rl.py", "reinforcement"),
    ],
)  # fmt: skip
def test_programs_that_train_no_decoder_are_refused_by_name(program, says):
    with pytest.raises(SpecError, match=f"starts .*{program}, which .*{says}"):
        import_text(f"torchrun --nproc_per_node 8 {program} {SHAPE}", "run.sh")


@rows(
    ("words", "rows", "guessed"),
    [
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B", 128_256, False),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model $WHERE/DeepSeek-V3 --make-vocab-size-divisible-by 3232", 129_280, False),
        ("--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model /data/tok.model", 32_000, True),
        ("--tokenizer-type PretrainedFromHF --tokenizer-name-or-path /data/mine", 128_000, True),
        ("--patch-tokenizer-type Qwen3Tokenizer --extra-vocab-size 293", 151_936, False),
        ("--vocab-size 1000 --tokenizer-type NullTokenizer", 1024, False),
        # Of several names of a tokenizer the longest counts.
        ("--make-vocab-size-divisible-by 1 --tokenizer-type HuggingFaceTokenizer --tokenizer-model mistralai/Mixtral-8x22B-Instruct-v0.1", 32768, False),
    ],
)  # fmt: skip
def test_vocabularies_are_the_tokenizer_s_or_a_guess_that_says_so(words, rows, guessed):
    imported = import_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} {words}", "run.sh")
    assert imported.scenario().model.vocab_size == rows
    assert ("the embedding's size is a guess" in imported.to_yaml()) == guessed


def test_arguments_in_yaml():
    text = "MODEL_ARGS:\n  --num-layers: 24\n  --hidden-size: 2048\n  --num-attention-heads: 16\n  --seq-length: 2048\n  --bf16: true\n  --swiglu: false\n"
    scenario = import_text(text, "gpt/gpt3_dgx_a100_1N8G_tp1/model_config.yaml").scenario()
    assert (scenario.model.num_layers, scenario.model.gated_mlp, scenario.plan.num_gpus) == (24, False, 8)
    with pytest.raises(SpecError, match="bert/ is of BERT"):
        import_text(text, "bert/x/model_config.yaml")
    with pytest.raises(SpecError, match="MODE: inference"):
        import_text(f"MODE: inference\n{text}", "gpt/x/model_config.yaml")


@rows(
    ("directive", "cluster", "why"),
    [
        ("-C v100-32g", "dgx-2h-superpod", "-C v100-32g names the GPU"),
        ("--gres=gpu:h200:8", "superpod-h200", "--gres=gpu:h200:8 names the GPU"),
        ("--account=six@a100", "superpod-h100", "the file names none"),
    ],
)
def test_a_scheduler_is_asked_for_a_kind_of_gpu(directive, cluster, why):
    text = f"#!/bin/bash\n#SBATCH {directive}\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
    text += "srun pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 512 --fp16"
    imported = import_text(text, "run.slurm")
    assert imported.data["cluster"] == cluster
    (entry,) = (entry for entry in imported.ledger.defaulted if entry.name == "cluster")
    assert why in entry.note
