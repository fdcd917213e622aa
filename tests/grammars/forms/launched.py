"""Launch scripts of trainers, of what their grammars write as a file: its settings behind the program, or in a file that
the script writes, over which others are laid."""

import json

from sim.foreign.importers.keys import flat

from ..writing import BASES, ROWS, drawn

KINDS = {  # kind -> (commands, how one setting is said, what joins a list)
    "trl": (["torchrun {nodes} sft.py", "accelerate launch --num_processes {gpus} sft.py", "trl sft --num_processes {gpus}"], "--{} {}", " "),
    "swift": (["NPROC_PER_NODE={gpus} swift sft", "torchrun {nodes} swift/cli/sft.py"], "--{} {}", " "),
    "llama_factory": (["torchrun {nodes} src/train.py", "FORCE_TORCHRUN=1 NPROC_PER_NODE={gpus} llamafactory-cli train"], "--{} {}", ","),
    "axolotl": (["accelerate launch --num_processes {gpus} -m axolotl.cli.train", "torchrun {nodes} -m axolotl.cli.train"], "--{}={}", ","),
    "litgpt": (["litgpt finetune_lora", "litgpt finetune lora"], "--{} {}", ","),
    "maxtext": (["python3 -m MaxText.train base.yml", "python3 src/MaxText/train.py src/MaxText/configs/base.yml"], "{}={}", ","),
    "paddlenlp": (['python -u -m paddle.distributed.launch --gpus "0,1,2,3,4,5,6,7" --log_dir log run_pretrain.py'], "--{} {}", " "),
    "torchtitan": (["torchrun {nodes} -m torchtitan.train", "torchrun {nodes} torchtitan/train.py"], "--{} {}", ","),
    "bridge_yaml": (["torchrun {nodes} train.py", "torchrun {nodes} scripts/training/finetune.py"], "{}={}", ","),
    "verl": (["python3 -m verl.trainer.{verl}"], "{}={}", ","),
}  # fmt: skip
FILES = {"trl": "--config c.yaml", "llama_factory": "c.yaml", "axolotl": "c.yaml", "litgpt": "--config c.yaml"}
"""How a command names a file of settings."""
TAKE = ("trl sft", "llamafactory-cli", "axolotl", "litgpt")
"""Programs that take one."""


def write(rng):
    kind = rng.choice([*KINDS])
    data, facts = drawn(rng, BASES[kind], ROWS[kind])
    commands, said, joint = KINDS[kind]
    command = rng.choice(commands)
    if kind == "litgpt" and "lora_r" not in data:
        full = ["litgpt finetune_full", "litgpt finetune full"]
        command = "litgpt pretrain" if "model_name" in data else rng.choice(full)
    verl = "main_ppo" if "algorithm" in data else "fsdp_sft_trainer"
    start = command.format(gpus=8, nodes="--nproc_per_node 8", verl=verl)
    lines = ["#!/bin/bash", "set -e", f"export OUT={rng.choice(['out', '/data/out'])}"]
    leaves = dict(flat(data, 0 if kind in ("trl", "swift", "llama_factory") else 3))
    if any(program in command for program in TAKE) and (kind != "litgpt" or rng.random() < 0.5):
        over = {key: value for key, value in leaves.items() if isinstance(value, int) and rng.random() < 0.3}
        lines += ["cat << EOT > c.yaml", json.dumps(_laid_under(data, over)), "EOT"]
        start, leaves = f"{start} {FILES[kind]}", over
        said = "{}={}" if kind == "llama_factory" else said
    words = [said.format(key, _word(rng, value, joint, kind)) for key, value in leaves.items() if value is not None]
    rng.shuffle(words)
    command = (" \\\n    " if rng.random() < 0.5 else " ").join([start, *words])
    return "run.sh", "\n".join([*lines, command]) + "\n", facts, {"gpus": 8} if kind == "maxtext" else {}


def _laid_under(data, over, path=""):
    """The file's data: other values for what the command says."""
    under = dict(data)
    for key, value in data.items():
        if isinstance(value, dict):
            under[key] = _laid_under(value, over, f"{path}{key}.")
        elif f"{path}{key}" in over:
            under[key] = not value if isinstance(value, bool) else value + 1
    return under


def _word(rng, value, joint, kind):
    """A value as a shell's word."""
    if isinstance(value, bool):
        return rng.choice([str(value), str(value).lower()])
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        quoted = {"maxtext": "\"['" + "','".join(value) + "']\"", "bridge_yaml": f"'[{','.join(value)}]'"}
        return quoted.get(kind, joint.join(value))
    if isinstance(value, (list, dict)):
        return f"'{json.dumps(value)}'"
    return rng.choice([f"{value}", f'"{value}"'])
