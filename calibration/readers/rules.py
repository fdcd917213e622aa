"""The rules by which a row of a table of runs becomes a scenario: what it says, and what fills in the rest.

Every rule that filled something in is listed, so that a reader can disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flopcast_calibration.readers.architectures import head_dim_of, with_experts, with_heads, with_known_model
from flopcast_calibration.readers.csv_values import Row, Unmodelled, is_moe, whole
from flopcast_calibration.readers.field_columns import with_field_columns, with_fields
from flopcast_calibration.readers.frameworks import fields_by_words, framework_of, of_section, with_remarks
from flopcast_calibration.readers.machines import cluster_of
from flopcast_calibration.readers.memory_savings import MemorySaving, memory_savings, offloaded_layers
from flopcast_calibration.readers.unstated_fields import MICROBATCHES, plans_with_unstated_fields
from sim.errors import FlopcastError
from sim.specs import Scenario, build_scenario
from sim.specs.frameworks import resolve_stack


@dataclass(frozen=True, slots=True)
class Reading:
    """What a row comes to.

    choices : its scenario, or one for each way to fill in what its authors tuned and it does not say.
    files : each choice as a scenario file holds it.
    memory_savings : what else the row leaves open and saves memory, for where none of them fits.
    inferred : the rules used.
    """

    choices: tuple[Scenario, ...]
    files: tuple[dict[str, Any], ...]
    memory_savings: tuple[MemorySaving, ...]
    inferred: tuple[str, ...]


def read_scenarios(row: Row, profile: str | Mapping[str, Any] | None) -> Reading:
    """The row as scenarios.

    Raises
    ------
    Unmodelled, FlopcastError
        It cannot be modelled, or a value breaks a rule.
    """
    row = with_remarks(row)
    _refuse(row)
    row, fields = with_field_columns(row)
    row, known = with_known_model(row)
    framework = framework_of(row)
    row, inferred = framework.row, _unless_stated(framework.inferred, fields.get("stack", {}))
    row, said = _with_modules(row, fields_by_words(row))
    model = _model(row, known, inferred)
    said = _of_this_model(said, model)
    gpus = whole(row, "num_gpus")
    cluster, own_profile, found = cluster_of(row, gpus)
    inferred += found
    precision = _precision(row, inferred)
    stack = {"framework": framework.name, "version": framework.version, **of_section(said, "stack")}
    stack |= fields.pop("stack", {})
    plan = {**_plan(row, gpus, inferred), **of_section(said, "plan")}
    _as_the_framework_does(stack, model, plan, precision, inferred)
    plan |= offloaded_layers(row, framework, model["num_layers"], inferred)
    batches = _batches(row, plan, inferred)
    rest = {
        "cluster": cluster,
        "stack": stack,
        "profile": profile or own_profile,
        "name": model["name"],
        "model": model,
    }
    choices: list[Scenario] = []
    files: list[dict[str, Any]] = []
    first = None
    for batch, of_batch in batches:
        training = {"global_batch_size": batch, "sequence_length": whole(row, "seq_len"), "precision": precision}
        for choice in plans_with_unstated_fields(of_batch, framework.name, plan, model, training, inferred):
            data = with_fields({**rest, "training": training, "plan": choice}, fields)
            try:
                scenario, file = _dealt(data, inferred)
            except FlopcastError as error:
                first = first or error
                continue
            if file not in files:
                choices.append(scenario)
                files.append(file)
    if not choices:
        raise first or Unmodelled(
            f"no micro-batch and number of chunks share out global_batch_seqs = {batches[-1][0]} "
            f"over dp = {plan['dp']} and pp = {plan['pp']}"
        )
    savings = tuple(memory_savings(row, framework.name, plan, model["num_layers"]))
    return Reading(tuple(choices), tuple(files), savings, tuple(dict.fromkeys(inferred)))


def _with_modules(row: Row, said: dict[str, Any]) -> tuple[Row, dict[str, Any]]:
    """Modules that a row's words name are what its selective recomputation is; the row's own cell comes first."""
    if "plan.recompute_modules" in said:
        row = {**row, "recompute": row.get("recompute") or "selective"}
        if row["recompute"] != "selective":
            said = {path: value for path, value in said.items() if not path.startswith("plan.recompute")}
    return row, said


def _of_this_model(said: dict[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """What words name, but for recomputed MLPs in a model whose layers all have experts, where it does nothing."""
    modules = said.get("plan.recompute_modules", ())
    mlps = model.get("mlp_layer_types", ("sparse" if model.get("num_experts") else "dense",))
    if "mlp" not in modules or "dense" in mlps or model.get("num_dense_layers"):
        return said
    return {**said, "plan.recompute_modules": tuple(name for name in modules if name != "mlp")}


def _unless_stated(inferred: list[str], stack: Mapping[str, Any]) -> list[str]:
    """What was inferred of a framework, but for what a column of its own says."""
    named = {"framework", "version"} & stack.keys()
    return [line for line in inferred if not (named and line.startswith("framework "))]


def _as_the_framework_does(
    stack: dict[str, Any], model: dict[str, Any], plan: dict[str, Any], precision: str, inferred: list[str]
) -> None:
    """Fill in what the framework does where the row is silent: dropout, ZeRO stage, sequence parallelism."""
    of_row = {"model": model, "plan": plan, "training": {"precision": precision}}
    for path, value, source in resolve_stack(stack, of_row).consequences:
        section, _, name = path.partition(".")
        if section in of_row:
            of_row[section][name] = value
            inferred.append(f"{name} {value}: what {stack['framework']} does ({source})")
    if "zero_stage" not in plan:
        plan["zero_stage"] = 0
        inferred.append("zero_stage 0: the row gives none")
    if plan["tp"] > 1 and "sequence_parallel" not in plan:
        inferred.append("sequence_parallel n: the row does not say, nor does the framework")
    if "ep" in plan and plan["tp"] > 1 and not plan.get("sequence_parallel"):
        plan["sequence_parallel"] = True
        inferred.append("sequence_parallel y: a mixture of experts needs it where tp is above 1")


def _dealt(data: dict[str, Any], inferred: list[str]) -> tuple[Scenario, dict[str, Any]]:
    """Scenario and file; where layers do not divide over the stages, embedding and head take a layer's place."""
    if data["plan"].get("pipeline_layout"):
        return build_scenario(data, where="layout"), data
    uneven = f"{data['model']['num_layers']} layers do not divide over the stages"
    stages = int(data["plan"].get("pp", 1)) * int(data["plan"].get("num_chunks", 1))
    layers = data["model"]["num_layers"]
    for both, extra in (
        ({}, 0),
        ({"head_as_layer": True}, 1),
        ({"embedding_as_layer": True, "head_as_layer": True}, 2),
    ):
        if (layers + extra) % stages == 0:
            file = {**data, "plan": {**data["plan"], **both}}
            scenario = build_scenario(file, where="layout")
            if extra:
                inferred.append(f"{' and '.join(both)}: {uneven}".replace("_as_layer", " as a layer"))
            return scenario, file
    file = {**data, "plan": {**data["plan"], "uneven_layers": True}}
    scenario = build_scenario(file, where="layout")
    inferred.append(f"some stages hold a layer more: {uneven}")
    return scenario, file


def _refuse(row: Row) -> None:
    """What flopcast does not model yet."""
    reasons: tuple[tuple[bool, str], ...] = (
        (bool(row.get("unmodelled")), row.get("unmodelled", "")),
        (row.get("precision") == "int8", f"precision {row.get('precision')} is not modelled"),
    )
    for applies, reason in reasons:
        if applies:
            raise Unmodelled(reason)


_BY_NAME = ("position", "norm", "bias", "tied_embeddings")
"""Fields of a model that its name tells where the row does not."""


def _model(row: Row, known: Mapping[str, Any], inferred: list[str]) -> dict[str, Any]:
    """The model's fields; `known` are those of its preset, where its name is one's."""
    name = row.get("model_name") or "model"
    hidden, heads, tp = whole(row, "hidden"), whole(row, "heads"), whole(row, "tp", 1)
    by_name = _by_model_name(row, name.lower(), inferred)
    if not row.get("kv_heads"):
        inferred.append(f"kv_heads {heads}: one for each head")
    model: dict[str, Any] = {
        "name": name,
        "num_layers": whole(row, "layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": whole(row, "kv_heads", heads),
        "max_sequence_length": max(2048, whole(row, "seq_len")),
        **by_name,
    }

    if hidden % heads and not head_dim_of(name):
        raise Unmodelled(f"hidden = {hidden} is not divisible by heads = {heads}")
    if row.get("ffn_hidden"):
        model["intermediate_size"] = whole(row, "ffn_hidden")
    elif model["gated_mlp"]:
        raise Unmodelled("ffn_hidden is empty for a gated MLP")
    else:
        inferred.append(f"ffn_hidden {4 * hidden}: four times hidden")
    model = with_experts(row, model, inferred) if is_moe(row) else with_heads(model, inferred)
    model |= {name: value for name, value in known.items() if name != "name"}
    inferred.append(f"{', '.join(f'{fact} {model[fact]}' for fact in _BY_NAME)}: by the model's name".replace("_", " "))
    vocabulary = model["vocab_size"]
    if vocabulary % tp:
        model["vocab_size"] = -(-vocabulary // (128 * tp)) * 128 * tp
        inferred.append(f"vocab {model['vocab_size']}: {vocabulary} padded so that tp divides it")
    return model


def _by_model_name(row: Row, known: str, inferred: list[str]) -> dict[str, Any]:
    """What the model's name, in lower case, tells of its layers where the row does not."""
    llama = any(word in known for word in ("llama", "nemotron", "qwen", "mistral", "gemma", "internlm"))
    mpt = "mpt" in known
    gpt = not llama and not mpt
    gated = row.get("gated_mlp") == "y" or (not row.get("gated_mlp") and llama and "nemotron" not in known)
    if not row.get("gated_mlp"):
        inferred.append(f"gated_mlp {'y' if gated else 'n'}: by the model's name")
    vocabulary = whole(row, "vocab", 0)
    if not vocabulary:
        vocabulary = 51200 if not llama else (128256 if "3" in known else 32000)
        inferred.append(f"vocab {vocabulary}: by the model's name")
    return {
        "vocab_size": vocabulary,
        "gated_mlp": gated,
        "position": "rotary" if llama else ("none" if mpt else "learned"),
        "norm": "rmsnorm" if llama else "layernorm",
        "bias": gpt,
        "tied_embeddings": gpt or mpt,
    }


def _plan(row: Row, gpus: int, inferred: list[str]) -> dict[str, Any]:
    tp, pp, cp = (whole(row, key, 1) for key in ("tp", "pp", "cp"))
    if not row.get("tp") and row.get("zero_stage") != "3":
        raise Unmodelled("the parallel layout is not given (tp is empty)")
    inferred += [f"{key} 1: the row gives none" for key in ("tp", "pp", "cp") if not row.get(key)]
    model_parallel = tp * pp * cp
    if gpus % model_parallel:
        raise Unmodelled(f"tp · pp · cp = {model_parallel} does not divide num_gpus = {gpus}")
    dp = whole(row, "dp", gpus // model_parallel)
    if dp * model_parallel != gpus:
        raise Unmodelled(f"tp · cp · pp · dp = {dp * model_parallel} is not num_gpus = {gpus}")
    plan: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp, "dp": dp}
    zero = row.get("zero_stage", "")
    if zero == "hybrid3":
        zero, node = "3", whole(row, "gpus_per_node", 8)
        if dp * cp > node and (dp * cp) % node == 0:
            plan["sharding_group"] = node
            inferred.append(f"sharding_group {node}: hybrid sharding, taken to be within a node")
    if zero:
        if zero not in ("0", "1", "2", "3"):
            raise Unmodelled(f"zero_stage {zero!r} is not modelled")
        plan["zero_stage"] = int(zero)
    if row.get("sequence_parallel") or tp == 1:
        plan["sequence_parallel"] = tp > 1 and row["sequence_parallel"] == "y"
    if is_moe(row):
        plan["ep"] = whole(row, "ep", 1)
    return plan


def _precision(row: Row, inferred: list[str]) -> str:
    said = row.get("precision", "")
    if not said:
        said = "fp16" if "V100" in row.get("gpu", "") else "bf16"  # V100 has no bf16
        inferred.append(f"precision {said}")
    known = ("fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "mxfp4")
    if said not in known:
        raise Unmodelled(f"precision {said!r} is not one of {', '.join(known)}")
    return said


def _batches(row: Row, plan: dict[str, Any], inferred: list[str]) -> list[tuple[int, Row]]:
    """Sequences of a step, and the row with the micro-batch that goes with them: one of each, or those to choose from.

    A rate hardly depends on the batch where there is no pipeline; a step time does.
    """
    if row.get("global_batch_seqs"):
        return [(whole(row, "global_batch_seqs"), row)]
    dp = int(plan["dp"])
    if row.get("micro_batch_seqs"):
        batch = whole(row, "micro_batch_seqs") * dp
        inferred.append(f"global_batch_seqs {batch}: one micro-batch on each replica")
        return [(batch, row)]
    if plan["pp"] > 1 or row.get("measured_unit") == "iteration_s":
        raise Unmodelled("neither global_batch_seqs nor micro_batch_seqs is given")
    # Assumed: within a node authors leave their framework's default, across nodes they fill the memory.
    sizes = MICROBATCHES if whole(row, "num_gpus") > whole(row, "gpus_per_node", 8) else MICROBATCHES[:1]
    inferred.append(f"global_batch_seqs: one micro-batch of {' or '.join(map(str, sizes))} on each replica")
    return [(size * dp, {**row, "micro_batch_seqs": str(size)}) for size in sizes]
