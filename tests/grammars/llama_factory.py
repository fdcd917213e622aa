"""LLaMA-Factory's YAML."""

from grammars.trl import trainer


def write(rng):
    """A file's name, its text, the facts expected of it and the options it needs."""
    more = {"stage": rng.choice(["sft", "pt"]), "do_train": True, "template": "llama3", "dataset": "identity"}
    name, text, expected, options = trainer(rng, more, "cutoff_len", "finetuning_type", "lora_rank", "lora_target")
    return name, text.replace("use_liger_kernel", "enable_liger_kernel"), expected, options
