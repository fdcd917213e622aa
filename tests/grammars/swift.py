"""ms-swift's arguments in YAML and JSON."""

from grammars.trl import trainer


def write(rng):
    switch = rng.choice(["train_type", "tuner_type"])
    name, text, expected, options = trainer(
        rng, {"dataset": ["alpaca"]}, "max_length", switch, "lora_rank", "target_modules", "full"
    )
    return name, text.replace("model_name_or_path", "model"), expected, options
