"""torchtitan's configuration: TOML, the JSON that it dumps, or Python.

Names are those of pytorch/torchtitan's job config, with the older places of the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import (
    Foreign,
    cluster_of,
    cluster_section,
    fewest_gpus,
    replicas,
    take_optimizer,
)
from sim.foreign.importers.keys import MOST, Keys, NotKnown, table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.foreign.importers.pipeline_layouts import take_flushes, take_repeated
from sim.foreign.importers.python.expressions import CALLED
from sim.foreign.importers.python.recipes import leave_makers, read_recipe
from sim.foreign.importers.recipes.finetuning import adapted
from sim.foreign.importers.recipes.recipe import whole_shape
from sim.foreign.importers.torchtitan.model import (
    DEFAULT,
    KIND,
    read_flavor,
    read_stack,
    take_pipeline,
    take_precision,
    take_update,
)
from sim.specs.hardware import ClusterSpec

_MARK = re.compile(r"^\s*(?:from|import)\s+(?:torchtitan|\.+)[\w.]*\s", re.MULTILINE)


def is_torchtitan_python(text: str) -> bool:
    """Whether a Python text is a registry of torchtitan's configurations."""
    return "torchtitan" in text and ("Trainer.Config" in text or "JobConfig" in text) and bool(_MARK.search(text))


def settings_in_python(file: Foreign) -> dict[str, Any]:
    """The settings of the file's recipe, as torchtitan's TOML would have them. Raises SpecError: no recipe, several, or
    one whose model only running code knows."""
    name, settings = read_recipe(file.text, file.given.recipe, file.ledger, KIND, _fits)
    data = {key: value for key, value in settings.items() if key not in ("model_spec", CALLED)}
    spec = settings.get("model_spec")
    if isinstance(spec, Mapping):
        data["model"] = _model(spec, name, file)
    elif file.model is None and "model" not in data:
        why = f"line {spec.line}: {spec.why}" if isinstance(spec, NotKnown) else f"{name} sets none"
        raise SpecError(f"{file.ledger.where}: the model is not told ({why}); give --model PRESET")
    data["activation_checkpoint"] = _recomputation(settings, file)
    loss = data.pop("loss", None)
    if isinstance(loss, Mapping) and loss.get(CALLED) == "ChunkedLossWrapper":
        data["compile"] = {**data.get("compile", {}), "chunked_loss": True}
    data.setdefault("training", {})
    data.setdefault("parallelism", {})
    optimizer = data.get("optimizer")
    if isinstance(optimizer, Mapping):
        data["optimizer"] = _optimizer(optimizer)
    return leave_makers(data, file.ledger, KIND)


def _fits(settings: Mapping[str, Any]) -> bool:
    """Whether it is a Trainer.Config, or of the older JobConfig."""
    maker = settings.get(CALLED)
    return ("model_spec" in settings and "training" in settings) or (
        maker == "JobConfig" and len(settings) > 2 and "training" in settings
    )


def _model(spec: Mapping[str, Any], recipe: str, file: Foreign) -> dict[str, Any]:
    """name, flavor and converters of `model_registry("8B", converters=[...])`."""
    flavor = spec.get("0", spec.get("flavor"))
    made: dict[str, Any] = {"name": spec.get("name", _name(spec, recipe, file)), "flavor": flavor}
    if isinstance(flavor, NotKnown) and file.model is None:
        raise SpecError(
            f"{file.ledger.where}, line {flavor.line}: the model's flavor is known only to running code "
            f"({flavor.why}); give --model PRESET"
        )
    if isinstance(flavor, NotKnown):
        made["flavor"] = None
    converters = spec.get("converters") or []
    if isinstance(converters, NotKnown):
        why = "known only to running code; give --set training.precision=fp8 where they are float8's"
        file.ledger.ignore("converters", f"?, line {converters.line}", why, matters=True)
        converters = []
    made["converters"] = [each.get(CALLED, "?") if isinstance(each, Mapping) else str(each) for each in converters]
    for each in converters:
        for which in ("fqns", "filter_fqns"):
            names = each.get(which) if isinstance(each, Mapping) else None
            if names in (None, []):
                continue
            shown = f"?, line {names.line}" if isinstance(names, NotKnown) else names
            why = "which linears are converted is not priced: all of the layers are; see training.high_precision_layers"
            file.ledger.ignore(f"{each.get(CALLED)}.{which}", shown, why, matters=True)
    rest = {key: value for key, value in spec.items() if key not in ("0", "flavor", "name", "converters", CALLED)}
    adapters = [each for each in converters if isinstance(each, Mapping) and "lora" in str(each.get(CALLED)).lower()]
    return made | rest | ({"adapters": dict(adapters[0])} if adapters else {})


def _name(spec: Mapping[str, Any], recipe: str, file: Foreign) -> str:
    """Which model's registry is called: by its module, by the file's folder, or by the recipe's name."""
    known = [*table(KIND)["flavors"], *table(KIND)["no_decoders"]]
    module = getattr(spec.get(CALLED), "module", "").split(".")
    folder = "" if file.folder is None else file.folder.name
    maker = str(spec.get(CALLED, "")).removesuffix("_model_registry")
    for part in (*reversed(module), maker, folder):
        if part in known:
            return str(part)
    found = [name for name in known if recipe.startswith(name) or f"_{name}" in recipe]
    if not found:
        raise SpecError(
            f"{file.ledger.where}: another file says whose flavor {short(spec.get('0'))!r} is; give --model PRESET"
        )
    return str(max(found, key=len))


def _recomputation(settings: Mapping[str, Any], file: Foreign) -> Any:
    """`activation_checkpoint` by its mode: a class in Python, of which SelectiveAC is the default."""
    said = settings.get("activation_checkpoint", {})
    if said is None:
        return {"mode": "none"}
    if not isinstance(said, Mapping) or "mode" in said or not said:
        return {"mode": "selective"} if isinstance(said, Mapping) and not said else said
    maker = str(said.get(CALLED, ""))
    mode = table(KIND)["recomputes"].get(maker)
    if mode is None:
        raise SpecError(
            f"{file.ledger.where}: activation_checkpoint {short(maker)!r} is none of "
            f"{', '.join(table(KIND)['recomputes'])}; give --set plan.recompute=MODE after making it one of them"
        )
    return {"mode": mode, **{key: value for key, value in said.items() if key != CALLED}}


def _optimizer(said: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer's name: of `default_adamw(...)`, of groups of parameters, or what it says itself."""
    groups = said.get("param_groups")
    if isinstance(groups, list):
        names = [each.get("optimizer_name") for each in groups if isinstance(each, Mapping)]
        return {"name": names[-1]} if names and isinstance(names[-1], str) else {}
    maker = str(said.get(CALLED, ""))
    name = maker.removeprefix("default_") if maker.startswith("default_") else said.get("name")
    return {**{key: value for key, value in said.items() if key not in (CALLED, "0", "name")}, "name": name or "AdamW"}


_SECTIONS = ("parallelism", "training", "activation_checkpoint", "job")


def is_torchtitan(data: Any) -> bool:
    """Whether data from TOML or JSON are such a configuration."""
    return isinstance(data, Mapping) and sum(isinstance(data.get(name), Mapping) for name in _SECTIONS) >= 2


def read_torchtitan(file: Foreign) -> dict[str, Any]:
    """A scenario's sections. Raises SpecError: a model or a schedule that flopcast does not know, or a value that
    breaks a rule."""
    given, ledger = file.given, file.ledger
    keys = Keys(file.data if file.data is not None else settings_in_python(file), ledger, KIND)
    model_keys, training_keys = keys.section("model"), keys.section("training")
    cut, recompute = keys.section("parallelism"), keys.section("activation_checkpoint")
    experimental = keys.section("experimental")
    model: Any = file.model if file.model is not None else read_flavor(model_keys)
    model = _further_tokens(model, model_keys, ledger)
    shape = whole_shape(model)
    name, cluster = cluster_of(given, ledger)
    plan, training = Section("plan", ledger), Section("training", ledger, sequence_length=None)
    replicated, sharded = _degrees(plan, (cut, training_keys, experimental))
    _experts(plan, cut, shape)
    gpus = _gpus(plan, replicated, sharded, shape, cluster, file)
    _replicas(plan, gpus, replicated, sharded, cut)
    local = training_keys.whole("local_batch_size", "batch_size")
    local = local if local is not None else ledger.assume("training.local_batch_size", 8, DEFAULT)
    take_pipeline(plan, local, cut, experimental, shape)
    _training(training, plan, local, training_keys, cut)
    _recompute(plan, recompute, int(shape["num_layers"]))
    optimizer = keys.section("optimizer")
    take_optimizer(training, optimizer.text("name"), "optimizer.name")
    stack = read_stack(keys, training_keys, model_keys, cut, plan)
    take_precision(training, stack, model_keys, training_keys, keys)
    take_update(stack, optimizer)
    _adapters(training, model_keys.section("adapters"))
    for part in (model_keys, training_keys, cut, recompute, experimental, keys):
        part.leave()
    where = cluster_section(name, cluster, gpus, given, ledger)
    return {"model": model, "cluster": where, "plan": plan, "training": training, "stack": stack}


def _further_tokens(model: Any, keys: Keys, ledger: Ledger) -> Any:
    """Modules of multi-token prediction, which torchtitan trains where its registry is asked for them."""
    asked = keys.whole("num_mtp_layers", least=0) or 0
    if not asked and not whole_shape(model).get("num_mtp_layers"):
        return model
    section = Section("model", ledger, **({"preset": model} if isinstance(model, str) else model))
    if asked:
        section.took("num_mtp_layers", asked, "num_mtp_layers")
    elif section.get("num_mtp_layers") != 0:
        section.assume("num_mtp_layers", 0, "torchtitan trains no multi-token prediction unless asked")
    return section


def _adapters(training: Section, adapters: Keys) -> None:
    """Low-rank adapters, of LoRAConverter."""
    rank = adapters.whole("rank")
    if rank is not None:
        training.took("adapter_rank", rank, "rank of LoRAConverter")
    _, targets = adapters.take("target_modules")
    if isinstance(targets, list) and rank is not None:
        source = "target_modules of LoRAConverter"
        training.took("adapter_targets", adapted(map(str, targets), source, training), source)
    adapters.leave()


def _degree(name: str, sections: tuple[Keys, ...], default: int, least: int = 1) -> int:
    """A parallel degree from the first section that has it; -1, where allowed, stands for all GPUs left."""
    for section in sections:
        if name in section:
            value = section.whole(name, least=-1)
            if value is None or value == 0:
                raise section.wrong(name, value, f"must be -1, or a whole number from 1 to {MOST:.0e}")
            if value < least:
                raise sections[0].wrong(name, value, "must be one or more")
            return value
    return default


def _degrees(plan: Section, sections: tuple[Keys, ...]) -> tuple[int, int]:
    """Tensor, context and pipeline parallelism into the plan; the degrees of replicated and of sharded data
    parallelism, -1 for all that is left."""
    for field, name in (("tp", "tensor"), ("cp", "context"), ("pp", "pipeline")):
        named = f"{name}_parallel_degree"
        plan.took(field, _degree(named, sections, 1), named)
    replicated = _degree("data_parallel_replicate_degree", sections, 1)
    older = _degree("data_parallel_degree", sections, -1, least=-1)
    return replicated, _degree("data_parallel_shard_degree", sections, older, least=-1)


def _experts(plan: Section, cut: Keys, shape: dict[str, Any]) -> None:
    """Expert parallelism: over the GPUs of the sharded, context- and tensor-parallel degrees, as in ours.

    Where it cuts experts torchtitan gathers the sequence before the router and sends every token from each
    tensor-parallel rank (torchtitan/distributed/expert_parallel.py); priced is Megatron-Core's way, as is said.
    """
    degree, of_tensor = cut.whole("expert_parallel_degree"), cut.whole("expert_tensor_parallel_degree")
    if not shape.get("num_experts"):
        for name, value in (("expert_parallel_degree", degree), ("expert_tensor_parallel_degree", of_tensor)):
            if value is not None and value > 1:
                cut.ledger.ignore(f"parallelism.{name}", value, "the model has no experts")
        return
    plan.settle("ep", degree, "expert_parallel_degree", 1, DEFAULT)
    if of_tensor is not None and of_tensor > 1:
        why = "expert_tensor_parallel_degree; tokens are gathered where they arrive, as by Megatron-Core"
        plan.took("etp", of_tensor, why)


def _gpus(
    plan: Section, replicated: int, sharded: int, shape: dict[str, Any], cluster: ClusterSpec, file: Foreign
) -> int:
    ledger, given = plan.ledger, file.given
    unit = plan["tp"] * plan["cp"] * plan["pp"] * replicated
    if sharded > 0:
        if given.gpus not in (None, unit * sharded):
            raise SpecError(
                f"{ledger.where}: its degrees make {unit * sharded:,} GPUs, not {given.gpus:,}; leave --gpus out"
            )
        return int(ledger.took("GPUs", unit * sharded, "the product of all degrees"))
    if given.gpus is not None:
        return int(ledger.took("GPUs", given.gpus, "--gpus"))
    if file.started is not None:
        return int(ledger.took("GPUs", *file.started))
    return fewest_gpus(shape, cluster, ledger, unit)


def _replicas(plan: Section, gpus: int, replicated: int, sharded: int, cut: Keys) -> None:
    unit = plan["tp"] * plan["cp"] * plan["pp"]
    plan.took("dp", replicas(gpus, unit, plan.ledger, "tp · cp · pp"), "GPUs over tp · cp · pp")
    policy = cut.text("fsdp_reshard_after_forward")
    if plan["dp"] * plan["cp"] == replicated and sharded in (1, -1) and replicated > 1:
        plan.took("zero_stage", 0, "data_parallel_replicate_degree alone: nothing is sharded")
        if policy is not None:
            cut.ledger.ignore("parallelism.fsdp_reshard_after_forward", policy, "nothing is sharded")
        return
    policy = policy or "default"
    if policy not in ("default", "always", "never"):
        raise cut.wrong("fsdp_reshard_after_forward", policy, "must be default, always or never")
    plan.took("zero_stage", 3, "FSDP is torchtitan's data parallelism")
    said: dict[str, Any] = {"always": True, "never": False}
    plan.took("reshard_after_forward", said.get(policy, policy), f"fsdp_reshard_after_forward {policy}")
    if replicated > 1:
        group = plan["dp"] * plan["cp"] // replicated
        plan.took("sharding_group", group, f"data_parallel_replicate_degree {replicated}")


def _training(training: Section, plan: Section, local: int, keys: Keys, cut: Keys) -> None:
    length = keys.whole("seq_len")
    length = length if length is not None else int(training.assume("sequence_length", 2048, DEFAULT))
    whole = keys.whole("global_batch_size", least=-1)
    if whole is None or whole < 1:
        whole = int(training.took("global_batch_size", local * plan["dp"], "local_batch_size × data-parallel degree"))
    else:
        training.took("global_batch_size", whole, "global_batch_size")
    training.took("sequence_length", length, "seq_len")
    take_flushes(plan, "local_batch_size", local, whole)  # torchtitan/train.py, train_step: a schedule each local batch
    steps = keys.whole("steps")
    if steps is not None:
        training.took("tokens", float(steps * whole * length), "steps × batch × seq_len")
    cut_too = cut.flag("enable_sequence_parallel") is not False
    if plan["tp"] > 1:
        source = "torchtitan's tensor parallelism, unless told otherwise" if cut_too else "enable_sequence_parallel"
        plan.took("sequence_parallel", cut_too, source)
    elif not cut_too:
        why = "without effect at a tensor-parallel degree of 1"
        plan.ledger.ignore("parallelism.enable_sequence_parallel", False, why)


def _recompute(plan: Section, keys: Keys, layers: int) -> None:
    mode = keys.text("mode")
    _, option = keys.take("selective_ac_option")
    if mode is None:
        mode = plan.assume("recompute", "selective", DEFAULT)
    if mode not in ("none", "selective", "full", "memory_budget"):
        raise keys.wrong("mode", mode, "must be none, selective or full")
    every = int(str(option)) if str(option).isdecimal() and mode == "selective" else 0
    if every:
        _every(plan, every, layers)
        return
    per_op = mode in ("selective", "memory_budget")
    if option is not None and not per_op:
        why = f"without effect with activation_checkpoint.mode {mode}"
        keys.ledger.ignore("activation_checkpoint.selective_ac_option", option, why)
    if per_op and (option not in (None, "op") or mode == "memory_budget"):
        why = "priced as the option op: every other multiply again"
        keys.ledger.ignore("activation_checkpoint.selective_ac_option", option, why, matters=True)
    plan.took("recompute", "per_op" if per_op else mode, f"activation_checkpoint.mode {mode}")


def _every(plan: Section, every: int, layers: int) -> None:
    """Whole layers again, one in so many of each stage (selective_ac_option = "2")."""
    source = f"activation_checkpoint.selective_ac_option {every}"
    here = layers // (plan["pp"] * plan.get("num_chunks", 1))
    take_repeated(plan, here // every, here, source)
