"""verl's settings: hydra's `key=value` behind the program in a shell script, or as the YAML that it prints."""

from grammars.recipe_parts import MODELS, as_yaml

_ACTOR = "actor_rollout_ref.actor"


def write(rng):
    keys, expected = (supervised if rng.random() < 0.4 else policy)(rng)
    program = "verl.trainer.main_ppo" if f"{_ACTOR}.ppo_mini_batch_size" in keys else "verl.trainer.fsdp_sft_trainer"
    if rng.random() < 0.3:
        data = {}
        for name, value in keys.items():
            *parts, last = name.split(".")
            place = data
            for part in parts:
                place = place.setdefault(part, {})
            place[last] = value
        return "verl.yaml", as_yaml(rng, data), expected, {}
    said = [f"{rng.choice(['', '', '+'])}{name}={value}" for name, value in keys.items()]
    text = (
        "#!/bin/bash\nset -x\nexport VLLM_USE_V1=1\n" + " \\\n    ".join([f"python3 -m {program}", *said, "$@"]) + "\n"
    )
    return "run.sh", text, expected, {}


def supervised(rng):
    """Settings of the supervised trainer."""
    model, gpus, micro = rng.choice(list(MODELS)), rng.choice([2, 8]), rng.choice([2, 4])
    length, batch, rank = rng.choice([1024, 2048]), rng.choice([64, 256]), rng.choice([0, 32])
    keys = {
        "data.train_files": "x.parquet", "data.train_batch_size": batch, "data.micro_batch_size_per_gpu": micro,
        "data.max_length": length, "model.partial_pretrain": model, "model.lora_rank": rank, "optim.lr": 1e-4,
        "trainer.n_gpus_per_node": gpus, "trainer.nnodes": 1, "trainer.total_epochs": 2,
        "model.enable_gradient_checkpointing": rng.choice([True, False]),
    }  # fmt: skip
    facts = {
        "parameters": MODELS[model], "gpus": gpus, "training.global_batch_size": batch, "plan.microbatch_size": micro,
        "training.sequence_length": length, "training.adapter_rank": rank, "plan.zero_stage": 3,
        "plan.recompute": "full" if keys["model.enable_gradient_checkpointing"] else "none",
    }  # fmt: skip
    return keys, facts


def policy(rng):
    """Settings of reinforcement learning, whose update of the policy is read: on FSDP, or on Megatron-Core."""
    model, gpus, samples = rng.choice(list(MODELS)), rng.choice([8, 16]), rng.choice([1, 4, 8])
    mini, prompt, response = rng.choice([64, 256]), 512, rng.choice([512, 1536])
    keys = {
        "algorithm.adv_estimator": "grpo", "data.train_batch_size": 1024, "data.max_prompt_length": prompt,
        "data.max_response_length": response, "actor_rollout_ref.model.path": model,
        f"{_ACTOR}.ppo_mini_batch_size": mini, "actor_rollout_ref.rollout.n": samples,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 4, "trainer.n_gpus_per_node": 8,
        "trainer.nnodes": gpus // 8,
    }  # fmt: skip
    facts = {
        "parameters": MODELS[model], "gpus": gpus, "training.global_batch_size": mini * samples,
        "training.sequence_length": prompt + response, "plan.tp": 1, "plan.pp": 1,
    }  # fmt: skip
    if rng.random() < 0.5:
        tokens = rng.choice([2, 4]) * (prompt + response)
        keys |= {f"{_ACTOR}.use_dynamic_bsz": True, f"{_ACTOR}.ppo_max_token_len_per_gpu": tokens}
        facts["plan.microbatch_size"] = tokens // (prompt + response)
    else:
        keys[f"{_ACTOR}.ppo_micro_batch_size_per_gpu"] = facts["plan.microbatch_size"] = 2
    if rng.random() < 0.5:
        keys |= {f"{_ACTOR}.strategy": "megatron", f"{_ACTOR}.megatron.tensor_model_parallel_size": 2}
        keys[f"{_ACTOR}.megatron.pipeline_model_parallel_size"] = 2
        facts |= {
            "plan.tp": 2, "plan.pp": 2, "plan.zero_stage": 1, "plan.recompute": "none",
            "plan.sequence_parallel": True,
        }  # fmt: skip
    else:
        facts |= {"plan.zero_stage": 3, "plan.recompute": "full"}
    return keys, facts
