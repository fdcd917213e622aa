"""Launch scripts of trainers: their arguments are settings of the recipe's kind, laid over the file that they name."""

import pytest
from facts import wrong_facts
from rows import rows

from sim.errors import SpecError
from sim.foreign.importers import import_file, import_text

FLAGS = (
    "--model_name_or_path Qwen/Qwen2.5-1.5B --per_device_train_batch_size 4 --max_seq_length 512 --output_dir o --bf16"
)
SCRIPTS = [  # text, kind, facts
    ("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train --stage sft --model_name_or_path meta-llama/Llama-3.2-1B --finetuning_type full", "llama_factory", {"gpus": 2}),
    (f"deepspeed --num_gpus 4 train.py {FLAGS} --deepspeed ds_zero3.json\n", "trl", {"gpus": 4, "plan.zero_stage": 3}),
    (f"accelerate launch --config_file cfg/zero2.yaml --num_processes 6 sft.py {FLAGS}\n", "trl", {"plan.zero_stage": 2}),
    (f"trl sft --accelerate_config zero2_offload --num_processes 4 {FLAGS}\n", "trl", {"plan.zero_stage": 2, "plan.optimizer_offload": 1.0}),
    (f"deepspeed --include localhost:1,2,3@b:0 train.py {FLAGS}\n", "trl", {"gpus": 4}),
    ("export NPROC_PER_NODE=4\nNNODES=2 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type full --dataset a\n", "swift", {"gpus": 8}),
    ("litgpt finetune lora meta-llama/Llama-3.2-1B --devices 4 --train.global_batch_size 8\n", "litgpt", {"gpus": 4, "training.adapter_rank": 8, "parameters": 1235814400}),
    (
        "cat > c.yml << EOT\nbase_model: Qwen/Qwen2.5-1.5B\nsequence_len: 1024\nmicro_batch_size: 2\nEOT\n"
        "axolotl train c.yml --launcher torchrun -- --nproc_per_node=4\n",
        "axolotl",
        {"gpus": 4, "plan.microbatch_size": 2},
    ),
]  # fmt: skip


@rows(("text", "kind", "expected"), SCRIPTS, ids=[each[0][:60] for each in SCRIPTS])
def test_arguments_of_a_command_are_settings(text, kind, expected):
    imported = import_text(text, "run.sh")
    assert imported.kind == kind
    assert not wrong_facts(imported.scenario(), expected)


def test_arguments_are_laid_over_the_file_that_they_name(tmp_path):
    (tmp_path / "c.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n[parallelism]\n'
    )
    command = "torchrun --nproc_per_node=8 --nnodes=2 -m torchtitan.train --job.config_file c.toml"
    (tmp_path / "run.sh").write_text(f"{command} --parallelism.tensor_parallel_degree 4 --training.seq_len=4096\n")
    expected = {"gpus": 16, "plan.tp": 4, "training.sequence_length": 4096, "plan.microbatch_size": 2}
    assert not wrong_facts(import_file(tmp_path / "run.sh").scenario(), expected)


def test_what_cannot_be_read_is_refused():
    for command, why in (
        ("llamafactory-cli train x.yaml", "settings stand in x.yaml, which is not beside the script; import that file"),
        ("litgpt finetune_adapter_v2 meta-llama/Llama-3.2-1B --devices 4", "finetune_adapter_v2 trains LLaMA-Adapters"),
    ):
        with pytest.raises(SpecError, match=why):
            import_text(f"{command}\n", "run.sh")
