"""Foreign configurations become scenarios: what is read, filled in, left out, and refused."""

import json
import random
from pathlib import Path

import pytest
from facts import wrong_facts
from grammars.writing import OTHERS, write
from rows import rows

from sim import build_scenario, estimate
from sim.errors import SpecError
from sim.foreign.importers import Given, import_file, import_text
from sim.specs import ModelSpec, load_preset
from sim.specs.yaml12 import parse_yaml
from sim.work.sums import total_params

FOREIGN = Path(__file__).parent / "files"

DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 8,
    "topk_group": 4, "scoring_func": "sigmoid", "num_nextn_predict_layers": 1, "vocab_size": 129280,
}  # fmt: skip


def config(**changes):
    return json.dumps({key: value for key, value in {**OTHERS["huggingface"], **changes}.items() if value is not ...})


def names(entries):
    return {entry.name for entry in entries}


def test_a_config_becomes_a_scenario_that_can_be_asked():
    imported = import_text(config(), "llama/config.json")
    scenario = imported.scenario()
    assert (imported.kind, scenario.name) == ("huggingface", "llama")
    assert total_params(scenario.model) == 8_030_261_248
    assert estimate(scenario).fits
    assert "cluster" in names(imported.ledger.defaulted)
    reasons = {entry.name: entry.note for entry in imported.ledger.ignored}
    assert reasons["rope_theta"].startswith("rotary positions cost the same")
    assert reasons["torch_dtype"].startswith("of the stored weights")


def test_multi_token_prediction_is_read_and_says_how_to_leave_it_out():
    imported = import_text(config(**DEEPSEEK), "config.json")
    (read,) = (entry for entry in imported.ledger.read if entry.name == "model.num_mtp_layers")
    assert read.value == "1"
    assert "--set model.num_mtp_layers=0" in read.note
    without = import_text(config(**DEEPSEEK), "config.json", overrides=["model.num_mtp_layers=0"]).scenario().model
    assert total_params(without) == pytest.approx(671.03e9, rel=1e-5)


def test_a_window_that_no_layer_sees_is_left_out_aloud():
    ignored = import_text(config(sliding_window=512), "config.json").ledger.ignored
    assert ("sliding_window", "512", "no layer sees a window", False) in ignored


def test_the_file_that_is_written_says_the_same_and_why():
    imported = import_text(config(), "config.json", Given(gpus=16, cluster="selene"))
    text = imported.to_yaml()
    assert build_scenario(parse_yaml(text, ""), where="config.json") == imported.scenario()
    assert "#   model.num_layers: 32  (num_hidden_layers)" in text
    assert "# Left out; does not change" in text
    assert f"# {imported.ledger.confidence}." in text
    assert imported.scenario().plan.num_gpus == 16


def test_what_nobody_knows_is_listed():
    imported = import_text(config(brand_new_key=3), "c.json")
    assert ("brand_new_key", "3", "not known to flopcast", True) in imported.ledger.ignored


SHIPPED = [  # file, cluster and GPUs that are given, facts
    ("gpt3_175b.sh", ("selene", None), {
        "plan.tp": 8, "plan.pp": 16, "plan.dp": 8, "plan.microbatch_size": 1, "plan.schedule": "1f1b", "parameters": 96 * (12 * 12288**2 + 13 * 12288) + (51200 + 2048 + 2) * 12288,
        "training.global_batch_size": 1536, "training.sequence_length": 2048, "training.precision": "fp16",
        "model.vocab_size": 51200, "training.tokens": 500_000 * 1536 * 2048,  # padded as Megatron pads it
    }),
    ("deepseek_v3_671b.sh", (None, None), {
        "model.head_dim": 192, "model.rotary_head_dim": 64, "model.value_head_dim": 128, "model.num_dense_layers": 3,
        "model.num_experts": 256, "model.experts_per_token": 8, "model.num_mtp_layers": 1, "plan.pp": 8, "plan.num_chunks": 4,
        "plan.ep": 64, "plan.dp": 128, "plan.pipeline_layout": "Et*3|(tt|)*29m|L", "stack.expert_dispatcher": "deepep",
        "stack.overlap_experts": True,
    }),
    ("mixtral_8x7b.sh", (None, None), {  # mistralai/Mixtral-8x7B-v0.1:model.safetensors.index.json
        "parameters": 46_702_792_704, "model.experts_per_token": 2, "plan.ep": 8, "plan.num_chunks": 2, "plan.tp": 2, "plan.etp": 2,
        "stack.expert_dispatcher": "alltoall",
    }),
    # What the script and the framework's name settle: stages, bf16's optimizer, 48 nodes within a text for srun.
    ("bloom_176b.slurm", ("selene", None), {
        "gpus": 384, "plan.tp": 4, "plan.pp": 12, "plan.dp": 8, "plan.zero_stage": 1, "plan.embedding_as_layer": True,
        "plan.head_as_layer": True, "plan.microbatch_size": 2, "stack.framework": "megatron-deepspeed",
        "stack.gradient_precision": "fp32", "stack.fused_gradient_cast": False, "model.vocab_size": 250_880,
        "model.embedding_norm": True, "model.dropout": 0.1, "parameters": 176_247_271_424, "training.global_batch_size": 2048,
        "training.tokens": 220_000_000 * 2048,
    }),
]  # fmt: skip


@rows(("name", "given", "facts"), SHIPPED)
def test_shipped_files(name, given, facts):
    imported = import_file(FOREIGN / name, Given(cluster=given[0], gpus=given[1]))
    assert not wrong_facts(imported.scenario(), facts)
    ignored = {entry.name: entry.note for entry in imported.ledger.ignored}
    assert "bloom" in name or not [key for key, note in ignored.items() if note == "not known to flopcast"]


def test_a_hybrid_model_as_megatron_starts_it():
    """Nemotron-H-8B: its pattern, and Mamba's sizes where they are Megatron's defaults."""
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    script = (
        "torchrun --nproc_per_node 8 pretrain_mamba.py --num-layers 52 --hidden-size 4096 --ffn-hidden-size 21504"
        " --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --bf16"
        " --position-embedding-type none --normalization RMSNorm --squared-relu --disable-bias-linear --is-hybrid-model"
        " --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --mamba-num-heads 128"
        f" --hybrid-override-pattern {pattern} --kv-channels 128"
        " --padded-vocab-size 131072"
    )
    imported = import_text(script, "run.sh")
    preset = ModelSpec.read(load_preset("models", "nemotron-h-8b"), "preset")
    besides = {"name", "max_sequence_length"}
    assert imported.scenario().model.model_dump(exclude=besides) == preset.model_dump(exclude=besides)
    assert all(entry.note != "not known to flopcast" for entry in imported.ledger.ignored)
    # The newer argument says the stages too.
    cut = pattern.replace("-M-M-M-M-M*", "-M-M|-M-M-M*", 2).replace("*-M-M-M-M-M-", "*|-M-M-M-M-M-")
    staged = script.replace(f"--hybrid-override-pattern {pattern}", f"--hybrid-layer-pattern '{cut}'") + " "
    plan = import_text(staged + "--pipeline-model-parallel-size 4", "run.sh").scenario().plan
    assert plan.pp == 4
    assert sum(letters.count("t") for letters in plan.stages_of_layout) == 52


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "gradient_clipping": "auto",
}  # fmt: skip


def test_deepspeed_with_the_model_beside_it(tmp_path):
    (tmp_path / "config.json").write_text(config())
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    imported = import_file(tmp_path / "ds.json", Given(gpus=16))
    scenario = imported.scenario()
    assert (scenario.plan.dp, scenario.plan.zero_stage, scenario.plan.microbatch_size) == (16, 3, 2)
    assert scenario.training.global_batch_size == 2 * 4 * 16
    assert total_params(scenario.model) == 8_030_261_248
    reasons = {entry.name: entry.note for entry in imported.ledger.ignored}
    assert imported.scenario().plan.optimizer_offload == 1.0
    assert reasons["gradient_clipping"].startswith("left to the trainer")


def test_deepspeed_says_how_many_gpus_its_batch_needs():
    whole = {**DEEPSPEED, "train_batch_size": 256}
    given = Given(model="llama2-7b")
    assert import_text(json.dumps(whole), "ds.json", given).scenario().plan.dp == 32
    with pytest.raises(SpecError, match="does not describe the model"):
        import_text(json.dumps(whole), "ds.json")
    with pytest.raises(SpecError, match=r"train_batch_size 256 is not .* 2 × 4 × 48"):
        import_text(json.dumps(whole), "ds.json", Given(model="llama2-7b", gpus=48))


def script(*lines, size="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048", gpus=None):
    text = "\n".join((*lines, f"torchrun pretrain_gpt.py {size} --bf16 $MORE ${{ARGS[@]}}"))
    return import_text(text, "run.sh", Given(gpus=gpus))


@rows(
    ("lines", "field", "value"),
    [
        (["f() {", "MORE='--micro-batch-size 2'", "}", "cat <<EOF", "MORE='--micro-batch-size 3'", "EOF"], "microbatch_size", 1),
        (["MORE=\"--recompute-activations\""], "recompute", "selective"),
        (["MORE=\\\n'--micro-batch-size 16'"], "microbatch_size", 16),
    ],
)  # fmt: skip
def test_shell_texts_are_read_as_a_shell_would(lines, field, value):
    assert getattr(script(*lines).scenario().plan, field) == value


def test_gpus_that_do_not_hold_a_replica():
    text = "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --bf16 --pipeline-model-parallel-size 12"
    imported = import_text(text, "run.sh")
    assert imported.scenario().plan.num_gpus == 12
    assert any("start 8 GPUs" in entry.note for entry in imported.ledger.defaulted)
    with pytest.raises(SpecError, match="nearest: --gpus 24"):
        import_text(text, "run.sh", Given(gpus=28))


def test_broken_files(tmp_path):
    (tmp_path / "nul.json").write_bytes(b'{"model_type": "llama\0"}')
    (tmp_path / "binary.json").write_bytes(bytes(range(128, 256)))
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(100_000_000)
    for name, says in (
        ("nul.json", "NUL bytes"),
        ("binary.json", "not a text file"),
        ("huge.json", "larger than 4 MB"),
        ("none.json", "No such file"),
        ("", "is a folder"),
    ):
        with pytest.raises(SpecError, match=says):
            import_file(tmp_path / name)
    with pytest.raises(SpecError, match="not the name of a file"):
        import_file("a\0b")


def test_a_value_cannot_leave_its_comment():
    text = import_text(
        config(brand_new_key="x\nplan: {dp: 3}\u2028y\x85z", _name_or_path="a\nb: c"), "c.json"
    ).to_yaml()
    assert all(line.startswith("#") for line in text.splitlines()[: text.splitlines().index("name: 'a b: c'")])
    assert parse_yaml(text, "")["model"]["name"] == "a b: c"


def test_options_that_would_say_nothing_are_refused():
    for text, where, given in (
        (config(), "config.json", Given(model="llama2-7b")),
        (config(), "config.json", Given(args=("8B",))),
        (config(), "config.json", Given(env={"N": "1"})),
        ("torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64", "run.sh", Given(recipe="x")),
    ):
        with pytest.raises(SpecError, match=r"leave (it|them|--model) out"):
            import_text(text, where, given)


def test_a_file_that_needs_no_import_is_told_so():
    with pytest.raises(SpecError, match="looks like a scenario, which needs no import: flopcast estimate"):
        import_file("scenarios/gpt-1t-3072-a100.yaml")
    with pytest.raises(SpecError, match="is empty"):
        import_text(" \n", "x.yaml")


@rows("kind", ["axolotl", "torchtune", "nemo", "torchtitan", "deepspeed", "huggingface", "megatron"])
def test_a_pipe_is_read_as_the_file_would_be(kind):
    for seed in range(3):
        _, text, expected, options = write(kind, random.Random(seed))
        imported = import_text(text, "-", Given(**options))
        assert imported.kind == kind
        assert not wrong_facts(imported.scenario(), expected)


REFUSED_TEXTS = [  # text, name of the file, why
    ("{", "a.json", "line 1, column 2"),
    ('{"a": 1, "a": 2}', "a.json", "'a' is given twice"),
    ('{"a": ' + "1" * 5000 + "}", "a.json", "digits"),
    ("[" * 100_000 + "]" * 100_000, "a.json", "nested more than 40 levels"),
    ("a = " + "[" * 100_000, "a.toml", "nested more than 40 levels|not TOML"),
    ("hello", "a.sh", "of no kind"),
    ("--num-layers 2", "a.sh", "no command with --num-layers and --hidden-size|--hidden-size is missing"),
    ("A='--num-layers", "a.sh", "line 1: a quotation that begins with ' is never closed"),
    ("pretrain_gpt.py --num-layers $(", "a.sh", "a bracket \\( is never closed"),
    ("A=xxxxxxxxxx\n" + "A=$A$A\n" * 40 + "p.py --num-layers 2", "a.sh", "grow beyond"),
    ("python p.py --num-layers 2 --hidden-size " + "9" * 400, "a.sh", "must be a whole number"),
    ("python p.py --num-layers $N --hidden-size 64", "a.sh", "--num-layers is missing or only known when"),
    ("A=$((9**9**9**9))\npython p.py --num-layers $A --hidden-size 64", "a.sh", "--num-layers is missing"),
    ('[job]\n[training]\n[model]\nname="llama3"\nflavor="9B"', "a.toml", "no preset has that name"),
    ('[job]\n[training]\n[model]\nname="deepseek_v3"\nflavor="16B"\n[parallelism]\nexpert_tensor_parallel_degree=2', "a.toml", "etp 2 must be 1"),
    ('[job]\n[training]\nseq_len="long"\n[model]\nname="llama3"\nflavor="8B"', "a.toml", "training.seq_len = long must be"),
    ('[job]\n[training]\n[model]\nname="llama3"\nflavor="8B"\n[parallelism]\ntensor_parallel_degree=0', "a.toml", "tensor_parallel_degree = 0"),
    ('[job]\ntraining=3\nparallelism=4', "a.toml", "of no kind"),
]  # fmt: skip
REFUSED = [
    (config(hidden_size=10**400), "config.json", "a number of about 400 digits must be a whole number"),
    *REFUSED_TEXTS,
]


@rows(("text", "where", "why"), REFUSED, ids=lambda row: row[2])
def test_what_cannot_be_is_refused(text, where, why):
    with pytest.raises(SpecError, match=why):
        import_text(text, where).scenario()
