"""Settings of recipes on Megatron-Core (NeMo's, Megatron-Bridge's): Megatron-LM's arguments by other names.

A kind's table says which setting is which argument (`arguments`, `switches`), which tell the model, the precision and
the adapters, and what functions of the framework give that a recipe calls (`functions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign, Machine
from sim.foreign.importers.huggingface.hub_models import known_model, whole_shape
from sim.foreign.importers.huggingface.layer_kinds import blocks_of
from sim.foreign.importers.keys import Arguments, Keys, NotKnown, table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.foreign.importers.megatron.plan import STEPS, read_plan, read_stack, read_training, take_replicas
from sim.foreign.importers.python.values import CALLED
from sim.foreign.importers.recipes.finetuning import adapted
from sim.foreign.importers.recipes.recipe import gpus_of
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.recipes.settings import flat_keys
from sim.specs.plan import layout_of, layout_stages
from sim.specs.presets import model_preset

_CLASS = re.compile(r"(?<=[A-Za-z0-9])(?:Model)?(?:Provider|Config)")
_TUNED = re.compile(r"(?:-(?:base|instruct|it|chat|hf|pt))+$", re.IGNORECASE)
_LONG = re.compile(r"_(?:16|32|64|128)k$")
"""Ending of the names of recipes that train the same model on longer sequences."""


def model_named(name: str, source: str, ledger: Ledger) -> Any:
    """The section `model` of a class's or a repository's name. Raises SpecError: not a model that is known by name."""
    with suppress(SpecError):
        return ledger.took("model", model_preset(name), f"{source} {short(name)}")
    known = table("megatron_models")
    plain = known["aliases"].get(_plain(name), _plain(name))
    family = next((each for each in known["families"].values() if plain in each and plain != "all"), None)
    what = known_model(plain, by_letters=True) if family is None else family[plain]
    if what is None:
        raise ledger.error(
            f"{source} {short(name)!r} is none of the models that flopcast has; give --model "
            "config.json, that model's own, or --model PRESET"
        )
    ledger.took("model", short(name), source)
    if family is None or isinstance(what, str):
        return what
    shape = {**family["all"], **what}
    blocks = blocks_of(shape.pop("pattern")) if "pattern" in shape else {}  # a hybrid's, in Megatron's letters
    return {"name": _CLASS.sub("", name.rpartition("/")[2]).lower(), **shape, **blocks}


def _plain(name: str) -> str:
    last = _LONG.sub("", _TUNED.sub("", name.rpartition("/")[2]))
    return re.sub(r"[^a-z0-9]", "", _CLASS.sub("", last).lower())


_WIDTHS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
"""torch's names of numbers, and Megatron-LM's."""


def scenario_of_megatron(settings: Mapping[str, Any], file: Foreign, kind: str) -> dict[str, Any]:
    """A scenario's sections from a recipe's settings. Raises SpecError: a model that is not known, a value that breaks
    a rule, or one that only running code knows."""
    ledger, known = file.ledger, table(kind)
    keys = flat_keys(_set_only(settings, known["off"]), file, kind)
    recipe = Recipe(keys, file)
    recipe.follow(known.get("checks", ()))
    recipe.take_settings(known["settings"])
    spelled = dict[str, str]()
    arguments = Arguments(_words(keys, known, spelled), Ledger(ledger.where))
    inside = Recipe(arguments, file, STEPS)
    read_plan(inside)
    plan, training = inside.plan, inside.training
    if plan["tp"] > 1 and "sequence_parallel" not in plan:
        plan.took("sequence_parallel", False, "--sequence-parallel")
    maker = keys.raw(f"model.{CALLED}")
    model = file.model if file.model is not None else _model(keys, recipe.run.get("model"), known, ledger)
    if file.model is None:
        _vocabulary(recipe.model, keys, maker, known, plan["tp"])
    model = _own_fields(model, recipe.model, known, ledger)
    shape = whole_shape(model)
    inside.known["experts"] = shape.get("num_experts") or None
    inside.read("dealt")
    inside.model.update({"max_sequence_length": 1, "num_mtp_layers": 0, **shape})
    read_training(inside)
    if training["global_batch_size"] is None:
        raise ledger.error("the recipe says no global batch; give --set training.global_batch_size=N")
    inside.read("schedule")
    called = ledger.told("recipe") or ""
    machine = Machine.of(file, [called])
    recipe.plan, recipe.training = plan, training
    _gpus_named(recipe, called)
    gpus = gpus_of(recipe, shape, machine)
    take_replicas(inside, gpus)
    if training["precision"] == "fp32":
        training.assume("precision", "bf16", f"{known['called']}'s default")
    take_adapters(training, keys, known)
    recipe.follow(known.get("packing", ()))
    stack = _stack(inside, keys, known)
    stack.update(recipe.stack)
    leave_translated(arguments, keys, spelled)
    return {"model": model, "cluster": machine.section(gpus), "plan": plan, "training": training, "stack": stack}


def leave_translated(arguments: Arguments, keys: Keys, spelled: Mapping[str, str]) -> None:
    """Note what nobody took of a file's keys, and of the arguments that they stand for, whose account is told in the
    file's words.

    spelled : the key that each argument stands for.
    """
    arguments.leave()
    named = re.compile(r"--(?!set|gpus|model )([a-z][a-z0-9-]+)")
    keys.ledger.add(arguments.ledger, lambda text: named.sub(lambda found: spelled.get(found[1]) or found[1], text))
    keys.leave()


def _set_only(settings: Mapping[str, Any], off: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Settings without those that are null, and those of `off` that are false, as they are where nobody sets them."""
    left: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            below = _set_only(value, off, f"{path}{key}.")
            left |= {key: below} if below else {}
        elif value is not None and not (value is False and f"{path}{key}" in off):
            left[key] = value
    return left


def _words(keys: Keys, known: Mapping[str, Any], spelled: dict[str, str]) -> list[str]:
    """The settings as words of Megatron-LM's command line; which setting each argument is, into `spelled`."""
    source, words = named_precision(keys, known["precision"]["names"], known["precision"]["words"])
    named = {word[2:] for word in words if word.startswith("--")}
    spelled |= dict.fromkeys(named, source)
    for argument, names in known["arguments"].items():
        key, value = keys.take(*names)
        if isinstance(value, (list, tuple)) and argument == "pipeline-model-parallel-layout":
            value = _layout(key, value, keys)
        several = value if isinstance(value, (list, tuple)) else ()
        _check_known(key, several, keys)
        if value is not None or argument not in named:
            spelled[argument] = key
        if several:
            words += [f"--{argument}", *map(str, several)]
        elif value not in (None, False, "", [], ()):
            words += [f"--{argument}", _WIDTHS.get(str(value), str(value))]
    for argument, names in known["switches"].items():
        said = {name: keys.flag(name) for name in names}
        if any(said.values()) or argument not in named:
            spelled[argument] = next((name for name, value in said.items() if value), names[0])
        if any(said.values()):
            words.append(f"--{argument}")
        elif argument in named and False in said.values():
            words.remove(f"--{argument}")
    return words


def _check_known(key: str, values: Iterable[Any], keys: Keys) -> None:
    """Refuse a list of which only running code knows a part."""
    for each in values:
        if isinstance(each, NotKnown):
            raise keys.wrong(key, f"?, line {each.line}", "is known only to running code; write it there")


def _layout(key: str, stages: Any, keys: Keys) -> str:
    """A list of what each stage holds, [["embedding", "decoder"], ..., ["loss"]], in Megatron's letters."""
    every = [each for stage in stages for each in (stage if isinstance(stage, list) else [stage])]
    _check_known(key, every, keys)
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    if not all(isinstance(stage, list) and all(each in letters for each in stage) for stage in stages):
        raise keys.wrong(key, "[...]", "must list embedding, decoder, mtp and loss, stage by stage")
    written = "|".join("".join(letters[each] for each in stage) for stage in stages)
    shorter = layout_of([stage.count("decoder") for stage in stages], sum(stage.count("mtp") for stage in stages))
    return shorter if layout_stages(shorter) == layout_stages(written) else written


def _model(keys: Keys, name: str | None, known: Mapping[str, Any], ledger: Ledger) -> Any:
    """The model by the name of its class, or of the hub's repository."""
    found = [keys.take(*source["keys"]) for source in known["models"]]
    for key, value in found:
        if isinstance(value, str) and value not in known["no_models"]:
            return model_named(value, key.removesuffix(f".{CALLED}"), ledger)
    if name is not None:
        return model_named(name, "the recipe's name", ledger)
    raise ledger.error("the recipe names no model that its text tells; give --model PRESET")


def _vocabulary(said: Section, keys: Keys, maker: Any, known: Mapping[str, Any], tp: int) -> None:
    """Rows of the embedding where the model's class leaves them to a tokenizer that stands for none."""
    if not str(maker).startswith(tuple(known.get("own_vocabulary", ()))) or maker is None:
        return
    words, kind = keys.whole("tokenizer.vocab_size"), keys.text("tokenizer.tokenizer_type")
    if words is not None and kind == "NullTokenizer":
        rows = -(-words // (128 * tp)) * 128 * tp
        said.took("vocab_size", rows, f"tokenizer.vocab_size {words:,}, to a multiple of {128 * tp}")


def _own_fields(model: Any, said: Section, known: Mapping[str, Any], ledger: Ledger) -> Any:
    """The model with what the recipe changes of it, and as many modules of multi-token prediction as it trains."""
    shape = whole_shape(model)
    changes = {field: value for field, value in said.items() if shape.get(field) != value}
    if "num_layers" in changes and len(shape.get("layer_types", ())) > changes["num_layers"]:
        raise ledger.error(f"{changes['num_layers']} layers are fewer than the model's pattern; give --model")
    keeps = model in known.get("further_tokens", ()) if isinstance(model, str) else False
    if "num_mtp_layers" not in said and shape.get("num_mtp_layers") and not keeps:
        changes["num_mtp_layers"] = ledger.assume("model.num_mtp_layers", 0, f"{known['called']}'s default")
    if not changes:
        return model
    section = Section("model", ledger, **({"preset": model} if isinstance(model, str) else model))
    section.update(changes)
    return section


def _gpus_named(recipe: Recipe, called: str) -> None:
    """GPUs by the recipe's name, llama3_70b_pretrain_32gpu_h100_bf16_config, where its degrees divide them."""
    plan, number = recipe.plan, re.search(r"_(\d{1,6})gpus?_", called)
    units = plan["tp"] * plan.get("cp", 1), plan.get("ep", 1) * plan.get("etp", 1)
    if number and not any(int(number[1]) % (plan["pp"] * unit) for unit in units):
        recipe.put("run.gpus", int(number[1]), "the recipe's name")


def named_precision(keys: Keys, names: Sequence[str], words: Mapping[str, Sequence[str]]) -> tuple[str, list[str]]:
    """(the key that names a mixed precision, the arguments that the name stands for; none where it is not there)."""
    key, said = keys.take(*names)
    known = {word.lower(): arguments for word, arguments in words.items()}
    if said is not None and str(said).lower() not in known:
        raise keys.wrong(key, said, f"must be one of {', '.join(known)}, or flopcast does not know it")
    return key, [] if said is None else list(map(str, known[str(said).lower()]))


def _stack(recipe: Recipe, keys: Keys, known: Mapping[str, Any]) -> Section:
    """Megatron-Core's stack, as the framework sets it: how tokens go to experts, and in which precision gradients are
    summed, which the precision's object says where there is one."""
    plain, stack, training = recipe.keys.raw("moe-token-dispatcher-type"), recipe.stack, recipe.training
    read_stack(recipe)
    stack.took("framework", known["framework"], "the file's kind")
    if plain == ["alltoall"] and "expert_dispatcher" not in stack:
        stack["expert_dispatcher"] = "alltoall"
    # What the framework does otherwise where nothing is said, a recipe leaves out on purpose.
    for field, value in (("overlap_experts", False), ("async_tensor_parallel", False), ("cuda_graphs", "none")):
        stack.setdefault(field, value)
    in_fp32, half = keys.flag(*known["precision"]["grads_in_fp32"]), training["precision"] == "fp16"
    said = None if in_fp32 is None else "fp32" if in_fp32 else "fp16" if half else "bf16"
    usual, why = "fp16" if half else "fp32", f"{known['called']}'s default"
    stack.settle("gradient_precision", said, known["precision"]["grads_in_fp32"][0], usual, why)
    keys.take(*known["precision"]["grads_overridden"])
    return stack


def take_adapters(training: Section, keys: Keys, known: Mapping[str, Any]) -> None:
    """Low-rank adapters: the class that makes them, their rank and the linears they are beside."""
    rule, shared = known["adapters"], table("adapters")
    key, said = keys.take(*rule["names"])
    rank, (source, targets) = keys.whole(*rule["rank"]), keys.take(*rule["targets"])
    if said is None and rank is not None:
        said = rule.get("of_rank")
    kind = str(said).rpartition(".")[2].lower()
    if kind in ("none", "null", "false"):
        return
    if kind not in rule["kinds"]:
        raise keys.wrong(key, said, f"must be one of {', '.join(rule['kinds'])}; flopcast models no others")
    if kind == "dora":
        keys.ledger.ignore(key, said, "priced as LoRA, without the weights' norms", matters=True)
    default = shared["rank_of_megatron"]
    training.settle("adapter_rank", rank, rule["rank"][0], default, f"{known['called']}'s default")
    if isinstance(targets, list) and targets:
        linears = adapted(map(str, targets), source, training, shared[rule.get("linears", "linears")])
        training.took("adapter_targets", linears, source)
