"""The plan in Megatron-LM's options: degrees, pipeline, sharding, recomputation and offloading."""

from __future__ import annotations

from sim.foreign.exporters.writing import Options
from sim.foreign.importers.keys import table
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.specs.dealing import layers_of_stages
from sim.specs.plan import MEGATRON_ORDER, ParallelPlan


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
