"""prime-rl's TOML: supervised training, and the trainer of reinforcement learning."""

from grammars.recipe_parts import MODELS


def write(rng):
    gpus, length, batch, model = (
        rng.choice([1, 8]), rng.choice([4096, 16384]), rng.choice([64, 512]), rng.choice(list(MODELS)),
    )  # fmt: skip
    learning, again, compiled = rng.random() < 0.5, rng.random() < 0.5, rng.random() < 0.5
    above = "trainer." if learning else ""
    tp, cp = (rng.choice([1, 2]) if gpus > 1 else 1 for _ in range(2))
    degrees = f"tp = {tp}\ncp = {cp}\n"
    text = f'max_steps = 100\n[model]\nname = "{model}"\n' + degrees * (not learning)
    if learning:
        text = f"seq_len = {length}\n{text}[orchestrator]\nbatch_size = {batch}\n[inference]\n"
        text += '[trainer.model]\nattn = "flash_attention_2"\n' + degrees
    else:
        text += f"[data]\nseq_len = {length}\nbatch_size = {batch}\nmicro_batch_size = 1\n"
    every = rng.choice([1, 1, 2])
    text += f"[{above}model.ac]\nfreq = {every}\n" * again + f"[{above}model.compile]\n" * compiled
    text += f"[{above}optim]\nlr = 1e-6\n"
    expected = {
        "parameters": MODELS[model], "gpus": gpus, "training.sequence_length": length, "training.global_batch_size": batch,
        "plan.recompute": "full" if again else "none", "stack.compiled": compiled, "stack.framework": "prime-rl",
        "plan.tp": tp, "plan.cp": cp, "plan.dp": gpus // (tp * cp), "plan.zero_stage": 3, "plan.microbatch_size": 1, "stack.chunked_loss": learning,
    }  # fmt: skip
    if again and every > 1:
        expected |= {"plan.recompute_method": "block"}
    rank = rng.choice([None, 8])
    if rank is not None:
        text += f"[{above}model.lora]\nrank = {rank}\n"
        expected["training.adapter_rank"] = rank
    return "train.toml", text, expected, {"gpus": gpus}
