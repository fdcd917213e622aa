"""LLaMA-Factory's YAML."""

from grammars.trl import trainer


def write(rng):
    more = {"stage": rng.choice(["sft", "pt"]), "do_train": True, "template": "llama3", "dataset": "identity"}
    name, text, expected, options = trainer(
        rng, more, "cutoff_len", "finetuning_type", "lora_rank", "lora_target", "full"
    )
    if rng.random() < 0.3 and "gradient_checkpointing" not in text:
        text = text.replace("logging_steps: 5", "logging_steps: 5\ndisable_gradient_checkpointing: true")
        expected["plan.recompute"] = "none" if "disable_gradient" in text else "full"
    return name, text.replace("use_liger_kernel", "enable_liger_kernel"), expected, options
