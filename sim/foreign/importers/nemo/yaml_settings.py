"""NeMo 1's and Megatron-Bridge's YAML: settings of Megatron-Core by its own names, read as Megatron-LM's arguments of
the same meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import NOT_SAID, Foreign, Machine
from sim.foreign.importers.huggingface.hub_models import known_model, named_model, whole_shape
from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.foreign.importers.megatron.launch import gpus_of
from sim.foreign.importers.megatron.model import read_model
from sim.foreign.importers.megatron.plan import STEPS, read_plan, read_stack, read_training, take_replicas
from sim.foreign.importers.nemo.settings import leave_translated, model_named, named_precision, take_adapters
from sim.foreign.importers.recipes.interpolations import resolved
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.recipes.settings import Settings, flat_keys


def read_nemo_yaml(kind: str, file: Foreign) -> dict[str, Any]:
    """A scenario's sections. Raises SpecError: no model, or a value that breaks a rule."""
    ledger, known = file.ledger, table(kind)
    keys = flat_keys(resolved(file.data), file, kind)
    off = [name for name in keys.rest() if keys.raw(name) is False]
    spelled = dict[str, str]()
    arguments = Arguments(_words(keys, kind, spelled), Ledger(ledger.where))
    whole = "num-layers" in arguments
    recipe = Recipe(arguments, file, STEPS)
    plan, training, stack = recipe.plan, recipe.training, recipe.stack
    read_plan(recipe)
    model = _model(recipe, keys, kind)
    shape = whole_shape(model)
    recipe.model = Section("model", arguments.ledger, **shape)
    _training(recipe)
    take_adapters(training, keys, known)
    recipe.read("schedule")
    machine = Machine.of(file)
    gpus = gpus_of(recipe, *_gpus(keys, known))
    take_replicas(recipe, gpus)
    read_stack(recipe, named=known["framework"], version=known.get("version", "latest"))
    settings = Recipe(keys, file)
    settings.take_settings(known["settings"])
    for field, value in settings.stack.items():
        stack.setdefault(field, value)
    if whole and plan.get("ep", 1) > 1 and "expert_dispatcher" not in stack:
        stack.assume("expert_dispatcher", "allgather", "TransformerConfig's default of moe_token_dispatcher_type")
    if whole and plan["tp"] > 1 and "sequence_parallel" not in plan:
        plan.took("sequence_parallel", False, "no sequence_parallel")
    if not whole:
        _laid_over(plan, training, off, file)
    for field, names in known["overlaps"].items():
        switched_off = next((name for name in names if name in off), None)
        if switched_off is not None and field not in stack:
            stack.took(field, False, switched_off)
    leave_translated(arguments, keys, spelled)
    return {**recipe.sections, "model": model, "cluster": machine.section(gpus)}


def _laid_over(plan: Section, training: Section, off: list[str], file: Foreign) -> None:
    """What a file leaves to the recipe that it is laid over: to the framework here, as far as that knows it."""
    why = "the rest of the recipe that it is laid over is not in this file; the framework's habits are taken"
    file.ledger.ignore("model", "part of it", why, matters=True)
    if plan["zero_stage"] == 0 and not any("use_distributed_optimizer" in name for name in off):
        plan.leave("zero_stage")
    if training["precision"] == "fp32":
        training.assume("precision", "bf16", "usual; the file does not say")
    if not any(name.endswith("sequence_parallel") for name in off):
        plan.leave("sequence_parallel")


def _words(keys: Settings, kind: str, spelled: dict[str, str]) -> list[str]:
    """The arguments that a file's keys stand for; which key each is, into `spelled`."""
    known, found = table(kind), list[tuple[str, list[str]]]()
    if "precisions_of" in known:
        found.append(named_precision(keys, ["mixed_precision"], table(known["precisions_of"])["precision"]["words"]))
    for prefix in known["prefixes"]:
        for key in keys.rest():
            name = key.removeprefix(prefix).removesuffix("._target_")
            if not key.startswith(prefix) or "." in name:
                continue
            if name in known.get("dtypes", ()):  # by torch's name, or as an override writes it
                said = str(keys.take(key)[1])
                target = "fp32" if key.endswith("._target_") else said
                found.append((key, [f"--{name.replace('_', '-')}", known["formats"].get(said, target)]))
            elif key.endswith("._target_"):
                continue
            elif name in known["words"]:
                found.append((key, _worded(keys, key, known["words"][name])))
            elif name in known["arguments"] or name in known["only"]:
                found.append((key, _argument(keys, key, known["arguments"].get(name, name.replace("_", "-")))))
    spelled |= {word[2:]: key for key, words in found for word in words if word.startswith("--")}
    return [word for _, words in found for word in words]


def _worded(keys: Settings, key: str, meanings: Mapping[str, list[str]]) -> list[str]:
    _, value = keys.take(key)
    word = str(value).lower()
    if word not in meanings:
        if key.endswith("optim.name"):  # an optimizer's, of which only some shard
            return ["--optimizer", word]
        raise keys.wrong(key, value, f"must be one of {', '.join(meanings)}, or flopcast does not know it")
    return meanings[word]


def _argument(keys: Settings, key: str, name: str) -> list[str]:
    """One argument: true is a switch, false is none, a list its words."""
    _, value = keys.take(key)
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    if isinstance(value, list):
        text = [str(each) for each in value]
        if name.endswith("-freq"):
            return [f"--{name}", f"[{','.join(text)}]"]
        if name == "window-size":
            return [f"--{name}", ",".join(text)]
        return [f"--{name}", *text]
    if isinstance(value, str) and "${" in value:
        keys.ledger.ignore(key, value, "names what is not in this file", matters=True)
        return []
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return [f"--{name}", str(value)]


def _model(recipe: Recipe, keys: Settings, kind: str) -> Any:
    """The caller's model; the file's by its numbers; by its repository's name."""
    known, arguments, plan, file = table(kind), recipe.keys, recipe.plan, recipe.file
    vocabulary = next((keys.whole(name) for name in known["vocabulary"] if name in keys), None)
    if vocabulary is None:
        vocabulary = _tokenizer(arguments, keys)
    repository = next((str(keys.raw(name)) for name in known.get("models", ()) if name in keys), None)
    if file.model is None and "num-layers" in arguments:
        if "num-query-groups" in arguments:
            arguments.replace("group-query-attention", [])
        read_model(recipe)
        model = recipe.model
        found = known_model(repository) if repository is not None else None
        if vocabulary is None and found is not None:
            vocabulary = whole_shape(found)["vocab_size"]
        if vocabulary is not None:
            model.took("vocab_size", vocabulary, "the tokenizer's words")
        model["name"] = short(repository.rpartition("/")[2]) if repository else known["called"]
        return model
    ep = arguments.whole("expert-model-parallel-size")
    if ep is not None and ep > 1:
        plan.took("ep", ep, "expert_model_parallel_size")
    arguments.has("num-layers", "hidden-size", "num-attention-heads", "hidden-dropout", "attention-dropout")
    if file.model is not None:
        return file.model
    if repository is not None:
        return named_model(repository, "model.hf_model_id", file)
    if "model._target_" in keys:  # a provider's class, which has the model's numbers
        source, target = keys.take("model._target_")
        return model_named(str(target).rpartition(".")[2], source, file.ledger)
    raise SpecError(
        f"{file.ledger.where} does not describe its model: it has no model.num_layers; give --model PRESET or --model "
        "config.json"
    )


def _tokenizer(arguments: Arguments, keys: Settings) -> int | None:
    """Words of the tokenizer: its own name's, or those of the model of the hub that it is named after."""
    kind = str(keys.raw("model.tokenizer.type") or "")
    named = kind or str(keys.raw("model.tokenizer.model") or "")
    found = known_model(named) if named else None
    if found is not None:
        return int(keys.ledger.took("vocabulary", whole_shape(found)["vocab_size"], f"model.tokenizer {short(named)}"))
    if "llama" in named.lower() and "3" not in named:
        return int(keys.ledger.assume("vocabulary", 32000, f"of Llama's tokenizer, by its name {short(named)}"))
    if kind or "model.tokenizer.library" in keys:
        arguments.replace("tokenizer-type", [kind or str(keys.raw("model.tokenizer.library"))])
    return None


def _training(recipe: Recipe) -> None:
    length = "seq-length" in recipe.keys
    if not length:
        longest = min(int(recipe.model.get("max_sequence_length", 4096)), 4096)
        recipe.keys.replace("seq-length", [str(longest)])
    read_training(recipe)
    if not length:
        recipe.training.assume("sequence_length", longest, "the model's limit, but at most 4,096")


def _gpus(keys: Settings, known: Mapping[str, Any]) -> tuple[int | None, str]:
    """(GPUs of the file's nodes, where it says so)."""
    if "nodes" not in known or known["devices"] not in keys:
        return NOT_SAID
    nodes, devices = keys.whole(known["nodes"]) or 1, keys.whole(known["devices"], least=-1) or 1
    return (nodes * devices, f"{known['nodes']} × {known['devices']}") if devices > 0 else (None, "all GPUs of a node")
