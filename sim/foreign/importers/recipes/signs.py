"""By what a recipe of each kind is told: the keys that it cannot be without, and that no other kind has together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sim.foreign.importers.keys import table


class Signs(NamedTuple):
    """Dotted keys that tell a kind; `=` after one says that it holds a text.

    needs : groups, of each of which the file has one.
    never : keys of other kinds, none of which it has.
    """

    needs: tuple[tuple[str, ...], ...]
    never: tuple[str, ...] = ()


SIGNS = {
    "nanotron": Signs((("model.model_config",), ("parallelism.dp", "parallelism.tp", "parallelism.pp"))),
    "llm_foundry": Signs((("model.name",), ("global_train_batch_size",), ("max_seq_len", "train_loader", "variables"))),
    "olmo": Signs((("model.d_model",), ("global_train_batch_size",)), ("model.name",)),
    "maxtext": Signs(
        (
            ("base_emb_dim", "base_config", "per_device_batch_size", "ici_fsdp_parallelism"),
            ("decoder_block", "max_target_length", "remat_policy", "base_num_decoder_layers", "hardware", "model_name"),
        )
    ),
    "axolotl": Signs(
        (("base_model",), ("micro_batch_size", "sequence_len", "adapter", "gradient_accumulation_steps", "datasets"))
    ),
    "llama_factory": Signs((("model_name_or_path",), ("finetuning_type", "cutoff_len", "lora_target", "template"))),
    "trl": Signs(
        (
            ("model_name_or_path", "per_device_train_batch_size"),
            ("per_device_train_batch_size", "gradient_accumulation_steps", "output_dir"),
            ("learning_rate", "output_dir", "num_train_epochs", "max_steps"),
        ),
        ("base_model", "model", "train_micro_batch_size_per_gpu"),
    ),
    "swift": Signs((("model=",), ("train_type", "tuner_type", "lora_rank"), ("dataset", "output_dir"))),
    "accelerate": Signs(
        (
            ("distributed_type", "fsdp_config", "deepspeed_config"),
            ("num_processes", "num_machines", "mixed_precision"),
        ),
        ("base_model", "model_name_or_path", "model"),
    ),
    "torchtune": Signs(
        (
            ("model._component_", "policy_model._component_"),
            ("tokenizer._component_", "checkpointer._component_", "dataset._component_"),
        )
    ),
    "prime_rl": Signs(
        (
            ("model.name=", "trainer.model", "model.ac", "model.compile"),
            (
                "optim", "orchestrator", "deployment", "trainer", "model.ac", "model.compile", "model.impl",
                "data.micro_batch_size", "data.batch_size", "data.seq_len", "weight_broadcast",
            ),
        ),
        (
            "parallelism", "job", "activation_checkpoint", "exp_manager", "model._target_", "model.type",
            "step_scheduler",
        ),
    ),
    "nemo_yaml": Signs(
        (
            ("trainer",),
            ("model.tensor_model_parallel_size", "model.micro_batch_size", "model.encoder_seq_length"),
            ("exp_manager", "model.optim", "model.data"),
        )
    ),
    "bridge_yaml": Signs(
        (
            (
                "model.tensor_model_parallel_size", "model.num_layers", "model_config.tensor_model_parallel_size",
                "train.global_batch_size", "train_config.global_batch_size", "train.train_iters",
                "train_config.train_iters",
            ),
            (
                "ddp", "ddp_config", "checkpoint", "checkpoint_config", "logger", "logger_config", "mixed_precision",
                "dataset_config", "optimizer_config", "model_config", "model.tensor_model_parallel_size",
            ),
        ),
        ("trainer", "exp_manager", "checkpoint_dir", "model_name", "devices"),
    ),
    "automodel": Signs(
        (
            ("step_scheduler", "distributed"),
            ("model._target_", "model.pretrained_model_name_or_path", "model.config"),
            ("dataset", "packed_sequence", "dist_env", "step_scheduler"),
        )
    ),
    "levanter": Signs(
        (
            ("trainer.train_batch_size", "trainer.mp", "trainer.num_train_steps", "trainer.model_axis_size"),
            ("model.type", "data", "optimizer"),
        )
    ),
    "gpt_neox": Signs(
        (
            ("num-layers", "num_layers"),
            ("hidden-size", "hidden_size"),
            ("pipe-parallel-size", "pipe_parallel_size", "model-parallel-size", "model_parallel_size"),
        )
    ),
    "litgpt": Signs(
        (
            ("checkpoint_dir", "model_name", "model_config", "model.n_layer"),
            ("train.global_batch_size", "train.micro_batch_size"),
        )
    ),
}  # fmt: skip


def has_signs(kind: str, data: Any) -> bool:
    """Whether data are a recipe of a kind."""
    needs, never = SIGNS[kind]
    return (
        isinstance(data, Mapping)
        and all(any(_has(data, sign) for sign in group) for group in needs)
        and not any(_has(data, sign) for sign in never)
    )


def telling(kind: str, data: Any) -> int:
    """How many of the file's keys are settings that the kind's table knows: of two kinds the more telling counts."""
    known = {name for rule in table(kind).get("settings", {}).values() for name in _keys_of(rule)}
    return sum(_has(data, name) for name in known)


def _has(data: Mapping[str, Any], sign: str) -> bool:
    found: Any = data
    for part in sign.removesuffix("=").split("."):
        if not isinstance(found, Mapping) or part not in found:
            return False
        found = found[part]
    return isinstance(found, str) if sign.endswith("=") else True


def _keys_of(rule: Any) -> list[str]:
    if isinstance(rule, Mapping):
        return list(rule["keys"])
    return [name for each in rule for name in ([each] if isinstance(each, str) else each["keys"])]
