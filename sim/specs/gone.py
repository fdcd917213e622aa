"""Fields that records had in the release before, and what to write instead of each."""

from __future__ import annotations

_COUNTED = "what the host does there is counted where counted_launches: true; leave this out"

GONE: dict[str, dict[str, str]] = {
    "StackSpec": {
        "causal_attention": "write attention: flash, which skips the masked half of the scores, or attention: math",
        "prefetched_layers": "ZeRO stage 3 gathers one layer ahead; leave it out, or write overlap_param_gather: false",
        "routing_launches": "a router takes 30 launches, and 30 more where it is not fused; write fused_router instead",
        "dispatch_launches": _COUNTED,
        "launches_per_expert": f"{_COUNTED}, or write fused_experts: true for kernels that are one launch",
        "fp8_launches_of_experts": _COUNTED,
        "fp8_launches_per_expert": _COUNTED,
        "checkpoint_launches": _COUNTED,
        "rotary_sequence": f"{_COUNTED}, or write fused_rotary: true where nothing is looked up",
        "context_sequence": _COUNTED,
        "dispatcher_slowdown": "it is the same for every stack; leave it out",
        "dispatcher_sm_rate": "it is the same for every stack; leave it out, and write dispatcher_sms",
        "unbound_slowdown": "it is 2; leave it out, and write cluster.node.launch_slowdown where a host is slower",
        "graph_launch": "it is 2 us; leave it out, and write what was measured as profile.host.graph_launch",
    },
    "Provenance": dict.fromkeys(
        ("measured_runs", "measured_on", "measured_scenarios"),
        "profiles keep what measured runs tell of others now; make this one anew with flopcast anchor",
    ),
}
"""Record -> a field's name in files -> what the message about it ends with."""
