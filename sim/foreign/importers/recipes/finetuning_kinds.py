"""Recipes that train models of the hub further: Axolotl, the Trainer's kin, accelerate, torchtune, prime-rl and NeMo
AutoModel. What their tables cannot say is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.pipeline_layouts import take_flushes, take_repeated
from sim.foreign.importers.recipes.finetuning import adapted, stored, take_finetuning, take_packing, take_targets
from sim.foreign.importers.recipes.pretraining_kinds import closed, opened
from sim.foreign.importers.recipes.recipe import whole_shape
from sim.foreign.importers.recipes.settings import Recipe, Settings
from sim.foreign.importers.recipes.sharding import take_deepspeed, take_fsdp


def read_trainer(kind: str, file: Foreign) -> dict[str, Any]:
    """A recipe around transformers: Axolotl's, TRL's, LLaMA-Factory's or ms-swift's. Raises SpecError: a stage or
    adapters that flopcast does not model, or a model that is not known."""
    keys, recipe = opened(file, kind)
    take_finetuning(recipe, keys, file)
    ep = recipe.sections["plan"].get("ep", 1)
    if ep > 1 and kind == "axolotl" and recipe.says("sharded"):  # its GPUs stand beside those that shard
        recipe.run["replicated"] = ep * recipe.run.get("replicated", 1)
        recipe.sources["replicated"] = "expert_parallel_size"
    if recipe.sections["plan"].get("tp", 1) > 1:
        recipe.default("plan.sequence_parallel", False, "transformers' tensor parallelism keeps norms whole")
    return closed(keys, recipe, file)


def read_accelerate(file: Foreign) -> dict[str, Any]:
    """accelerate's YAML: how many GPUs, and what is sharded over them."""
    keys, recipe = opened(file, "accelerate")
    sort, stack = str(keys.take("distributed_type")[1] or "NO").upper(), recipe.sections["stack"]
    known = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
    if sort not in known:
        raise SpecError(
            f"{file.ledger.where}: distributed_type {short(sort)} is not modelled; {', '.join(known)} are, and "
            "Megatron-LM's own scripts are imported by themselves"
        )
    if sort == "NO":
        recipe.run["gpus"], recipe.sources["gpus"] = 1, "distributed_type NO: one process trains"
    if sort == "DEEPSPEED":
        _deepspeed_of_accelerate(recipe, keys, file)
    elif sort == "FSDP":
        take_fsdp(recipe, keys)
        recipe.default("plan.zero_stage", 3, "FSDP's full shard")
    recipe.default("plan.zero_stage", 0, f"distributed_type {sort}: every GPU holds the whole model")
    if str(keys.ledger.settings.get("mixed_precision")).lower() in ("no", "false"):
        recipe.put("training.precision", "fp32", "mixed_precision no")
    if "framework" not in stack:
        name = "pytorch-fsdp" if stack.get("compiled") else "pytorch"
        stack.took("framework", name, "transformers under accelerate, compiled by dynamo_backend inductor alone")
    return closed(keys, recipe, file)


def _deepspeed_of_accelerate(recipe: Recipe, keys: Settings, file: Foreign) -> None:
    plan, name = recipe.sections["plan"], "deepspeed_config.deepspeed_config_file"
    if name in keys:
        take_deepspeed(recipe, keys, (name,), file)
        return
    recipe.sections["stack"].took("framework", "deepspeed", "distributed_type")
    stage = keys.whole("deepspeed_config.zero_stage", least=0)
    plan.settle("zero_stage", stage, "deepspeed_config.zero_stage", 2, "accelerate's default")
    if keys.text("deepspeed_config.offload_optimizer_device") == "cpu":
        plan.took("optimizer_offload", 1.0, "deepspeed_config.offload_optimizer_device")
    if keys.raw("deepspeed_config.offload_param_device") == "none":
        keys.take("deepspeed_config.offload_param_device")


def read_torchtune(file: Foreign) -> dict[str, Any]:
    """torchtune's YAML: its builder's name says which model it is. Raises SpecError: a recipe that trains no model,
    trains on rollouts, or with images; a builder that is not known."""
    data, where = file.data, file.ledger.where
    if "policy_model" in data or "reward_and_value_model" in data:
        raise SpecError(f"{where}: policy_model: a recipe of rollouts, which `flopcast rl` splits over GPUs")
    if "optimizer" not in data or "batch_size" not in data:
        raise SpecError(
            f"{where} has no optimizer and batch_size: it evaluates, generates or quantises, and trains nothing"
        )
    keys, recipe = opened(file, "torchtune")
    model = recipe.run.get("model", "")
    builder = model.rpartition(".")[2]
    quantised = builder.startswith("qlora_") or keys.raw("model.quantize_base") is True
    builder = builder.removeprefix("qlora_").removeprefix("lora_")
    named = table("torchtune")["builders"].get(builder, builder).replace("_", "-")
    if file.model is None and known_model(named, by_letters=True) is None:
        why = "it sees images, which flopcast does not model" if "vision" in builder else "it is not known"
        raise SpecError(f"{where}: model._component_ {short(model)}: {why}; give --model PRESET or --model config.json")
    recipe.run["model"] = named
    if quantised:
        stored(recipe.sections["training"], "model._component_", "quantize_base")
    _linears_of_torchtune(recipe, keys)
    take_packing(keys, ("dataset.packed", "packed"))
    return closed(keys, recipe, file)


def _linears_of_torchtune(recipe: Recipe, keys: Settings) -> None:
    _, modules = keys.take("model.lora_attn_modules")
    mlp = keys.flag("model.apply_lora_to_mlp")
    if not recipe.sections["training"].get("adapter_rank"):
        return
    names = [str(each) for each in modules] if isinstance(modules, list) else []
    names += ["gate_proj", "up_proj", "down_proj"] if mlp else []
    found = adapted(names, "model.lora_attn_modules", recipe.sections["training"])
    recipe.put("training.adapter_targets", found, "model.lora_attn_modules and model.apply_lora_to_mlp")


def read_prime_rl(file: Foreign) -> dict[str, Any]:
    """prime-rl's TOML: its trainer's step, of supervised training or of reinforcement learning."""
    keys, recipe = opened(file, "prime_rl")
    trainer = file.data.get("trainer")
    model = {**_mapping(file.data, "model"), **_mapping(trainer, "model")}
    learning = any(name in file.data for name in ("orchestrator", "trainer"))
    ac = model.get("ac")
    if "ac" in model or "ac_offloading" in model:
        _recomputed(recipe, keys, ac if isinstance(ac, Mapping) else {}, file)
    recipe.default("plan.recompute", "none", "no [model.ac]")
    compiled = model.get("compile")
    recipe.put("stack.compiled", compiled is not None and compiled is not False, "[model.compile]")
    lora = model.get("lora") or _mapping(model, "experimental").get("lora")
    if isinstance(lora, Mapping):
        recipe.default("training.adapter_rank", 16, "prime-rl's default of model.lora.rank")
        take_targets(recipe, keys, *table("prime_rl")["targets"])
    recipe.default("plan.microbatch_size", 1, "prime-rl packs a micro-batch into one sequence")
    if learning:
        why = "a step is priced as one of this many sequences, each as long as the longest allowed"
        file.ledger.ignore(
            "orchestrator.batch_size", recipe.sections["training"].get("global_batch_size", ""), why, True
        )
    else:
        for field in ("chunked_loss", "vocab_parallel_loss"):
            recipe.put(f"stack.{field}", False, "supervised training, whose loss takes the logits whole")
    if recipe.says("gpus"):
        recipe.run.pop("nodes", None)
    layers = keys.whole("model.debug.num_layers", "trainer.model.debug.num_layers")
    every = ac.get("freq", 1) if isinstance(ac, Mapping) and ac.get("mode", "full") == "full" else 1
    sections = closed(keys, recipe, file)
    if isinstance(every, int) and every > 1:  # prime_rl/trainer/model.py, apply_ac: of every so many the first
        whole = layers or int(whole_shape(sections["model"])["num_layers"])
        take_repeated(recipe.sections["plan"], -(-whole // every), whole, f"[model.ac] freq {every}")
    if layers is not None and file.model is None:
        shape = sections["model"]
        base = {"preset": shape} if isinstance(shape, str) else dict(shape)
        sections["model"] = {
            **base,
            "num_layers": file.ledger.took("model.num_layers", layers, "model.debug.num_layers"),
        }
    return sections


def _recomputed(recipe: Recipe, keys: Settings, ac: Mapping[str, Any], file: Foreign) -> None:
    mode, every, targets = ac.get("mode", "full"), ac.get("freq", 1), ac.get("targets")
    for name in ("mode", "freq", "targets"):
        keys.take(f"model.ac.{name}", f"trainer.model.ac.{name}")
    if mode == "selective" and targets == ["norm"]:
        recipe.put("plan.recompute_modules", ["layernorm"], "[model.ac] targets norm")
        recipe.put("plan.recompute", "selective", "[model.ac] targets norm")
    elif mode == "selective" and targets:
        file.ledger.ignore("model.ac.targets", targets, "priced as every other multiply again", matters=True)
    recipe.put("plan.recompute", "per_op" if mode == "selective" else "full", f"[model.ac] mode {mode}")
    if every != 1 and mode == "selective":
        file.ledger.ignore("model.ac.freq", every, "every layer is priced as computed again", matters=True)


def read_automodel(file: Foreign) -> dict[str, Any]:
    """NeMo AutoModel's YAML. Raises SpecError: a recipe without a language model, or a way to spread it that is not
    modelled."""
    keys, recipe = opened(file, "automodel")
    plan, known, where = recipe.sections["plan"], table("automodel"), file.ledger.where
    key, said = keys.take("distributed.strategy", "distributed._target_")
    word = str(said).rpartition(".")[2].lower() if said is not None else "fsdp2"
    if word not in known["strategies"]:
        raise SpecError(f"{where}: {key} {short(said)!r} is not modelled; {', '.join(known['strategies'])} are")
    if said is None:
        recipe.default("plan.zero_stage", 3, "FSDP2 is its data parallelism")
    else:
        recipe.put("plan.zero_stage", known["strategies"][word], key)
    if any("packed" in entry.note for entry in file.ledger.read if entry.name == "training.sequence_length"):
        why = "attention is priced over whole packs; how long the samples are: --set training.packed_length=N"
        file.ledger.ignore("packed_sequence", "", why, matters=True)
    cut = keys.flag("distributed.sequence_parallel")
    if plan.get("tp", 1) > 1:
        recipe.put("plan.sequence_parallel", bool(cut), "distributed.sequence_parallel")
    _pipeline(recipe, file)
    run = recipe.run
    if run.get("sharded", -1) > 0 and run.get("replicated", 1) > 1:  # dp_size counts the replicated groups too
        run["sharded"] = max(1, run["sharded"] // run["replicated"])
    if not keys.flag("peft.match_all_linear"):
        take_targets(recipe, keys, "peft.target_modules")
    sections = closed(keys, recipe, file)
    local, plan = file.ledger.settings.get("step_scheduler.local_batch_size"), sections["plan"]
    experts = whole_shape(sections["model"]).get("num_experts", 0)
    if plan["zero_stage"] == 3 and (experts or plan.get("pp", 1) > 1) and "reshard_after_forward" not in plan:
        name = "MoEParallelizerConfig" if experts else "FSDP2Config"
        why = f"NeMo AutoModel's default: nemo_automodel/components/distributed/config.py, {name} ({known['version']})"
        plan.assume("reshard_after_forward", False if experts else "default", why)
    if plan.get("pp", 1) > 1 and isinstance(local, int):  # recipes/llm/train_ft.py: schedule.step() once a local batch
        take_flushes(plan, "local_batch_size", local, sections["training"]["global_batch_size"])
    return sections


def _pipeline(recipe: Recipe, file: Foreign) -> None:
    """Micro-batches of the pipeline, and chunks by the layers of a stage."""
    plan, run = recipe.sections["plan"], recipe.run
    if plan.get("pp", 1) == 1:
        plan.pop("schedule", None)
        return
    if "pp_microbatch" in run:
        plan.pop("microbatch_size", None)
        recipe.put("plan.microbatch_size", run["pp_microbatch"], recipe.sources["pp_microbatch"])
    name = recipe.run.get("model", "")
    found = file.model if file.model is not None else known_model(name)
    shape = None if found is None else whole_shape(found)
    if shape is not None and "layers_per_stage" in run and plan.get("schedule") not in (None, "1f1b", "gpipe"):
        chunks = max(1, -(-shape["num_layers"] // (run["layers_per_stage"] * plan["pp"])))
        recipe.put("plan.num_chunks", chunks, recipe.sources["layers_per_stage"])
        recipe.put("plan.uneven_layers", shape["num_layers"] % (chunks * plan["pp"]) > 0, "layers over stages")


def _mapping(data: Any, name: str) -> Mapping[str, Any]:
    found = data.get(name) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}
