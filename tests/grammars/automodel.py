"""NeMo AutoModel's YAML, older and newer."""

from grammars.recipe_parts import MODELS, as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"packed_sequence.packed_sequence_size": 4096}, {"training.sequence_length": 4096}),
    ({"distributed.cp_size": 2}, {"plan.cp": 2}),
    ({"fp8.enabled": True}, {"training.precision": "fp8"}),
    ({"compile.enabled": True}, {"stack.compiled": True}),
    ({"optimizer._target_": "torch.optim.SGD"}, {"training.optimizer": "sgd"}),
    ({"step_scheduler.global_batch_size": 128}, {"training.global_batch_size": 128}),
    ({"model.attn_implementation": "eager"}, {"stack.attention": "math"}),
]  # fmt: skip


def write(rng):
    tp, micro, batch, repository = (
        rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([32, 64]), rng.choice(list(MODELS)),
    )  # fmt: skip
    name, stage = rng.choice([("FSDP2Manager", 3), ("DDPManager", 0)])
    newer, again = rng.random() < 0.5, rng.random() < 0.5
    spread = {"tp_size": tp, "cp_size": 1, "dp_size": "none", "sequence_parallel": False}
    spread |= {"strategy": "fsdp2"} if newer else {"_target_": f"nemo_automodel.components.distributed.x.{name}"}
    data = {
        "step_scheduler": {"global_batch_size": batch, "local_batch_size": micro, "max_steps": 10},
        "model": {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained", "pretrained_model_name_or_path": repository},
        "distributed": {**spread, "activation_checkpointing": again}, "dist_env": {"backend": "nccl"},
        "dataset": {"_target_": "nemo_automodel.components.datasets.llm.squad.make_squad_dataset", "seq_length": 1024},
        "optimizer": {"_target_": "torch.optim.Adam", "lr": 1e-5}, "packed_sequence": {"packed_sequence_size": 0},
    }  # fmt: skip
    expected = {
        "parameters": MODELS[repository], "gpus": 8, "plan.tp": tp, "plan.zero_stage": 3 if newer else stage,
        "plan.microbatch_size": micro, "training.global_batch_size": batch, "training.sequence_length": 1024,
        "plan.recompute": "full" if again else "none", "training.adapter_rank": 0,
    }  # fmt: skip
    if rng.random() < 0.5:
        data["peft"] = {"_target_": "nemo_automodel.components._peft.lora.PeftConfig", "dim": 8, "alpha": 32}
        data["peft"] |= rng.choice([{"match_all_linear": True}, {"target_modules": ["*_proj"]}])
        expected["training.adapter_rank"] = 8
    with_some(rng, data, expected, MORE, 4)
    return "squad.yaml", as_yaml(rng, data), expected, {"gpus": 8}
