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
from sim.foreign.importers.recipes.verl import read_paddlenlp, read_verl

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
    "verl": ("configuration of verl", read_verl),
    "paddlenlp": ("recipe of PaddleNLP", read_paddlenlp),
    "levanter": ("Levanter recipe", read_levanter),
    "litgpt": ("LitGPT recipe", read_litgpt),
    "gpt_neox": ("GPT-NeoX configuration", read_gpt_neox),
}
"""Kind -> (what messages call it, its reader)."""
SIGNS = "recipes"
"""The table of what tells a recipe of each kind."""


def reason_of_data(data: Any) -> str | None:
    """Why data of another program are not imported, and what can be; None where it is not known."""
    unread = table("unread")["data"]
    return next((why for why, keys in unread.items() if any(_has(data, key) for key in keys)), None)


def reason_of_text(text: str) -> str | None:
    """Why a text of another program is not imported, and what can be; None where it is not known."""
    unread = table("unread")["texts"]
    return next((why for words, why in unread.items() if re.search(words, text[:200_000])), None)


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
