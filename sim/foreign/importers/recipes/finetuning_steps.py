"""Steps of recipes that train models of the hub: the Trainer's kin, accelerate, torchtune, prime-rl, NeMo AutoModel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.pipeline_layouts import take_flushes, take_repeated
from sim.foreign.importers.recipes.finetuning import adapted, stored, take_adapters, take_finetuning, take_packing
from sim.foreign.importers.recipes.recipe import whole_shape
from sim.foreign.importers.recipes.rows import RecipeRows
from sim.foreign.importers.recipes.sharding import take_deepspeed, take_fsdp


def finetuning(rows: RecipeRows) -> None:
    """Fields that follow from the keys of the table's `finetuning`."""
    take_finetuning(rows.recipe, rows.keys, rows.file)


def adapters(rows: RecipeRows) -> None:
    """Adapters, by the keys of the table's `finetuning`."""
    take_adapters(rows.recipe, rows.keys, table(rows.recipe.kind)["finetuning"])


def packing(rows: RecipeRows, *names: str) -> None:
    """Whether samples are packed."""
    take_packing(rows.keys, names)


def accelerate(rows: RecipeRows) -> None:
    """accelerate's distributed_type: what is sharded over the GPUs."""
    recipe, keys, plan, name = rows.recipe, rows.keys, rows.plan, "deepspeed_config.deepspeed_config_file"
    sort = rows.known["sort"] = str(keys.take("distributed_type")[1] or "NO").upper()
    known = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
    if sort not in known:
        why = f"{', '.join(known)} are, and Megatron-LM's own scripts are imported by themselves"
        raise rows.refused(f"distributed_type {short(sort)} is not modelled; {why}")
    if sort == "DEEPSPEED" and name in keys:
        take_deepspeed(recipe, keys, (name,), rows.file)
    elif sort == "DEEPSPEED":
        recipe.sections["stack"].took("framework", "deepspeed", "distributed_type")
        stage = keys.whole("deepspeed_config.zero_stage", least=0)
        plan.settle("zero_stage", stage, "deepspeed_config.zero_stage", 2, "accelerate's default")
        if keys.text("deepspeed_config.offload_optimizer_device") == "cpu":
            plan.took("optimizer_offload", 1.0, "deepspeed_config.offload_optimizer_device")
        if keys.raw("deepspeed_config.offload_param_device") == "none":
            keys.take("deepspeed_config.offload_param_device")
    elif sort == "FSDP":
        take_fsdp(recipe, keys)
    rows.known["mixed"] = str(keys.ledger.settings.get("mixed_precision")).lower()


def torchtune_model(rows: RecipeRows) -> None:
    """The model by its builder's name, whether its base is quantised, and the linears beside which adapters stand."""
    recipe, keys, training = rows.recipe, rows.keys, rows.recipe.sections["training"]
    model = recipe.run.get("model", "")
    builder = model.rpartition(".")[2]
    quantised = builder.startswith("qlora_") or keys.raw("model.quantize_base") is True
    builder = builder.removeprefix("qlora_").removeprefix("lora_")
    named = recipe.run["model"] = table("torchtune")["builders"].get(builder, builder).replace("_", "-")
    if rows.file.model is None and known_model(named, by_letters=True) is None:
        why = "it sees images, which flopcast does not model" if "vision" in builder else "it is not known"
        why += "; give --model PRESET or --model config.json"
        raise rows.refused(f"model._component_ {short(model)}: {why}")
    if quantised:
        stored(training, "model._component_", "quantize_base")
    _, modules = keys.take("model.lora_attn_modules")
    mlp = keys.flag("model.apply_lora_to_mlp")
    if training.get("adapter_rank"):
        names = [str(each) for each in modules] if isinstance(modules, list) else []
        names += ["gate_proj", "up_proj", "down_proj"] if mlp else []
        found = adapted(names, "model.lora_attn_modules", training)
        recipe.put("training.adapter_targets", found, "model.lora_attn_modules and model.apply_lora_to_mlp")


def prime_rl_model(rows: RecipeRows) -> None:
    """What prime-rl's [model] says by its sections: of what is computed again, compiled and adapted."""
    trainer = rows.file.data.get("trainer")
    model = {**_mapping(rows.file.data, "model"), **_mapping(trainer, "model")}
    ac, again = model.get("ac"), "ac" in model or "ac_offloading" in model
    ac = ac if isinstance(ac, Mapping) else {}
    mode, every, chosen = ac.get("mode", "full"), ac.get("freq", 1), ac.get("targets")
    if again:
        for name in ("mode", "freq", "targets"):
            rows.keys.take(f"model.ac.{name}", f"trainer.model.ac.{name}")
    lora = model.get("lora") or _mapping(model, "experimental").get("lora")
    rows.known |= {
        "again": again,
        "mode": mode,
        "norms": chosen == ["norm"],
        "chosen": chosen,
        "every": every,
        "compiled": model.get("compile") not in (None, False),
        "adapted": isinstance(lora, Mapping),
        "whole_every": every if mode == "full" and isinstance(every, int) else 1,
        "layers": rows.keys.whole("model.debug.num_layers", "trainer.model.debug.num_layers"),
    }


def prime_rl_layers(rows: RecipeRows) -> None:
    """Layers that run again, the first of each so many (prime_rl/trainer/model.py, apply_ac); a model cut short."""
    every, layers, shape = rows.known["whole_every"], rows.known["layers"], rows.sections["model"]
    if every > 1:
        whole = layers or int(whole_shape(shape)["num_layers"])
        take_repeated(rows.plan, -(-whole // every), whole, f"[model.ac] freq {every}")
    if layers is not None and rows.file.model is None:
        number = rows.file.ledger.took("model.num_layers", layers, "model.debug.num_layers")
        rows.sections["model"] = {**({"preset": shape} if isinstance(shape, str) else shape), "num_layers": number}


def automodel_strategy(rows: RecipeRows) -> None:
    """NeMo AutoModel's data parallelism."""
    recipe, keys, known = rows.recipe, rows.keys, table("automodel")["strategies"]
    key, said = keys.take("distributed.strategy", "distributed._target_")
    word = str(said).rpartition(".")[2].lower() if said is not None else "fsdp2"
    if word not in known:
        raise rows.refused(f"{key} {short(said)!r} is not modelled; {', '.join(known)} are")
    if said is None:
        recipe.default("plan.zero_stage", 3, "FSDP2 is its data parallelism")
    else:
        recipe.put("plan.zero_stage", known[word], key)
    read = (entry.note for entry in rows.file.ledger.read if entry.name == "training.sequence_length")
    rows.known["packed"] = any("packed" in note for note in read)


def automodel_pipeline(rows: RecipeRows) -> None:
    """Micro-batches of the pipeline, and chunks by the layers of a stage."""
    recipe, plan, run = rows.recipe, rows.plan, rows.recipe.run
    if plan.get("pp", 1) == 1:
        plan.pop("schedule", None)
        return
    if "pp_microbatch" in run:
        plan.pop("microbatch_size", None)
        recipe.put("plan.microbatch_size", run["pp_microbatch"], recipe.sources["pp_microbatch"])
    found = rows.file.model if rows.file.model is not None else known_model(run.get("model", ""))
    if found is not None and "layers_per_stage" in run and plan.get("schedule") not in (None, "1f1b", "gpipe"):
        layers = whole_shape(found)["num_layers"]
        chunks = max(1, -(-layers // (run["layers_per_stage"] * plan["pp"])))
        recipe.put("plan.num_chunks", chunks, recipe.sources["layers_per_stage"])
        recipe.put("plan.uneven_layers", layers % (chunks * plan["pp"]) > 0, "layers over stages")


def automodel_flushes(rows: RecipeRows) -> None:
    """When gathered weights are dropped, and rounds of a pipeline (recipes/llm/train_ft.py: one step a local batch)."""
    plan, local = rows.plan, rows.file.ledger.settings.get("step_scheduler.local_batch_size")
    experts, version = whole_shape(rows.sections["model"]).get("num_experts", 0), table("automodel")["version"]
    if plan["zero_stage"] == 3 and (experts or plan.get("pp", 1) > 1) and "reshard_after_forward" not in plan:
        name = "MoEParallelizerConfig" if experts else "FSDP2Config"
        why = f"NeMo AutoModel's default: nemo_automodel/components/distributed/config.py, {name} ({version})"
        plan.assume("reshard_after_forward", False if experts else "default", why)
    if plan.get("pp", 1) > 1 and isinstance(local, int):
        take_flushes(plan, "local_batch_size", local, rows.sections["training"]["global_batch_size"])


def trained_in_megatron(rows: RecipeRows) -> None:
    """Whether verl's engine is Megatron-Core's."""
    keys, names = rows.keys, ("actor_rollout_ref.actor.strategy", "model_engine", "engine", "config_name")
    words = [keys.text(name) for name in names]
    named = any(".megatron." in name for name in keys.ledger.settings)
    rows.known["on_core"] = named or any("megatron" in str(word) for word in words)


def _mapping(data: Any, name: str) -> Mapping[str, Any]:
    found = data.get(name) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}
