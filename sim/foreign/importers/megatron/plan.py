"""The plan of Megatron-LM's arguments: degrees, sharding, recomputation, chunks and where layers lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.megatron.deepspeed_file import take_zero
from sim.foreign.importers.megatron.layers import KIND, take_switches
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.specs.plan import RECOMPUTE_MODULES, layout_stages


def read_plan(arguments: Arguments, config: Mapping[str, Any] | None = None) -> Section:
    """Degrees, sharding and recomputation.

    config : of DeepSpeed, where its JSON could be read.
    """
    ledger = arguments.ledger
    plan = Section("plan", ledger)
    for field, names in table(KIND)["degrees"].items():
        value = arguments.whole(*names)
        if value is not None or field != "cp":
            plan.settle(field, value, f"--{names[0]}", 1, f"Megatron-LM's default of --{names[0]}")
    ulysses = arguments.whole("ds-sequence-parallel-size")
    if ulysses is not None and ulysses > 1:
        plan.took("cp", ulysses, "--ds-sequence-parallel-size: context parallelism by heads")
    if arguments.has("sequence-parallel"):
        if plan["tp"] > 1:
            plan.took("sequence_parallel", True, "--sequence-parallel")
        else:
            ledger.ignore("--sequence-parallel", "", "without effect at a tensor-parallel degree of 1")
    if "deepspeed" in arguments or config:
        take_zero(plan, arguments, config)
    else:
        _sharding(plan, arguments)
    _recompute(plan, arguments)
    _offload(plan, arguments)
    partition = arguments.text("pp-partition-method")
    if partition is not None and "embed" in partition:
        plan.took("embedding_as_layer", True, "--pp-partition-method")
        plan.took("head_as_layer", True, "--pp-partition-method")
    elif partition is not None:
        ledger.ignore("--pp-partition-method", partition, "layers are dealt evenly", matters=True)
    take_switches(arguments, plan, "plan_switches")
    return plan


def _sharding(plan: Section, arguments: Arguments) -> None:
    """What data parallelism shards: by the distributed optimizer, Megatron-FSDP, PyTorch's FSDP2 or DeepSpeed."""
    optimizer = (arguments.raw("optimizer") or [""])[0]
    layerwise = arguments.has("use-layer-wise-distributed-optimizer")
    zero = 1 if arguments.has("use-distributed-optimizer") or layerwise else 0
    stage, ledger = arguments.whole("zero-stage", least=0), arguments.ledger
    strategy, stages = arguments.text("data-parallel-sharding-strategy"), table(KIND)["sharding_strategies"]
    fsdp, fsdp2 = arguments.has("use-megatron-fsdp", "use-custom-fsdp"), arguments.has("use-torch-fsdp2")
    if strategy is not None and strategy not in stages:
        rule = f"must be one of {', '.join(stages)}"
        raise SpecError(f"{ledger.where}: --data-parallel-sharding-strategy {short(strategy)!r} {rule}")
    if stage is not None:
        plan.took("zero_stage", min(stage, 3), "--zero-stage")
    elif fsdp:
        # megatron/core/distributed/distributed_data_parallel_config.py.
        said = None if strategy is None else stages[strategy]
        why = "Megatron-LM's default of --data-parallel-sharding-strategy, no_shard"
        plan.settle("zero_stage", said, "--data-parallel-sharding-strategy", 0, why)
    elif fsdp2:
        plan.took("zero_stage", 3, "--use-torch-fsdp2")
        kept = arguments.text("torch-fsdp2-reshard-after-forward") == "false"
        if arguments.has("torch-fsdp2-no-reshard-after-forward") or kept:
            plan.took("reshard_after_forward", False, "--torch-fsdp2-no-reshard-after-forward")
    elif layerwise or (optimizer.startswith("dist_") and not zero):
        # megatron/core/optimizer/layer_wise_optimizer.py: ranks hold whole layers' states, as many bytes as in ZeRO 1.
        plan.took("zero_stage", 1, f"--optimizer {optimizer}: it deals states out by layers")
    else:
        plan.settle("zero_stage", zero or None, "the distributed optimizer", 0, "no --use-distributed-optimizer")
    if strategy is not None and not fsdp:
        ledger.ignore("--data-parallel-sharding-strategy", strategy, "without effect without --use-megatron-fsdp")


def _offload(plan: Section, arguments: Arguments) -> None:
    """What waits in host memory: layers' activations, and a share of the optimizer."""
    layers = arguments.whole("cpu-offloading-num-layers", least=0)
    if layers:
        plan.took("offloaded_layers", layers, "--cpu-offloading-num-layers")
    share = arguments.number("optimizer-offload-fraction")
    kind = (arguments.raw("optimizer") or [""])[0].replace("-", "").lower()
    if kind in ("cpuadam", "hybridadam"):  # Pai-Megatron-Patch's: the second places a share, or as memory fills
        policy = arguments.text("optimizer-offload-policy")
        if policy == "auto":
            why = "how much waits in host memory is decided as memory fills; none is priced, see plan.optimizer_offload"
            plan.ledger.ignore("--optimizer-offload-policy", policy, why, matters=True)
        else:
            plan.took("optimizer_offload", 1.0 if share is None else share, f"--optimizer {kind}")
    elif arguments.has("optimizer-cpu-offload"):
        # megatron/training/arguments.py: everything, unless a fraction is given.
        plan.took("optimizer_offload", 1.0 if share is None else share, "--optimizer-cpu-offload")
    elif share is not None:
        plan.ledger.ignore("--optimizer-offload-fraction", share, "without effect without --optimizer-cpu-offload")


def take_sharding_group(plan: Section, arguments: Arguments) -> None:
    """Instances of the distributed optimizer: so many groups shard apart."""
    name = "num-distributed-optimizer-instances"
    instances, copies = arguments.whole(name) or 1, plan["dp"] * plan.get("cp", 1)
    if instances > 1 and (not plan["zero_stage"] or copies % instances):
        why = "nothing is sharded" if not plan["zero_stage"] else f"does not divide dp · cp = {copies}"
        plan.ledger.ignore(f"--{name}", instances, why)
    elif instances > 1:
        plan.took("sharding_group", copies // instances, f"--{name}")
    outer = arguments.text("outer-dp-sharding-strategy")
    if outer == "optim" and plan["zero_stage"] == 3 and "sharding_group" in plan:
        plan.took("outer_zero_stage", 1, "--outer-dp-sharding-strategy")
    elif outer not in (None, "no_shard"):
        why = "without effect without several instances of optim_grads_params"
        plan.ledger.ignore("--outer-dp-sharding-strategy", outer, why)


def _recompute(plan: Section, arguments: Arguments) -> None:
    ledger = arguments.ledger
    granularity = arguments.text("recompute-granularity")
    method = arguments.text("recompute-method")
    layers = arguments.whole("recompute-num-layers", least=0)
    modules = arguments.words("recompute-modules")
    old = arguments.text("activations-checkpoint-method")
    switch = arguments.has("checkpoint-activations")
    each = arguments.whole("checkpoint-num-layers", "activations-checkpoint-num-layers", least=0)
    if arguments.has("recompute-activations"):  # whatever else is said (megatron/training/arguments.py, validate_args)
        granularity = "selective"
    if granularity is None and (switch or old):
        granularity, layers = "full", each if layers is None else layers
        method = old if old in ("uniform", "block") else method
    if granularity not in (None, "full", "selective"):
        raise SpecError(f"{ledger.where}: --recompute-granularity {short(granularity)!r} must be full or selective")
    plan.settle("recompute", granularity, "recomputation of activations", "none", "no --recompute-granularity")
    if granularity == "selective":
        names = [name for name in modules if name in RECOMPUTE_MODULES]
        for other in modules:
            if other not in names:
                ledger.ignore("--recompute-modules", other, "not modelled", matters=True)
        if names:
            plan.took("recompute_modules", names, "--recompute-modules")
    elif modules:
        ledger.ignore("--recompute-modules", " ".join(modules), "without effect unless recomputation is selective")
    if granularity != "full":
        for name, value in (("method", method), ("num-layers", layers)):
            if value is not None:
                ledger.ignore(f"--recompute-{name}", value, "without effect unless whole layers are recomputed")
        return
    if method not in (None, "uniform", "block"):
        raise SpecError(f"{ledger.where}: --recompute-method {short(method)!r} must be uniform or block")
    if method == "block":
        plan.took("recompute_method", method, "--recompute-method")
    if layers is not None and (layers > 1 or method == "block"):
        if layers == 0:
            plan.took("recompute", "none", "--recompute-num-layers 0")
            plan.pop("recompute_method", None)
        else:
            plan.took("recompute_num_layers", layers, "--recompute-num-layers")


def take_fewer_layers(plan: Section, layers: int) -> None:
    """Recompute no more layers of a stage than it has: Megatron-LM stops at its end."""
    number, most = plan.get("recompute_num_layers", 1), -(-layers // (plan["pp"] * plan.get("num_chunks", 1)))
    if number > most:
        plan.assume("recompute_num_layers", most, f"a stage has no more layers than that, not {number}")


def take_chunks(plan: Section, arguments: Arguments, model: Section) -> None:
    """Virtual stages, given as layers of each or as stages of a rank, and what each holds."""
    where, pp, layers = arguments.ledger.where, plan["pp"], model["num_layers"]
    per_stage = arguments.whole("num-layers-per-virtual-pipeline-stage")
    chunks = arguments.whole("num-virtual-stages-per-pipeline-rank")
    source = "--num-virtual-stages-per-pipeline-rank"
    if per_stage is not None and chunks is not None:
        raise SpecError(
            f"{where}: --num-layers-per-virtual-pipeline-stage and {source} both say how many, which Megatron-LM "
            "refuses; keep one"
        )
    ends = {end: arguments.whole(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last")}
    layout = arguments.text("pipeline-model-parallel-layout")
    if layout is not None:
        stages = _stages_of(layout, where)
        if stages % pp:
            raise SpecError(
                f"{where}: --pipeline-model-parallel-layout {short(layout)!r} has {stages} stages, no multiple "
                f"of the {pp} pipeline ranks"
            )
        source, chunks = "--pipeline-model-parallel-layout", stages // pp
        plan.took("pipeline_layout", layout.strip("\"'"), source)
    elif per_stage is not None:
        dealt = layers + bool(plan.get("embedding_as_layer")) + bool(plan.get("head_as_layer"))
        if dealt % (pp * per_stage):
            raise SpecError(f"{where}: {dealt} layers over {pp} pipeline ranks do not make stages of {per_stage}")
        source, chunks = "--num-layers-per-virtual-pipeline-stage", dealt // (pp * per_stage)
    if layout is None and set(ends.values()) != {None} and pp > 1:
        _ends(plan, model, ends, chunks or 1, where)
    folded = arguments.text("schedules-method")
    if folded not in (None, "dualpipev"):
        raise SpecError(f"{where}: --schedules-method {short(folded)!r} is not modelled")
    chunks = 2 if folded else chunks
    stages = pp * (chunks or 1)
    idle = [int(number) for number in arguments.words("noop-layers") if number.isdigit()]
    if idle:
        _leave_out(plan, model, idle, stages, where)
    dealt = layers + bool(plan.get("embedding_as_layer")) + bool(plan.get("head_as_layer"))
    if "deepspeed" in arguments and "no-pipeline-parallel" not in arguments and dealt % stages:
        plan.took("uneven_layers", True, "DeepSpeed deals what the stages do not divide")
    if folded:
        plan.took("num_chunks", 2, "--schedules-method dualpipev")
        plan.took("schedule", "dualpipe_v", "--schedules-method dualpipev")
    elif chunks is not None and chunks > 1:
        plan.took("num_chunks", chunks, source)
        plan.took("schedule", "interleaved", source)
    else:
        plan.assume("schedule", "1f1b", "Megatron-LM's without virtual stages")
    name = "microbatch-group-size-per-virtual-pipeline-stage"
    group = arguments.whole(name)
    if group is not None and plan.get("schedule") == "interleaved":
        plan.took("microbatch_group", group, f"--{name}")
    elif group is not None:
        plan.ledger.ignore(f"--{name}", group, "without effect without virtual stages")


def _leave_out(plan: Section, model: Section, idle: list[int], stages: int, where: str) -> None:
    """Stages of equally many layers, of which some do nothing (MindSpeed's noop layers)."""
    layers = model["num_layers"] + len(set(idle))
    if layers % stages or max(idle) >= layers:
        raise SpecError(f"{where}: --noop-layers of {layers} layers, which {stages} stages cannot share evenly")
    each = layers // stages
    counts = [sum(layer not in idle for layer in range(each * at, each * (at + 1))) for at in range(stages)]
    if stages > 1:
        plan.took("pipeline_layout", layout_of(counts, model.get("num_mtp_layers", 0)), "--noop-layers")


def _ends(plan: Section, model: Section, ends: dict[str, int | None], chunks: int, where: str) -> None:
    """Layers of the first and of the last pipeline rank; the other ranks share the rest (megatron/core/transformer/
    transformer_block.py, get_num_layers_to_build).
    """
    pp, layers = plan["pp"], model["num_layers"]
    given = {end: number for end, number in ends.items() if number is not None}
    names = " and ".join(f"--decoder-{end}-pipeline-num-layers" for end in given)
    rest, between = layers - sum(given.values()), pp - len(given)
    if rest < 0 or (between and rest % between) or (not between and rest):
        raise SpecError(f"{where}: {names} leave {rest} of {layers} layers, which {between} ranks cannot share evenly")
    ranks = [rest // between if between else 0] * pp
    ranks[0], ranks[-1] = given.get("first", ranks[0]), given.get("last", ranks[-1])
    odd = next((number for number in ranks if number % chunks), None)
    if odd is not None:
        raise SpecError(f"{where}: {names}: a rank's {odd} layers do not make {chunks} virtual stages")
    stages = [number // chunks for _ in range(chunks) for number in ranks]
    plan.took("pipeline_layout", layout_of(stages, model.get("num_mtp_layers", 0)), names)


def _stages_of(layout: str, where: str) -> int:
    """Stages of a layout such as `Et*3|(tt|)*29m|L`."""
    try:
        return len(layout_stages(layout.strip("\"'")[:1000]))
    except ValueError as error:
        raise SpecError(
            f"{where}: --pipeline-model-parallel-layout {short(layout)!r} cannot be read: {error}"
        ) from None
