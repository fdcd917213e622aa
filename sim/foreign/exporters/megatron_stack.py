"""The stack's switches in Megatron-LM's options: overlaps, fused kernels, how tokens reach experts, CUDA graphs."""

from __future__ import annotations

from sim.foreign.exporters.account import Options, exporter_table
from sim.foreign.exporters.megatron_model import KIND
from sim.work.routing import share_alone


def say_stack(options: Options) -> None:
    """Options of the stack, as far as there are any."""
    options.group("Overlaps and kernels")
    _data_parallel(options)
    _tensor_parallel(options)
    _switches(options)
    _context(options)
    _dispatch(options)
    _graphs(options)


def _data_parallel(options: Options) -> None:
    account, scenario = options.account, options.account.scenario
    stack, plan = scenario.stack, scenario.plan
    reduces, gathers = stack.overlap_grad_reduce, stack.overlap_param_gather
    sharded = options.has("use-distributed-optimizer")
    if reduces:
        options.say("overlap-grad-reduce", field="stack.overlap_grad_reduce")
    if gathers and sharded and reduces:
        options.say("overlap-param-gather", field="stack.overlap_param_gather")
    elif gathers and sharded:
        account.leave("stack.overlap_param_gather", "--overlap-param-gather needs --overlap-grad-reduce")
    elif gathers:
        account.decide(
            "stack.overlap_param_gather", f"no distributed optimizer gathers weights (ZeRO {plan.zero_stage})"
        )
    fused = stack.fused_gradient_accumulation and not (
        options.has("use-torch-fsdp2") or options.has("use-megatron-fsdp")
    )
    if not fused:
        options.say("no-gradient-accumulation-fusion", field="stack.fused_gradient_accumulation")
    if stack.fused_gradient_accumulation and not fused:
        account.decide("stack.fused_gradient_accumulation", "off under FSDP, which it does not go with")
    eight = stack.fp8_gathers and scenario.training.precision == "fp8" and plan.zero_stage
    if eight and plan.optimizer_offload:
        account.leave("stack.fp8_gathers", "with the optimizer on the host weights are gathered in 16 bits")
    elif eight:
        options.say("fp8-param-gather", field="stack.fp8_gathers")
    elif stack.fp8_gathers:
        account.decide("stack.fp8_gathers", "nothing is gathered in 8 bits")


def _tensor_parallel(options: Options) -> None:
    account, plan = options.account, options.account.scenario.plan
    if not account.scenario.stack.async_tensor_parallel:
        return
    if plan.tp > 1 and plan.sequence_parallel:
        options.say("tp-comm-overlap", field="stack.async_tensor_parallel")
    else:
        account.decide("stack.async_tensor_parallel", "without sequence parallelism nothing arrives in pieces")


def _switches(options: Options) -> None:
    """Switches that stand for a value of a field each."""
    stack, account = options.account.scenario.stack, options.account
    for field, (value, names) in exporter_table(KIND)["switches"].items():
        if getattr(stack, field) == value:
            for name, *values in names:
                options.say(name, *values, field=f"stack.{field}")
    if stack.attention == "flash":
        account.decide("stack.attention", "FlashAttention or cuDNN's kernel, what the GPU has (attention-backend auto)")


def _context(options: Options) -> None:
    stack, account = options.account.scenario.stack, options.account
    if options.account.scenario.plan.cp == 1:
        return
    if stack.context_by_heads:
        options.say("cp-comm-type", "a2a", field="stack.context_by_heads")
    else:
        options.say("cp-comm-type", "p2p" if stack.overlap_context else "allgather", field="stack.overlap_context")
    if not stack.balanced_context:
        account.leave("stack.balanced_context", "its context-parallel ranks hold a piece from each end")


def _dispatch(options: Options) -> None:
    """How tokens reach experts."""
    account, scenario = options.account, options.account.scenario
    stack, plan = scenario.stack, scenario.plan
    if not scenario.model.num_experts:
        return
    options.group("Experts")
    if scenario.training.precision not in ("fp16", "fp32"):
        options.say("moe-grouped-gemm")
    options.say("moe-permute-fusion")
    if stack.expert_dispatcher == "alltoall":
        options.say("moe-token-dispatcher-type", "alltoall", field="stack.expert_dispatcher")
    else:
        if stack.expert_dispatcher == "deepep" and scenario.training.pad_to_capacity:
            why = "it does not pad what experts take to their capacity"
            account.refuse("stack.expert_dispatcher", why, "--set stack.expert_dispatcher=alltoall")
        options.say("moe-token-dispatcher-type", "flex", field="stack.expert_dispatcher")
        options.say("moe-flex-dispatcher-backend", stack.expert_dispatcher, field="stack.expert_dispatcher")
        if stack.dispatcher_sms is not None:
            options.say(f"moe-{stack.expert_dispatcher}-num-sms", stack.dispatcher_sms, field="stack.dispatcher_sms")
    if not stack.overlap_experts:
        return
    if plan.ep == 1 or share_alone(scenario) == 1.0:
        account.leave("stack.overlap_experts", "this plan has no micro-batch beside which tokens could travel")
    else:
        options.say("overlap-moe-expert-parallel-comm", field="stack.overlap_experts")


def _graphs(options: Options) -> None:
    stack = options.account.scenario.stack
    if stack.cuda_graphs == "none":
        return
    options.group("CUDA graphs")
    whole = stack.cuda_graphs == "full_iteration"
    both = whole and options.has("overlap-moe-expert-parallel-comm")  # versions that run both have a name for it
    name = "full_iteration" if both else "local" if whole else "transformer_engine"
    options.say("cuda-graph-impl", name, fields=("stack.cuda_graphs", "stack.cuda_graph_scope"))
    if not both:
        options.say("cuda-graph-scope", *(("full_iteration",) if whole else stack.cuda_graph_scope))
    options.say("te-rng-tracker")
    if whole:
        options.say("no-check-for-nan-in-loss-and-grad")  # a check would wait for the GPU inside the graph
    if whole and options.account.scenario.model.num_experts and not options.account.scenario.training.pad_to_capacity:
        options.account.ask("moe_paged_stash", exporter_table(KIND)["experts_in_graphs"])
