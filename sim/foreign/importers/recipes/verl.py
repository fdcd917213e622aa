"""verl's settings and PaddleNLP's: what their tables cannot say."""

from __future__ import annotations

from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.keys import table
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.foreign.importers.recipes.finetuning import stored, take_adapters, take_targets
from sim.foreign.importers.recipes.pretraining_kinds import closed, opened
from sim.foreign.importers.recipes.recipe import whole_shape
from sim.foreign.importers.recipes.settings import Recipe, Settings

_ACTOR = "actor_rollout_ref.actor."


def read_verl(file: Foreign) -> dict[str, Any]:
    """Supervised training, or the update of the policy on one mini-batch; on FSDP or on Megatron-Core."""
    keys, recipe = opened(file, "verl")
    words = [keys.text(name) for name in (f"{_ACTOR}strategy", "model_engine", "engine", "config_name")]
    on_core = any("megatron" in str(word) for word in words) or any(
        ".megatron." in name for name in keys.ledger.settings
    )
    _batch(recipe, keys, learning="actor_rollout_ref" in file.data)
    _ends(recipe, keys, file)
    take_targets(recipe, keys, *table("verl")["targets"], usual=["all-linear"])
    if on_core:
        recipe.put("stack.framework", "megatron-lm", "its engine is Megatron-Core's")
        recipe.default("plan.zero_stage", 1, "verl's default: verl/trainer/config/actor/megatron_actor.yaml")
        recipe.default("plan.recompute", "none", "no recompute_granularity")
        if recipe.sections["plan"].get("tp", 1) > 1:
            recipe.default("plan.sequence_parallel", True, "verl's default of megatron.sequence_parallel")
    else:
        recipe.default("plan.zero_stage", 3, "FSDP shards over all GPUs unless fsdp_size says otherwise")
        value, source = table("verl")["recomputes"]
        recipe.default("plan.recompute", value, f"verl's default: {source}")
        fused = bool(keys.flag(*table("verl")["switches"]))
        why = "Liger's kernels" if fused else "transformers' own kernels, one by one"
        for field in ("fused_norm", "fused_rotary", "fused_bias_activation"):
            recipe.default(f"stack.{field}", fused, why)
        if recipe.sections["plan"].get("cp", 1) > 1:
            recipe.put("stack.context_by_heads", True, "ulysses_sequence_parallel_size")
    return closed(keys, recipe, file)


def _ends(recipe: Recipe, keys: Settings, file: Foreign) -> None:
    """Layers of the first and the last pipeline stage, where they differ from those between."""
    name, plan = f"{_ACTOR}megatron.override_transformer_config.num_layers_in_", recipe.sections["plan"]
    ends = [keys.whole(f"{name}{end}_pipeline_stage") for end in ("first", "last")]
    found = file.model if file.model is not None else known_model(recipe.run.get("model", ""))
    stages = plan.get("pp", 1) * plan.get("num_chunks", 1)
    if ends == [None, None] or found is None or stages < 3:
        return
    inner, left = (
        stages - len(ends) + ends.count(None),
        whole_shape(found)["num_layers"] - sum(each or 0 for each in ends),
    )
    if left % inner:
        raise SpecError(
            f"{file.ledger.where}: {left} layers cannot be dealt to {inner} stages; see {name}first_pipeline_stage"
        )
    layers = [left // inner if end is None else end for end in (ends[0], *[None] * (stages - 2), ends[1])]
    plan.took("pipeline_layout", layout_of(layers), f"{name}first_pipeline_stage and last")


def _batch(recipe: Recipe, keys: Settings, learning: bool) -> None:
    """Sequences of a step, how long they may be, and how many go through together."""
    prompt, response = keys.whole("data.max_prompt_length"), keys.whole("data.max_response_length")
    batch, cp = keys.whole("data.train_batch_size"), recipe.sections["plan"].get("cp", 1)
    mini, samples = keys.whole(f"{_ACTOR}ppo_mini_batch_size"), keys.whole("actor_rollout_ref.rollout.n")
    if learning:
        length, source = (prompt or 512) + (response or 512), "data.max_prompt_length + max_response_length"
        recipe.sections["training"].took("sequence_length", length, source)
        source = "ppo_mini_batch_size × rollout.n: an update of the policy"
        recipe.put("training.global_batch_size", (mini or 256) * (samples or 1), source)
        if batch is not None:
            why = f"a step is an update of {mini or 256} prompts, and not all {batch} that are generated for at once"
            keys.ledger.ignore("data.train_batch_size", batch, why)
    else:
        recipe.put("training.global_batch_size", batch or 256, "data.train_batch_size")
    length = recipe.sections["training"].get("sequence_length", 1024)
    tokens = keys.whole(f"{_ACTOR}ppo_max_token_len_per_gpu", "data.max_token_len_per_gpu")
    name = next((each for each in (f"{_ACTOR}use_dynamic_bsz", "data.use_dynamic_bsz") if keys.raw(each)), None)
    if name is not None and tokens is not None:
        recipe.sections["plan"].took("microbatch_size", max(1, tokens * cp // length), f"{name}: {tokens} tokens a GPU")


def read_paddlenlp(file: Foreign) -> dict[str, Any]:
    """PaddleNLP's arguments, whose adapters are PEFT's."""
    keys, recipe = opened(file, "paddlenlp")
    plan, why = recipe.sections["plan"], "its kernels and overlaps are priced as Megatron-LM's"
    file.ledger.ignore("PaddlePaddle", "", why, matters=True)
    take_adapters(recipe, keys, table("paddlenlp")["finetuning"])
    granularity = keys.text("recompute_granularity")
    if granularity in ("core_attn", "full_attn") and plan.get("recompute") == "full":
        plan.took("recompute", "selective", f"recompute_granularity {granularity}")
        if granularity == "full_attn":
            keys.ledger.ignore("recompute_granularity", granularity, "priced as core_attn, which is less", matters=True)
    name, bits = keys.take("weight_quantize_algo")
    if bits is not None:
        stored(recipe.sections["training"], name, bits)
    if recipe.says("replicated") and not recipe.says("sharded") and "zero_stage" not in plan:
        recipe.run["sharded"], recipe.sources["sharded"] = recipe.run.pop("replicated"), "data_parallel_degree"
    if plan.get("tp", 1) == 1 and plan.pop("sequence_parallel", False):
        file.ledger.ignore("sequence_parallel", True, "without effect at a tensor-parallel degree of 1")
    if plan.get("cp", 1) > 1 and "sep_parallel_degree" in keys.ledger.settings:
        recipe.put("stack.context_by_heads", True, "sep_parallel_degree")
    return closed(keys, recipe, file)
