"""The rules by which a row of a table of runs becomes a scenario: what it says, and what fills in the rest.

Every rule that filled something in is listed, so that a reader can disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from calibration.readers.architectures import head_dim_of, with_experts
from calibration.readers.csv_values import Row, Unmodelled, is_moe, whole
from calibration.readers.machines import cluster_of
from calibration.readers.memory_savings import MemorySaving, memory_savings, offloaded_layers
from calibration.readers.scripts import said_by_scripts
from calibration.readers.stacks import stack_of
from calibration.readers.unstated_fields import MICROBATCHES, plans_with_unstated_fields
from sim.errors import FlopcastError
from sim.specs import Scenario, build_scenario


def scenarios_of(
    row: Row, profile: Mapping[str, Any] | None
) -> tuple[tuple[Scenario, ...], tuple[MemorySaving, ...], tuple[str, ...]]:
    """The row's scenario, or one for each way to fill in what its authors tuned and it does not say.

    Returns
    -------
    tuple
        The scenarios; what else the row leaves open and saves memory, for where none of them fits; the rules used.
    """
    _refuse(row)
    row, said_of_stack, inferred = said_by_scripts(row)
    model = _model(row, inferred)
    gpus = whole(row, "num_gpus")
    cluster, own_profile, found = cluster_of(row, gpus)
    inferred += found
    plan = _plan(row, gpus, inferred)
    plan["offloaded_layers"] = offloaded_layers(row, model["num_layers"], inferred)
    precision = _precision(row, inferred)
    batches = _batches(row, plan, inferred)
    stack, found = stack_of(row, plan)
    stack |= said_of_stack
    inferred += found
    rest = {
        "cluster": cluster,
        "stack": stack,
        "profile": profile or own_profile,
        "name": model["name"],
        "model": model,
    }
    scenarios, first = [], None
    for batch, said in batches:
        training = {"global_batch_size": batch, "sequence_length": whole(row, "seq_len"), "precision": precision}
        for choice in plans_with_unstated_fields(said, plan, model, training, inferred):
            try:
                scenarios.append(_dealt({**rest, "training": training, "plan": choice}, inferred))
            except FlopcastError as error:
                first = first or error
    if not scenarios:
        raise first or Unmodelled(
            f"no micro-batch and number of chunks share out global_batch_seqs = {batches[-1][0]} "
            f"over dp = {plan['dp']} and pp = {plan['pp']}"
        )
    savings = tuple(memory_savings(row, plan, model["num_layers"]))
    return tuple(scenarios), savings, tuple(dict.fromkeys(inferred))


def _dealt(data: dict[str, Any], inferred: list[str]) -> Scenario:
    """The scenario; where layers do not divide over the stages, embedding and head take a layer's place."""
    uneven = f"{data['model']['num_layers']} layers do not divide over the stages"
    stages = data["plan"].get("pp", 1) * data["plan"].get("num_chunks", 1)
    layers = data["model"]["num_layers"]
    for both, extra in (
        ({}, 0),
        ({"head_as_layer": True}, 1),
        ({"embedding_as_layer": True, "head_as_layer": True}, 2),
    ):
        if (layers + extra) % stages == 0:
            scenario = build_scenario({**data, "plan": {**data["plan"], **both}}, where="layout")
            if extra:
                inferred.append(f"{' and '.join(both)}: {uneven}".replace("_as_layer", " as a layer"))
            return scenario
    scenario = build_scenario({**data, "plan": {**data["plan"], "uneven_layers": True}}, where="layout")
    inferred.append(f"some stages hold a layer more: {uneven}")
    return scenario


def _refuse(row: Row) -> None:
    """What flopcast does not model yet."""
    notes, name = row.get("notes", ""), row.get("model_name", "").lower()
    reasons: tuple[tuple[bool, str], ...] = (
        ("lora" in notes.lower() and "LoRA" in notes, "LoRA trains adapters only, which is not modelled"),
        ("ONE layer" in notes, "a single layer, not a training step"),
        ("nemotron-h" in name or "nemotron_3" in name, "Mamba layers are not modelled"),
        (row.get("zero_stage") == "hybrid3", "sharding inside groups (HSDP) is not modelled yet"),
        ("CPU offload of checkpoints" in notes, "offloading activations to the host is not modelled"),
        ("activation CPU offload=True" in notes, "offloading activations to the host is not modelled"),
        (row.get("precision") in ("nvfp4", "int8"), f"precision {row.get('precision')} is not modelled"),
    )
    for applies, reason in reasons:
        if applies:
            raise Unmodelled(reason)


def _model(row: Row, inferred: list[str]) -> dict[str, Any]:
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
    facts = ("position", "norm", "bias", "tied_embeddings", "dropout")
    inferred.append(f"{', '.join(f'{fact} {model[fact]}' for fact in facts)}: by the model's name".replace("_", " "))
    if hidden % heads and not (is_moe(row) and head_dim_of(name)):
        raise Unmodelled(f"hidden = {hidden} is not divisible by heads = {heads}")
    if row.get("ffn_hidden"):
        model["intermediate_size"] = whole(row, "ffn_hidden")
    elif model["gated_mlp"]:
        raise Unmodelled("ffn_hidden is empty for a gated MLP")
    else:
        inferred.append(f"ffn_hidden {4 * hidden}: four times hidden")
    if is_moe(row):
        model = with_experts(row, model, inferred)
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
        # Megatron-LM's and NeMo's runs until 2023 trained with dropout; later recipes do not.
        "dropout": 0.1 if gpt and (_old_megatron(row) or _old_nemo(row)) else 0.0,
    }


def _old_megatron(row: Row) -> bool:
    framework = row.get("framework", "")
    return framework.startswith(("Megatron-LM", "Megatron-DeepSpeed", "DeepSpeed", "GPT-NeoX", "Alpa"))


def _old_nemo(row: Row) -> bool:
    """NeMo-Framework-Launcher of 2022 and 2023 (launcher_scripts/conf/training/gpt3: hidden_dropout 0.1)."""
    return bool(re.search(r"Launcher 2[23]", row.get("source", "")))


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
    zero = row.get("zero_stage", "")
    if not zero and "Meta in-house" in row.get("framework", ""):
        zero = "2"
        inferred.append("zero_stage 2: FSDP that keeps the weights gathered (arXiv:2407.21783, section 3.3.2)")
    elif not zero and re.search(r"NeMo|Megatron-Core|Megatron-Bridge|Aleph Alpha", row.get("framework", "")):
        zero = "1"
        inferred.append("zero_stage 1: the framework's distributed optimizer")
    elif not zero:
        inferred.append("zero_stage 0: the row gives none")
    if zero not in ("", "0", "1", "2", "3"):
        raise Unmodelled(f"zero_stage {zero!r} is not modelled")
    parallel = row.get("sequence_parallel", "")
    sequence_parallel = tp > 1 and (parallel == "y" or (not parallel and not _old_megatron(row)))
    if not parallel and tp > 1:
        inferred.append(f"sequence_parallel {'y' if sequence_parallel else 'n'}: by the framework")
    plan: dict[str, Any] = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "zero_stage": int(zero or 0), "sequence_parallel": sequence_parallel,
    }  # fmt: skip
    if is_moe(row):
        plan["ep"] = whole(row, "ep", 1)
        if not row.get("ep") and gpus % 8 == 0 and whole(row, "experts") % 8 == 0:
            plan["ep"] = 8
            inferred.append("ep 8: the row gives none; a node's GPUs share the experts")
        if tp > 1 and not sequence_parallel:
            plan["sequence_parallel"] = True
            inferred.append("sequence_parallel y: a mixture of experts needs it where tp is above 1")
    notes = row.get("notes", "")
    if "first and last stage hold one layer fewer" in notes:
        plan |= {"embedding_as_layer": True, "head_as_layer": True}
    return plan


def _precision(row: Row, inferred: list[str]) -> str:
    said = row.get("precision", "")
    if not said:
        said = "fp16" if "V100" in row.get("gpu", "") else "bf16"  # V100 has no bf16
        inferred.append(f"precision {said}")
    known = {"mxfp8": "fp8", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "fp32": "fp32"}
    if said not in known:
        raise Unmodelled(f"precision {said!r} is not one of {', '.join(known)}")
    return known[said]


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
