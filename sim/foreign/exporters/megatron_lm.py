"""Megatron-LM: plan and options in arrays of a script, as its own examples have them, for `pretrain_gpt.py`."""

from __future__ import annotations

import shlex
from typing import Any

from sim.foreign.exporters.account import Account, Options, launcher_lines
from sim.foreign.exporters.megatron_model import is_hybrid, say_model, say_training
from sim.foreign.exporters.megatron_stack import say_stack
from sim.foreign.importers.keys import table
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.specs.plan import MEGATRON_ORDER, ParallelPlan, layers_of_stages


def say_plan(options: Options) -> None:
    """Options of the plan; what Megatron-LM cannot run is refused."""
    plan, account = options.account.scenario.plan, options.account
    options.group("Plan")
    for field, names in table("megatron")["degrees"].items():
        if field != "microbatch_size":
            options.say(names[0], getattr(plan, field), field=f"plan.{field}")
    account.decide("plan.dp", f"{plan.num_gpus:,} processes divided by tp · pp · cp")
    _placement(options, plan)
    options.tell("plan.sequence_parallel", "sequence-parallel")
    if account.scenario.model.num_experts:
        options.say("expert-model-parallel-size", plan.ep, field="plan.ep")
        options.say("expert-tensor-parallel-size", plan.etp, field="plan.etp")
    _pipeline(options, plan)
    _sharding(options, plan)
    _recompute(options, plan)
    _offload(options, plan)


def _placement(options: Options, plan: ParallelPlan) -> None:
    """Two orders are known; where there is one of a dimension, its place in them does not matter."""
    account = options.account

    def told(order: str) -> list[str]:
        return [name for name in order.split("-") if getattr(plan, name) > 1]

    if told(plan.placement) == told(MEGATRON_ORDER):
        return
    if told(plan.placement) == told("tp-cp-pp-dp"):
        options.say("use-tp-pp-dp-mapping", field="plan.placement")
        return
    account.refuse(
        "plan.placement", f"ranks lie as {MEGATRON_ORDER} or tp-cp-pp-dp", "--set plan.placement=tp-cp-pp-dp"
    )


def _pipeline(options: Options, plan: ParallelPlan) -> None:
    account = options.account
    model = account.scenario.model
    if plan.schedule == "interleaved" and plan.num_chunks == 1:
        account.decide("plan.schedule", "1f1b: with one chunk a rank they are the same")
    if plan.pp == 1:
        if plan.pipeline_layout:
            account.decide("plan.pipeline_layout", "there is no pipeline")
        return
    interleaved = plan.num_chunks > 1
    overlaps = account.scenario.stack.overlap_p2p
    if interleaved and plan.pp == 2 and not overlaps:
        account.decide("stack.overlap_p2p", "interleaved on two ranks, sends overlap always")
    elif interleaved and not overlaps:
        options.say("no-overlap-p2p-communication", field="stack.overlap_p2p")
    elif interleaved:
        account.cover("stack.overlap_p2p")
    elif overlaps is True:
        account.decide("stack.overlap_p2p", "1F1B waits for its sends")
    layers = layers_of_stages(model.num_layers, plan)
    options.tell("plan.pipeline_layout", "pipeline-model-parallel-layout")
    dealt = model.num_layers + plan.embedding_as_layer + plan.head_as_layer
    if not plan.pipeline_layout and plan.uneven_layers and dealt % plan.num_stages:
        layout = layout_of(layers, model.num_mtp_layers)
        fields = ("plan.uneven_layers", "plan.embedding_as_layer", "plan.head_as_layer")
        options.say("pipeline-model-parallel-layout", layout, fields=fields)
        account.decide("plan.pipeline_layout", "written out, as plan.uneven_layers deals them")
        account.decide("plan.uneven_layers", "written out as a layout")
    elif not plan.pipeline_layout:
        if interleaved:
            options.say("num-virtual-stages-per-pipeline-rank", plan.num_chunks, field="plan.num_chunks")
        options.tell("plan.embedding_as_layer", "account-for-embedding-in-pipeline-split")
        options.tell("plan.head_as_layer", "account-for-loss-in-pipeline-split")
        if plan.uneven_layers:
            account.decide("plan.uneven_layers", "the stages divide the layers")
    if interleaved:
        options.tell("plan.microbatch_group", "microbatch-group-size-per-virtual-pipeline-stage")


def _sharding(options: Options, plan: ParallelPlan) -> None:
    """Data parallelism: DDP, the distributed optimizer, Megatron-FSDP, or PyTorch's FSDP2 where only that can."""
    account, stage = options.account, plan.zero_stage
    muon = account.scenario.training.optimizer == "muon"
    if muon:
        if stage:
            account.decide("plan.zero_stage", "dist_muon deals whole layers' states to ranks, instead of cutting them")
        return
    if plan.reshard_after_forward == "default":
        account.decide("plan.reshard_after_forward", "true, as without a pipeline")
    if not plan.reshard_after_forward:
        options.say("use-torch-fsdp2", field="plan.zero_stage")
        options.say("torch-fsdp2-no-reshard-after-forward", field="plan.reshard_after_forward")
    elif stage:
        options.say("use-distributed-optimizer", field="plan.zero_stage")
        if stage > 1:
            strategies = {ours: theirs for theirs, ours in table("megatron")["sharding_strategies"].items()}
            options.say("use-megatron-fsdp", field="plan.zero_stage")
            options.say("init-model-with-meta-device")  # else every GPU would hold the whole model at first
            options.say("data-parallel-sharding-strategy", strategies[stage], field="plan.zero_stage")
            options.say("ckpt-format", "fsdp_dtensor")  # the only one that Megatron-FSDP can save
    instances = plan.num_replicas // (plan.sharding_group or plan.num_replicas)
    if instances > 1:
        options.say("num-distributed-optimizer-instances", instances, field="plan.sharding_group")
    elif plan.sharding_group is not None:
        account.decide("plan.sharding_group", "all that hold the same part, as without it")
    if plan.outer_zero_stage and instances > 1:
        options.say("outer-dp-sharding-strategy", "optim", field="plan.outer_zero_stage")
    elif plan.outer_zero_stage:
        account.decide("plan.outer_zero_stage", "there is one group only")


def _recompute(options: Options, plan: ParallelPlan) -> None:
    if plan.recompute == "selective":
        options.say("recompute-granularity", "selective", field="plan.recompute")
        options.say("recompute-modules", *plan.recompute_modules, field="plan.recompute_modules")
    elif plan.recompute == "full":
        options.say("recompute-granularity", "full", field="plan.recompute")
        options.say("recompute-method", plan.recompute_method, field="plan.recompute_method")
        options.say("recompute-num-layers", plan.recompute_num_layers, field="plan.recompute_num_layers")


def _offload(options: Options, plan: ParallelPlan) -> None:
    options.tell("plan.offloaded_layers", "cpu-offloading-num-layers")
    if plan.optimizer_offload:
        options.say("optimizer-cpu-offload", field="plan.optimizer_offload")
        options.say("optimizer-offload-fraction", plan.optimizer_offload, field="plan.optimizer_offload")
        options.tell("stack.overlap_optimizer_offload", "overlap-cpu-optimizer-d2h-h2d")


def megatron_options(account: Account) -> Options:
    """The scenario in Megatron-Core's options, whatever spells them. Raises SpecError: it cannot run the plan."""
    options = Options(account)
    for say in (say_model, say_plan, say_training, say_stack):
        say(options)
    account.settle()
    return options


def export_megatron_lm(account: Account) -> tuple[str, dict[str, Any]]:
    """The script, and its words by the arrays they stand in."""
    account.cover("stack.nvls")
    options = megatron_options(account)
    arrays: dict[str, list[str]] = {}
    lines: list[str] = []
    for heading, said in options.groups.items():
        if not said:
            continue
        name = f"{heading.upper().replace(' ', '_')}_ARGS"
        words = [[f"--{option.name}", *(str(_plain(value)) for value in option.values)] for option in said]
        for option, spelled in zip(said, words, strict=True):
            account.say(spelled[0], " ".join(spelled[1:]), *option.fields)
        lines += [f"{name}=(", *(f"    {shlex.join(spelled)}" for spelled in words), ")"]
        arrays[name] = [word for spelled in words for word in spelled]
    program = "pretrain_mamba.py" if is_hybrid(account.scenario.model) else "pretrain_gpt.py"
    behind = [*(f'"${{{name}[@]}}"' for name in arrays), '"$@"']
    lines += [
        "",
        *_connections(account, options),
        *_switches(account),
        *launcher_lines(account.scenario, program, behind),
    ]
    return "\n".join(lines) + "\n", {"program": program, "arguments": arrays}


def _plain(value: Any) -> Any:
    """A number without a needless point."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) > 1 else value


def _connections(account: Account, options: Options) -> list[str]:
    """Hardware queues: one, so that collectives keep their place between kernels; more where they run beside them."""
    plan = account.scenario.plan
    if options.has("use-megatron-fsdp") or options.has("use-torch-fsdp2"):
        return ["unset CUDA_DEVICE_MAX_CONNECTIONS"]
    if options.has("overlap-moe-expert-parallel-comm"):
        return ["export CUDA_DEVICE_MAX_CONNECTIONS=32"]
    return ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if plan.tp > 1 or plan.cp > 1 else []


def _switches(account: Account) -> list[str]:
    """Whether NCCL has NVLink's switches add: its own default where it may."""
    if account.scenario.stack.nvls:
        return []
    account.say("NCCL_NVLS_ENABLE", 0, "stack.nvls")
    return ["export NCCL_NVLS_ENABLE=0"]
