"""What a described run leaves open, filled in by stated rules: by its framework's habits, or as its authors tuned it.

A run that was measured fitted in memory. Of fields that authors tune (micro-batch, chunks, recomputation, experts'
degree) all usual values are choices, of which the fastest that fits counts; where none fits, the mildest saving of
memory that the description leaves open. Every rule that filled something in is listed, so that a reader can disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from flopcast_calibration.node import RACKS
from flopcast_calibration.readers.cells import Row, Unmodelled
from flopcast_calibration.readers.described import Data, described
from sim.errors import FlopcastError
from sim.specs import Scenario, build_scenario, load_preset, preset_names
from sim.specs.frameworks import resolve_stack
from sim.specs.presets import raw_preset

Habits = Mapping[str, Any]
"""How a framework's recipes fill in a layout: `layouts` of its file."""
MemorySaving = tuple[dict[str, dict[str, Any]], str]
"""Changes of the plan or of the training, by part, that save memory, and the rule that allows them."""
UNSAID = "the row gives none, and does not fit without"
MICROBATCHES = (1, 2, 4, 8, 16)
"""Micro-batch sizes to choose from where a row gives none."""


def read_scenarios(row: Row, profile: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """The row as scenarios: what a `Run` holds of them (choices, files, memory_savings and inferred).

    It raises Unmodelled or FlopcastError where the row cannot be modelled, or a value breaks a rule.
    """
    data, inferred = described(row)
    stated, framework = data["plan"], data["stack"].get("framework", "")
    known = framework in preset_names("frameworks")
    habits: Habits = raw_preset("frameworks", framework).get("layouts", {}) if known else {}
    training, model = dict(data["training"]), dict(data["model"])
    if "sequence_length" not in training:
        raise Unmodelled("seq_len is empty")
    plan = _degrees(stated, inferred)
    _complete_model(model, training, plan["tp"], inferred)
    if "precision" not in training:
        v100 = "V100" in str(data["cluster"].get("name", ""))  # which has no bf16
        training["precision"] = "fp16" if v100 else "bf16"
        inferred.append(f"precision {training['precision']}")
    _as_the_framework_does(data["stack"], model, plan, training["precision"], inferred)
    cluster = sized(data["cluster"], plan["tp"] * plan["pp"] * plan["cp"] * plan["dp"], inferred)
    rest = {
        **data,
        "model": model,
        "cluster": cluster,
        "profile": profile or data.get("profile"),
        "name": model["name"],
    }
    found: dict[str, tuple[Scenario, Data]] = {}
    first = None
    for batch, given in _batches(training, plan, row.get("measured_unit") == "iteration_s", cluster, inferred):
        whole = {**training, "global_batch_size": batch}
        for choice in _plans(given, habits, model, batch, inferred):
            try:
                scenario, file = _dealt({**rest, "training": whole, "plan": choice}, inferred)
            except FlopcastError as error:
                first = first or error
            else:
                found.setdefault(repr(file), (scenario, file))
    if not found:
        raise first or Unmodelled(
            f"no micro-batch and number of chunks share out global_batch_seqs = {batch} over dp = {plan['dp']} and "
            f"pp = {plan['pp']}"
        )
    choices, files = zip(*found.values(), strict=True)
    savings = (
        *(({"plan": changes}, rule) for changes, rule in _memory_savings(row, stated, plan, habits, cluster, model)),
        *_state_savings(plan, stated, habits, training, cluster["num_nodes"]),
    )
    rules = tuple(dict.fromkeys(inferred))
    return {"choices": choices, "files": files, "memory_savings": savings, "inferred": rules}


def _degrees(stated: Mapping[str, Any], inferred: list[str]) -> Data:
    """The plan with every degree: one where none is given."""
    if "dp" not in stated:
        raise Unmodelled("num_gpus is empty")
    open_ = [name for name in ("tp", "pp", "cp") if name not in stated]
    inferred += [f"{name} 1: the row gives none" for name in open_]
    plan = {**dict.fromkeys(open_, 1), **stated}
    if plan["tp"] == 1:
        plan["sequence_parallel"] = False
    return plan


def _complete_model(model: Data, training: Data, tp: int, inferred: list[str]) -> None:
    """Fill in the longest sequence, and pad the vocabulary so that tensor-parallel ranks share it."""
    model.setdefault("max_sequence_length", max(2048, training["sequence_length"]))
    vocabulary = model["vocab_size"]
    if vocabulary % tp:
        model["vocab_size"] = -(-vocabulary // (128 * tp)) * 128 * tp
        inferred.append(f"vocab {model['vocab_size']}: {vocabulary} padded so that tp divides it")
    if model.get("shared_expert_intermediate_size", 0) % tp:
        raise Unmodelled("tp does not divide the width of the shared experts")


def sized(cluster: Data, num_gpus: int, inferred: list[str]) -> Data:
    """The cluster with as many nodes as the job takes."""
    if "num_nodes" in cluster:
        return cluster
    node = cluster.get("node")
    own = node if isinstance(node, Mapping) else {"preset": node}
    preset = own.get("preset")
    if not isinstance(preset, str):
        return {**cluster, "num_nodes": 1}  # the records say what is wrong with it
    width = own.get("gpus_per_node") or load_preset("nodes", preset)["gpus_per_node"]
    if preset not in RACKS:
        return {**cluster, "num_nodes": max(1, -(-num_gpus // width))}
    # Jobs of a multiple of 64 GPUs take 16 of a rack's 18 trays, so that their groups do not straddle racks.
    domain = 64 if num_gpus % 64 == 0 else RACKS[preset]
    if num_gpus > domain:
        inferred.append(f"{domain} GPUs a rack")
    return {"nvlink_domain_gpus": domain, **cluster, "num_nodes": -(-num_gpus // domain) * domain // 4}


def _as_the_framework_does(stack: Data, model: Data, plan: Data, precision: str, inferred: list[str]) -> None:
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
    if model.get("num_experts") and plan["tp"] > 1 and not plan.get("sequence_parallel"):
        plan["sequence_parallel"] = True
        inferred.append("sequence_parallel y: a mixture of experts needs it where tp is above 1")


def _batches(
    training: Data, plan: Data, of_time: bool, cluster: Data, inferred: list[str]
) -> Iterator[tuple[int, Data]]:
    """Sequences of a step, and the plan with the micro-batch that goes with them: one of each, or those to choose from.

    A rate hardly depends on the batch where there is no pipeline; a step time does.
    """
    dp = plan["dp"]
    if "global_batch_size" in training:
        yield training["global_batch_size"], plan
        return
    if "microbatch_size" in plan:
        batch = plan["microbatch_size"] * dp
        inferred.append(f"global_batch_seqs {batch}: one micro-batch on each replica")
        yield batch, plan
        return
    if plan["pp"] > 1 or of_time:
        raise Unmodelled("neither global_batch_seqs nor micro_batch_seqs is given")
    # Assumed: on the eight GPUs of a usual node authors leave their framework's default, on more they fill the memory.
    sizes = MICROBATCHES if plan["tp"] * plan["cp"] * dp > 8 else MICROBATCHES[:1]
    inferred.append(f"global_batch_seqs: one micro-batch of {' or '.join(map(str, sizes))} on each replica")
    for size in sizes:
        yield size * dp, {**plan, "microbatch_size": size}


def _plans(plan: Data, habits: Habits, model: Data, batch: int, inferred: list[str]) -> Iterator[Data]:
    """The plan with every value of the fields that authors tune and the row does not state."""
    replica = batch // plan["dp"]
    if replica == 0:
        raise Unmodelled(f"global_batch_seqs = {batch} is smaller than dp = {plan['dp']}")
    sizes = _microbatch_sizes(plan, habits, replica, inferred)
    schedule = _schedule(plan, habits, inferred)
    chunks = _chunks(plan, habits, schedule, model["num_layers"], inferred)
    degrees = _expert_degrees(plan, model, inferred)
    modes = _recompute_modes(plan, habits, bool(model.get("num_experts")), inferred)
    for mode, size, count, degree in product(modes, sizes, chunks, degrees):
        if count > 1 and replica // size % plan["pp"]:
            continue
        kind = schedule
        if schedule in ("1f1b", "interleaved"):
            kind = "interleaved" if count > 1 else "1f1b"
        choice = {"microbatch_size": size, "num_chunks": count, "schedule": kind, "recompute": mode}
        yield {**plan, **choice, **degree}


def _microbatch_sizes(plan: Data, habits: Habits, replica: int, inferred: list[str]) -> list[int]:
    """Sizes of a micro-batch to choose from. [sequences]

    replica : what a replica takes in a step. [sequences]
    """
    if "microbatch_size" in plan:
        return [plan["microbatch_size"]]
    pp = plan["pp"]
    if pp > 1 and habits.get("microbatches") == "stages" and replica % pp == 0:
        inferred.append(f"micro_batch_seqs {replica // pp}: as many micro-batches as stages ({habits['source']})")
        return [replica // pp]
    inferred.append(f"micro_batch_seqs: the fastest of {', '.join(map(str, MICROBATCHES))} that fits")
    return [size for size in MICROBATCHES if replica % size == 0]


def _schedule(plan: Data, habits: Habits, inferred: list[str]) -> str:
    """The schedule, which tables of recipes do not call interleaved where they leave out the number of chunks."""
    schedule = str(plan.get("schedule", ""))
    if plan["pp"] == 1 or schedule not in ("", "1f1b"):
        return schedule or "1f1b"
    if habits.get("interleaved") is True and "num_chunks" not in plan:
        inferred.append(f"schedule interleaved: the framework's recipes for pipelines ({habits['source']})")
        return "interleaved"
    if not schedule:
        inferred.append("schedule 1f1b: the row gives none")
    return "1f1b"


def _chunks(plan: Data, habits: Habits, schedule: str, layers: int, inferred: list[str]) -> list[int]:
    """Numbers of model chunks a rank to choose from."""
    pp = plan["pp"]
    if "num_chunks" in plan:
        return [plan["num_chunks"] if pp > 1 else 1]
    if schedule != "interleaved" or pp == 1:
        return [1]
    usual = habits.get("interleaved", True)
    if usual is not True:
        inferred.append(f"vp_stages {usual}: what the framework takes where no split is given ({habits['source']})")
        return [usual]
    inferred.append("vp_stages: the fastest number of chunks that divides the layers")
    # Up to one layer a chunk ("set to maximum": NVIDIA/NeMo-Framework-Launcher, conf/training/gpt3/175b.yaml).
    return [count for count in range(2, (layers + 2) // pp + 1) if -layers % (pp * count) < 3] or [1]


def _expert_degrees(plan: Data, model: Data, inferred: list[str]) -> list[dict[str, int]]:
    """Expert-parallel degrees to choose from: at least a node's GPUs share the experts."""
    width, experts = plan["tp"] * plan["cp"] * plan["dp"], model.get("num_experts", 0)
    if "ep" in plan or not experts:
        return [{}]
    some = [2**power for power in range(3, 10) if width % 2**power == 0 and experts % 2**power == 0]
    if some:
        inferred.append(f"ep: the row gives none; the fastest of {', '.join(map(str, some))} that fits")
    return [{"ep": each} for each in some or [1]]


def _recompute_modes(plan: Data, habits: Habits, experts: bool, inferred: list[str]) -> list[str]:
    """What may be recomputed, the mildest first."""
    if "recompute" in plan:
        return [plan["recompute"]]
    if plan.get("recompute_modules"):
        return ["selective"]
    of_experts = habits.get("recompute_of_experts") if experts else None
    modes: list[str] = of_experts or habits.get("recompute", ["none", "full"])
    inferred.append(
        f"recompute: {' where it fits, else '.join(modes)}"
        if len(modes) > 1
        else f"recompute {modes[0]}: the framework's recipes ({habits['source']})"
    )
    return modes


def _dealt(data: Data, inferred: list[str]) -> tuple[Scenario, Data]:
    """Scenario and file; where layers do not divide over the stages, embedding and head take a layer's place."""
    if data["plan"].get("pipeline_layout"):
        return build_scenario(data, where="layout"), data
    layers = data["model"]["num_layers"]
    stages = int(data["plan"].get("pp", 1)) * int(data["plan"].get("num_chunks", 1))
    for both in ({}, {"head_as_layer": True}, {"embedding_as_layer": True, "head_as_layer": True}):
        if (layers + len(both)) % stages == 0:
            rule = f"{' and '.join(both)}".replace("_as_layer", " as a layer")
            break
    else:
        both, rule = {"uneven_layers": True}, "some stages hold a layer more"
    file = {**data, "plan": {**data["plan"], **both}}
    scenario = build_scenario(file, where="layout")
    if both:
        inferred.append(f"{rule}: {layers} layers do not divide over the stages")
    return scenario, file


def _state_savings(plan: Data, stated: Data, habits: Habits, training: Data, num_nodes: int) -> Iterator[MemorySaving]:
    """Ways to hold less of weights and optimizer, for runs whose state alone does not fit: a run that was measured did.

    Replicas share their state, if the row does not say how far they do. On one node the weights are frozen and adapters
    trained, on more nodes the optimizer waits on the host or, if that is not enough, adapters are trained, each where
    the framework's users do so; on one GPU the frozen weights are at last kept in four bits.
    """
    if "adapter_rank" in training or "optimizer_offload" in plan:
        return
    sharded = {"zero_stage": 3} if habits.get("shards") and "zero_stage" not in stated and plan["dp"] > 1 else {}
    if sharded:
        yield {"plan": sharded}, f"zero_stage 3: {UNSAID}"
    rank = habits.get("adapters") if num_nodes == 1 else None
    if rank:
        adapters = {"adapter_rank": rank}
        yield {"training": adapters}, f"adapter_rank {rank}: {UNSAID}"
        if sharded:
            yield {"plan": sharded, "training": adapters}, f"zero_stage 3, adapter_rank {rank}: {UNSAID}"
        if plan["dp"] == 1 and training["precision"] == "bf16":
            said = f"adapter_rank {rank}, frozen_precision nf4: {UNSAID}"
            yield {"training": {**adapters, "frozen_precision": "nf4"}}, said
    shares = habits.get("offload_optimizer", ()) if plan["dp"] * plan["cp"] > 1 else ()
    for share in shares:
        offload = {**sharded, "optimizer_offload": share}
        yield {"plan": offload}, f"{', '.join(f'{name} {offload[name]:g}' for name in offload)}: {UNSAID}"
    if shares and num_nodes > 1 and (rank := habits.get("adapters")):
        yield {"training": {"adapter_rank": rank}}, f"adapter_rank {rank}: {UNSAID}"


def _memory_savings(
    row: Row, stated: Data, plan: Data, habits: Habits, cluster: Data, model: Data
) -> Iterator[tuple[dict[str, Any], str]]:
    """Changes of the plan that a row leaves open, the mildest first, each with the rule that lists it."""
    if "zero_stage" not in stated and plan["zero_stage"] == 0 and plan["dp"] > 1:
        yield {"zero_stage": 1}, f"zero_stage 1: {UNSAID}"
    # Hosts of Grace hand memory over at 450 GB/s. Megatron's layers that are offloaded do not run again (NVIDIA/
    # Megatron-LM:megatron/core/transformer/transformer_config.py, cpu_offloading).
    grace = str(cluster.get("name", "")).startswith("GB") and stated.get("recompute", "none") == "none"
    shares = habits.get("offload", ()) if stated.get("recompute") == "full" else ()
    shares = shares or (habits.get("offload_to_grace", ()) if grace else ())
    for share in () if plan.get("offloaded_layers") else shares:
        some = int(share * model["num_layers"])
        rule = f"offloaded_layers {some}: the framework's recipes ({habits['source']}); {UNSAID}"
        yield {"offloaded_layers": some}, rule
    if row.get("doubtful") == "recompute" and stated.get("recompute") == "none":
        for mode in ("selective", "full"):
            yield {"recompute": mode}, f"recompute {mode}: recompute none is a configuration's, and does not fit"
    if model.get("num_experts") and "recompute" not in stated:
        for names in habits.get("recompute_modules_of_experts", ()):
            said = f"recompute_modules {', '.join(names)}: the framework's recipes ({habits['source']}); {UNSAID}"
            yield {"recompute": "selective", "recompute_modules": tuple(names)}, said
        for mode in ("selective", "full"):
            yield {"recompute": mode}, f"recompute {mode}: {UNSAID}"
    if row.get("doubtful") == "micro_batch_seqs" and "microbatch_size" in stated:
        size = stated["microbatch_size"]
        while size % 2 == 0:
            size //= 2
            rule = f"microbatch_size {size}: the source's {stated['microbatch_size']} is what a replica sees in a step"
            yield {"microbatch_size": size}, f"{rule}, and does not fit"
