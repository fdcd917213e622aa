"""Recipes in Python: Megatron-Bridge's, the settings of its performance scripts (WorkloadBaseConfig), and NeMo 2's.

NeMo 2's are a run.Partial of a model, a trainer with MegatronStrategy, data and an optimizer. Overrides of the command
line are keys of the recipe; laid over a recipe that the command names, they are lines of a recipe in Python.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.keys import NOT_RUN, UNKNOWN, Arguments, put_at, table
from sim.foreign.importers.ledger import Ledger
from sim.foreign.importers.megatron.launch import started_by
from sim.foreign.importers.nemo.settings import scenario_of_megatron
from sim.foreign.importers.nemo.yaml_settings import read_nemo_yaml
from sim.foreign.importers.python.recipes import leave_makers, read_recipe
from sim.foreign.importers.python.values import CALLED, MadeBy
from sim.foreign.importers.shell.reader import read_script
from sim.specs.plan import layout_of
from sim.specs.presets import load_preset
from sim.specs.yaml12 import parse_yaml

BRIDGE, NEMO = "megatron_bridge", "nemo"
_WORKLOAD = "WorkloadBaseConfig"


def is_megatron_bridge(text: str) -> bool:
    """Whether a Python text uses Megatron-Bridge's recipes."""
    return "megatron.bridge" in text or _WORKLOAD in text


def read_megatron_bridge(file: Foreign) -> dict[str, Any]:
    """A scenario's sections; raises SpecError where there is no recipe, or one that cannot be read."""
    name, settings = read_recipe(file.text, file.given.recipe, file.ledger, BRIDGE, _is_container)
    if settings.get(CALLED) == _WORKLOAD:
        settings, file = _workload(name, settings, file)
    peft = settings.get("peft")
    if (
        isinstance(peft, Mapping)
        and peft.get(CALLED) == "default_peft_config"
        and peft.get("0", peft.get("peft_scheme")) is None
    ):
        settings.pop("peft")  # megatron/bridge/recipes/utils/finetune_utils.py: no adapters
    if "_vl" in name:
        file.ledger.ignore("the vision encoder", "", "the language model alone is priced", matters=True)
    if settings.get("ddp", {}).get("use_megatron_fsdp") is True:
        # megatron/bridge/training/config.py and scripts/performance/utils/overrides.py: it shards everything.
        settings["ddp"]["data_parallel_sharding_strategy"] = "optim_grads_params"
    return scenario_of_megatron(leave_makers(settings, file.ledger, BRIDGE), file, BRIDGE)


def _is_container(settings: Mapping[str, Any]) -> bool:
    """Whether it is a ConfigContainer with a model, or a workload of the performance scripts."""
    if settings.get(CALLED) == _WORKLOAD:
        return True
    return isinstance(settings.get("train"), Mapping) and settings.get("model") is not None


def _workload(name: str, settings: Mapping[str, Any], file: Foreign) -> tuple[dict[str, Any], Foreign]:
    """A workload as a recipe: what its name says, and what the performance scripts make of it
    (scripts/performance/utils/overrides.py)."""
    known, made, plain = table(BRIDGE), dict(settings), f"_{name.upper()}_"
    tensor = made.get("tensor_model_parallel_size")
    made["sequence_parallel"] = isinstance(tensor, int) and tensor > 1
    model: dict[str, Any] = {}
    if made.get("recompute_num_layers") is not None:
        model |= {"recompute_granularity": "full", "recompute_method": "block"}
    if made.get("recompute_modules"):
        model["recompute_granularity"] = "selective"
    found = max((each for each in known["workloads"] if f"_{each}_" in plain), key=len, default=None)
    if found is not None:
        said = known["workloads"][found]
        model["0"], made["dataset"] = said["model"], {"seq_length": said["seq_length"]}
        model["mtp_num_layers"] = said.get("mtp_num_layers")
        model |= said.get("sets", {})
        if made.get("pp_layout") is None and file.model is None:
            made["pp_layout"] = _dealt(made, said)
        why = f"of the recipe that {name} is laid over"
        file.ledger.assume("training.sequence_length", said["seq_length"], why)
    precision = next((word for word in known["workload_precisions"] if f"_{word}_" in plain), None)
    made["mixed_precision"] = known["workload_precisions"].get(precision or "BF16")
    made["ddp"] = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    if made.pop("use_megatron_fsdp", None) is True:
        made["ddp"]["use_megatron_fsdp"] = True
    if "peft" in made and str(made["peft"]).lower() == "none":
        made.pop("peft")
    gpu = max((each for each in known["workload_clusters"] if f"_{each}_" in plain), key=len, default=None)
    if gpu is not None and file.given.cluster is None:
        cluster = known["workload_clusters"][gpu]
        file.ledger.took("cluster", cluster, f"{gpu} in the recipe's name")
        file = replace(file, given=replace(file.given, cluster=cluster))
    return {**made, "model": model}, file


def _dealt(made: Mapping[str, Any], said: Mapping[str, Any]) -> str | None:
    """The layout that a recipe's own table has for so many stages."""
    ranks, chunks = made.get("pipeline_model_parallel_size"), made.get("virtual_pipeline_model_parallel_size") or 1
    stages = ranks * chunks if isinstance(ranks, int) and isinstance(chunks, int) else 1
    each = said.get("stages", {}).get(stages)
    if each is None:
        return None
    last = int(load_preset("models", said["model"])["num_layers"]) - each * (stages - 1)
    return layout_of([each] * (stages - 1) + [last], said.get("mtp_num_layers", 0))


_MARK = re.compile(r"^\s*(?:from|import)\s+(?:nemo\b|nemo_run\b)", re.MULTILINE)


def is_nemo(text: str) -> bool:
    """Whether a Python text uses NeMo 2's recipes."""
    return bool(_MARK.search(text)) and any(word in text for word in ("MegatronStrategy", "_recipe", "llm."))


def read_nemo(file: Foreign) -> dict[str, Any]:
    """A scenario's sections; raises SpecError where there is no recipe, or one that cannot be read."""
    _, settings = read_recipe(file.text, file.given.recipe, file.ledger, NEMO, _is_recipe)
    trainer = settings["trainer"] = dict(settings["trainer"])
    if isinstance(trainer.get("plugins"), list) and len(trainer["plugins"]) == 1:  # [bf16_mixed()]
        trainer["plugins"] = trainer["plugins"][0]
    maker = settings["model"].get(CALLED)
    if isinstance(maker, MadeBy) and maker in ("model", "model_config"):  # whose module is the version: llama3_70b
        settings["model"] = {"version": maker.module.rpartition(".")[2], **settings["model"]}
    strategy = settings["trainer"].get("strategy")
    if isinstance(strategy, Mapping) and strategy.get("fsdp") in ("megatron", "pytorch"):
        settings["trainer"]["strategy"] = {**strategy, f"{strategy['fsdp']}_fsdp": True}
    settings["callbacks"] = {**settings.get("callbacks", {}), **_callbacks(settings["trainer"].pop("callbacks", None))}
    return scenario_of_megatron(leave_makers(settings, file.ledger, NEMO), file, NEMO)


def _is_recipe(settings: Mapping[str, Any]) -> bool:
    """Whether it is a recipe: of a model, a trainer and data; or one that NeMo makes for fine-tuning."""
    whole = all(isinstance(settings.get(part), Mapping) for part in ("model", "trainer"))
    return whole and ("data" in settings or "seq_length" in settings)


def _callbacks(said: Any) -> dict[str, Any]:
    """What callbacks set: their arguments, and what they are for."""
    made: dict[str, Any] = {}
    for each in said if isinstance(said, list) else []:
        if isinstance(each, Mapping):
            made |= {key: value for key, value in each.items() if key != CALLED and not key.startswith("gc_")}
            made = table(NEMO)["callbacks"].get(str(each.get(CALLED, "")), {}) | made
    return made


KIND = "bridge_yaml"
_SECTIONS = (
    "model|train|ddp|optimizer|dataset|mixed_precision|comm_overlap|dist|checkpoint|rng|scheduler|logger|tokenizer|peft"
)
_WORD = re.compile(rf"\+{{0,2}}((?:{_SECTIONS})(?:\.[A-Za-z_]\w*)*)=(.*)", re.DOTALL)
_TELLTALE = re.compile(r"(?:^|[\s'\"])\+{0,2}(?:model|train|ddp|optimizer|dist)\.[a-z_]\w*=[\w.\[\"'$]", re.MULTILINE)
_FEWEST = 3
"""Overrides that tell a script of such."""
_PROGRAM = "run_recipe.py"
"""Megatron-Bridge's own (scripts/training), whose --recipe needs no overrides."""


def is_overrides(text: Any) -> bool:
    """Whether a script starts a program with dotted overrides."""
    if not isinstance(text, str) or "--num-layers" in text:
        return False
    return _PROGRAM in text or len(_TELLTALE.findall(text)) >= _FEWEST


def read_overrides(file: Foreign) -> dict[str, Any]:
    """A scenario's sections. Raises SpecError: no command has overrides, or what they say cannot be read."""
    script = read_script(file.text, file.ledger, file.given, file.folder)
    marked = [(_PROGRAM in " ".join(each.words), len(_overrides(each.words))) for each in script.commands]
    if not marked or not any(max(marked)):
        raise file.ledger.error("no command with overrides such as model.tensor_model_parallel_size=8")
    command = script.commands[marked.index(max(marked))]
    found = _overrides(command.words)
    said: dict[str, Any] = {}
    for name, text in found:  # of the same one the last counts
        if UNKNOWN in text:
            file.ledger.ignore(name, "?", f"its value {NOT_RUN}", matters=True)
        else:
            said[name] = parse_yaml(text or '""', f"{file.ledger.where}: {name}")
    first = next((at for at, word in enumerate(command.words) if _WORD.fullmatch(word) or word.endswith(".py")), 0)
    launcher = [*command.directives, *command.environment, *command.words[:first]]
    options = Arguments([word for word in command.words[first:] if not _WORD.fullmatch(word)], file.ledger)
    recipe = options.text("recipe", "recipe-name")
    length = options.whole("seq-length")
    options.leave()
    if length is not None:  # an argument of the recipe (scripts/training/run_recipe.py)
        said = {"dataset.seq_length": length, "model.seq_length": length, **said}
    started, source = started_by(script, launcher, file.ledger)
    if recipe is not None and re.fullmatch(r"[A-Za-z_]\w*", recipe):
        lines = [f"cfg.{name} = {value!r}" for name, value in said.items()]
        text = "\n".join([f"from megatron.bridge.recipes import {recipe}", f"cfg = {recipe}()", *lines, ""])
        given = file.given
        if given.gpus is None and started is not None:
            file.ledger.took("GPUs", started, source)
            given = replace(given, gpus=started)
        return read_megatron_bridge(replace(file, text=text, data=None, given=given))
    data = _nested(said, file.ledger)
    if started is not None:
        data["launcher"] = {"nodes": 1, "gpus_per_node": started}
    sections = read_nemo_yaml(KIND, replace(file, data=data))
    for field, (key, value) in table(KIND)["overridden"].items():
        if said.get(key) in ("none", False) and field not in sections["stack"]:
            sections["stack"].took(field, value, key)
    return sections


def _nested(said: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Overrides as the settings of a file."""
    data: dict[str, Any] = {}
    for name, value in said.items():
        if not isinstance(value, dict) and any(other.startswith(f"{name}.") for other in said):
            what = f"{name.rpartition('.')[2]} is {value!r}"
            raise ledger.error(f"{what} in one override and has keys in another; leave one out")
        put_at(data, name.split("."), value)
    return data


def _overrides(words: Sequence[str]) -> list[tuple[str, str]]:
    found = (_WORD.fullmatch(word) for word in words)
    return [(each[1], each[2]) for each in found if each is not None]
