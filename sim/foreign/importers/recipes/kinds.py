"""Recipes in YAML, TOML and JSON: by what each kind is told, what it is called, and its reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.keys import table
from sim.foreign.importers.nemo.yaml_settings import read_nemo_yaml
from sim.foreign.importers.recipes.finetuning_kinds import (
    read_accelerate,
    read_automodel,
    read_prime_rl,
    read_torchtune,
    read_trainer,
)
from sim.foreign.importers.recipes.maxtext import read_maxtext
from sim.foreign.importers.recipes.pretraining_kinds import (
    read_gpt_neox,
    read_levanter,
    read_litgpt,
    read_llm_foundry,
    read_nanotron,
    read_olmo,
)
from sim.foreign.importers.recipes.settings import rules_of

Read = Callable[[Foreign], dict[str, Any]]

RECIPES: dict[str, tuple[str, Read]] = {
    "llm_foundry": ("recipe of llm-foundry", read_llm_foundry),
    "olmo": ("recipe of OLMo", read_olmo),
    "maxtext": ("MaxText configuration", read_maxtext),
    "nanotron": ("nanotron recipe", read_nanotron),
    "nemo_yaml": ("NeMo configuration", partial(read_nemo_yaml, "nemo_yaml")),
    "bridge_yaml": ("Megatron-Bridge configuration", partial(read_nemo_yaml, "bridge_yaml")),
    "automodel": ("NeMo AutoModel recipe", read_automodel),
    "torchtune": ("torchtune recipe", read_torchtune),
    "axolotl": ("recipe of Axolotl", partial(read_trainer, "axolotl")),
    "llama_factory": ("LLaMA-Factory recipe", partial(read_trainer, "llama_factory")),
    "trl": ("recipe of the Hugging Face Trainer or TRL", partial(read_trainer, "trl")),
    "swift": ("recipe of ms-swift", partial(read_trainer, "swift")),
    "surogate": ("recipe of Surogate", partial(read_trainer, "surogate")),
    "accelerate": ("configuration of accelerate", read_accelerate),
    "prime_rl": ("prime-rl configuration", read_prime_rl),
    "levanter": ("Levanter recipe", read_levanter),
    "litgpt": ("LitGPT recipe", read_litgpt),
    "gpt_neox": ("GPT-NeoX configuration", read_gpt_neox),
}
"""Kind -> (what messages call it, its reader)."""
SIGNS = "recipes"
"""The table of what tells a recipe of each kind."""

_NAMED = "starts a trainer whose settings stand in a recipe; import the recipe that it names"
_TEXTS = {
    r"\b(?:swift|megatron) (?:sft|pt|rlhf)\b": (
        "starts ms-swift, whose arguments are not read from a shell; write them into a YAML or JSON file (swift sft "
        "--config FILE) and import that"
    ),
    r"\bfrom (?:xtuner|mmengine)\b|\bxtuner train\b": (
        "is a recipe of xtuner, whose recipes are Python objects that flopcast does not build; import the model's "
        "config.json, and give the plan by --set"
    ),
    r"\b(?:llamafactory-cli|axolotl|tune|litgpt|composer|trl)\s+(?:train|run|sft|finetune|pretrain)\b": _NAMED,
    r"\baccelerate launch\b": "starts a program by accelerate; import the recipe that it names, or accelerate's YAML",
    r"\b[Mm]ax[Tt]ext[./]\S*train\b": (
        "starts MaxText with settings on the command line, which are not read from a shell; lay them over its YAML and "
        "import that"
    ),
}
"""Words of texts that are no recipes -> what they are, and what to import instead."""


_RL = "trains by reinforcement; flopcast prices training steps of given batches, and `flopcast rl` those with rollouts"
_DATA = {
    ("tensor_parallel_degree", "sharding_parallel_degree", "unified_checkpoint", "use_fused_rms_norm"): (
        "is a recipe of PaddleNLP, which is not read; import the model's config.json, and give the plan by --set"
    ),
    ("actor_rollout_ref",): f"is a configuration of verl, which {_RL}",
    ("policy.megatron_cfg", "policy.dtensor_cfg"): f"is a configuration of NeMo RL, which {_RL}",
    ("experiment.runner", "experiment.task"): (
        "is the outer file of FlagScale, which says where a job runs; import the file that it names under train/"
    ),
}
"""Keys of data that are no recipes, of which one is enough -> what they are, and what to import instead."""


def reason_of_data(data: Any) -> str | None:
    """Why data of another program are not imported, and what can be; None where it is not known."""
    return next((why for keys, why in _DATA.items() if any(_has(data, key) for key in keys)), None)


def reason_of_text(text: str) -> str | None:
    """Why a text of another program is not imported, and what can be; None where it is not known."""
    return next((why for words, why in _TEXTS.items() if re.search(words, text[:200_000])), None)


def has_signs(kind: str, data: Any) -> bool:
    """Whether data are a recipe of a kind."""
    signs = table(SIGNS)[kind]
    return (
        isinstance(data, Mapping)
        and all(any(_has(data, sign) for sign in group) for group in signs["needs"])
        and not any(_has(data, sign) for sign in signs.get("never", ()))
    )


def telling(kind: str, data: Any) -> int:
    """How many of the file's keys are settings that the kind's table knows: of two kinds the more telling counts."""
    settings = table(kind).get("settings", {}).values()
    known = {name for setting in settings for rule in rules_of(setting) for name in rule["keys"]}
    return sum(_has(data, name) for name in known)


def _has(data: Any, sign: str) -> bool:
    found: Any = data
    for part in sign.removesuffix("=").split("."):
        if not isinstance(found, Mapping) or part not in found:
            return False
        found = found[part]
    return isinstance(found, str) if sign.endswith("=") else True
