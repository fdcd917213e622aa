"""Random scenarios: any model, plan, training and stack that go together, from a seed."""

import random
from functools import cache

from sim.errors import SpecError
from sim.foreign.exporters import export_scenario
from sim.foreign.exporters.account import exporter_table
from sim.specs import build_scenario, preset_names
from sim.specs.writing import whole_yaml
from sim.specs.yaml12 import parse_yaml


def random_scenario(rng, framework=None):
    """The first of the seed's tries whose parts go together; a framework's own stack, where one is named."""
    while True:
        model = _model(rng)
        data = {"name": "random", "model": model, "cluster": "superpod-h100", "plan": _plan(rng, model)}
        data["training"] = _training(rng, data["plan"])
        data["stack"] = _stack(rng, framework, model)
        try:
            return build_scenario(data)
        except SpecError:
            continue


@cache
def scenario_of(framework, seed):
    """A random scenario; of a few models, and mostly of what the framework can run, where it knows few."""
    rng = random.Random(seed)
    scenario = random_scenario(rng, rng.choice([None, None, exporter_table(framework)["framework"]]))
    if framework not in ("torchtitan", "deepspeed"):
        return scenario
    likely = {
        "torchtitan": {
            "plan": {"zero_stage": 3, "sequence_parallel": scenario.plan.tp > 1, "offloaded_layers": 0},
            "training": {"optimizer": "adam", "moment_precision": "fp32", "master_precision": "fp32", "adapter_rank": 0},
            "model": {"preset": rng.choice(sorted(preset_names("models"))), "num_mtp_layers": 0},
        },
        "deepspeed": {
            "plan": {"tp": 1, "pp": 1, "cp": 1, "etp": 1, "num_chunks": 1, "schedule": "1f1b", "pipeline_layout": ""},
            "training": {"moment_precision": "fp32", "master_precision": "fp32"},
        },
    }[framework]  # fmt: skip
    data = parse_yaml(whole_yaml(scenario), "random")
    if rng.random() < 0.8:
        for section, fields in likely.items():
            data[section] = fields if "preset" in fields else {**data[section], **fields}
    data["plan"] |= {"recompute": rng.choice(["none", "full", "per_op"]), "recompute_modules": []}
    data["plan"]["sequence_parallel"] = data["plan"]["tp"] > 1 and data["plan"]["sequence_parallel"]
    try:
        return build_scenario(data)
    except SpecError:
        return scenario


def exported_of(framework, seed):
    """The export of a random scenario, or None where it is refused."""
    try:
        return export_scenario(scenario_of(framework, seed), framework)
    except SpecError:
        return None


def _some(rng, chance, **fields):
    return fields if rng.random() < chance else {}


def _model(rng):
    if rng.random() < 0.25:
        return {"preset": rng.choice(sorted(preset_names("models")))} | _some(rng, 0.3, num_mtp_layers=0)
    layers, heads = rng.choice([4, 8, 12, 16, 24, 30]), rng.choice([8, 16, 32])
    hidden = heads * rng.choice([64, 128])
    model = {
        "num_layers": layers, "hidden_size": hidden, "num_heads": heads, "vocab_size": rng.choice([32000, 50257, 128256]),
        "norm": rng.choice(["layernorm", "rmsnorm"]), "position": rng.choice(["learned", "rotary", "none"]),
        "max_sequence_length": rng.choice([2048, 8192]), "tied_embeddings": rng.random() < 0.5,
        "bias": rng.random() < 0.5, "dropout": rng.choice([0.0, 0.1]), "gated_mlp": rng.random() < 0.6,
        **_some(rng, 0.5, num_kv_heads=rng.choice([2, 4, 8])), **_some(rng, 0.3, head_dim=rng.choice([64, 128, 256])),
        **_some(rng, 0.6, intermediate_size=rng.choice([4, 8, 11]) * 512), **_some(rng, 0.2, qkv_bias=True),
        **_some(rng, 0.1, norm_bias=False), **_some(rng, 0.2, query_key_norm=rng.choice(["head", "all"])),
        **_some(rng, 0.05, norms_per_layer=rng.choice([1, 4])), **_some(rng, 0.05, head_bias=True),
        **_some(rng, 0.05, attention_sinks=True), **_some(rng, 0.05, embedding_norm=True),
        **_some(rng, 0.15, num_mtp_layers=rng.choice([1, 2])), **_some(rng, 0.05, attention_gate=True),
    }  # fmt: skip
    if rng.random() < 0.4:
        model |= {
            "num_experts": rng.choice([8, 16, 64]), "experts_per_token": rng.choice([1, 2, 6]),
            "expert_intermediate_size": rng.choice([512, 1024]),
            **_some(rng, 0.3, shared_expert_intermediate_size=1024, shared_expert_gate=rng.random() < 0.3),
            **_some(rng, 0.3, num_dense_layers=1), **_some(rng, 0.2, num_expert_groups=4, expert_groups_per_token=2),
            **_some(rng, 0.2, mlp_layer_types=["dense", "sparse"]),
        }  # fmt: skip
    if rng.random() < 0.2:
        model |= {"key_value_rank": 256, "rotary_head_dim": 32, "head_dim": 96, "value_head_dim": 64}
        model |= _some(rng, 0.5, query_rank=128)
        model.pop("num_kv_heads", None)
    return model | rng.choice([{}, {}, {}, _mixers(rng, model)])


def _mixers(rng, model):
    full, state = "full_attention", {"linear_num_heads": 16, "linear_head_dim": 64, "linear_num_key_heads": 8}
    blocks = [("mamba2", "none"), ("none", "sparse" if "num_experts" in model else "dense"), (full, "none")]
    hybrid = rng.sample(blocks, 3)
    return rng.choice(
        [
            {"layer_types": ["sliding_attention", full], "sliding_window": 128},
            {"layer_types": ["sliding_attention"], "sliding_window": 256},
            {"layer_types": ["chunked_attention", full], "attention_chunk_size": 512},
            {"layer_types": ["gated_delta_net", full], **state},
            {"layer_types": ["mamba2", full], **state},
            {
                "layer_types": [mixer for mixer, _ in hybrid], "mlp_layer_types": [mlp for _, mlp in hybrid], **state,
                "num_dense_layers": 0, "num_mtp_layers": 0,
            },
        ]
    )  # fmt: skip


def _plan(rng, model):
    tp, cp, pp = rng.choice([1, 1, 2, 4]), rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 2, 4])
    plan = {
        "tp": tp, "cp": cp, "pp": pp, "dp": rng.choice([1, 2, 4, 8]), "microbatch_size": rng.choice([1, 2]),
        "sequence_parallel": tp > 1 and rng.random() < 0.8, "zero_stage": rng.choice([0, 1, 1, 2, 3, 3]),
        "recompute": rng.choice(["none", "none", "selective", "full", "per_op"]),
        **_some(rng, 0.3, ep=rng.choice([2, 4, 8])), **_some(rng, 0.1, optimizer_offload=rng.choice([0.5, 1.0])),
        **_some(rng, 0.1, offloaded_layers=2),
    }  # fmt: skip
    if rng.random() < 0.2:
        plan["etp"] = tp
    if plan["zero_stage"] == 3:
        plan |= _some(rng, 0.4, reshard_after_forward=False)
    if plan["zero_stage"]:
        plan |= _some(rng, 0.3, sharding_group=rng.choice([2, 4]))
        rng.random()  # a draw that nothing uses any more: those that follow stay the same
    if plan["recompute"] == "full":
        plan |= _some(
            rng, 0.4, recompute_method=rng.choice(["uniform", "block"]), recompute_num_layers=rng.choice([1, 2])
        )
    if plan["recompute"] == "selective":
        plan |= _some(rng, 0.5, recompute_modules=rng.choice([["mlp"], ["core_attn", "layernorm"], ["moe_act"]]))
    if pp > 1:
        names = ["1f1b", "interleaved", "zb_h1", "zb_v", "gpipe", "zb_interleaved", "breadth_first", "dualpipe_v"]
        plan["schedule"] = rng.choice(["1f1b", "1f1b", "interleaved", "interleaved", *names])
        many = plan["schedule"] in ("interleaved", "zb_interleaved", "breadth_first", "zb_v", "dualpipe_v")
        plan |= {"num_chunks": 2} if many else {}
        plan |= rng.choice([{}, {}, {"uneven_layers": True}, {"embedding_as_layer": True, "head_as_layer": True}])
        plan |= _some(rng, 0.2, microbatch_group=pp * 2) if plan["schedule"] == "interleaved" else {}
        if rng.random() < 0.3 and "num_layers" in model:
            plan.update(_layout(rng, model, pp * plan.get("num_chunks", 1)))
    return plan


def _layout(rng, model, stages):
    cuts = sorted(rng.choices(range(model["num_layers"] + 1), k=stages - 1))
    held = ["t" * (end - start) for start, end in zip([0, *cuts], [*cuts, model["num_layers"]], strict=True)]
    held[0], held[-1] = f"E{held[0]}", f"{held[-1]}{'m' * model.get('num_mtp_layers', 0)}L"
    return {
        "pipeline_layout": "|".join(held), "uneven_layers": False, "embedding_as_layer": False,
        "head_as_layer": False,
    }  # fmt: skip


def _training(rng, plan):
    precision = rng.choice(["fp32", "fp16", "bf16", "bf16", "bf16", "fp8", "mxfp8", "nvfp4", "mxfp4"])
    return {
        "global_batch_size": plan["dp"] * plan["microbatch_size"] * rng.choice([8, 16]),
        "sequence_length": rng.choice([1024, 2048]),
        "precision": precision,
        "optimizer": rng.choice(["adam", "adam", "adam", "adam", "sgd", "muon", "adafactor"]),
        **_some(rng, 0.2, moment_precision=rng.choice(["bf16", "fp8", "int8"])),
        **_some(rng, 0.1, master_precision=rng.choice(["fp16", "none"])),
        **_some(rng, 0.5, tokens=rng.choice([1e9, 1024 * 2048 * 64.0])),
        **_some(rng, 0.1, expert_capacity_factor=1.25, pad_to_capacity=rng.random() < 0.5),
        **_some(rng, 0.1, expert_skew=0.5),
        **_some(rng, 0.05, adapter_rank=16),
        **_some(rng, 0.1, packed_length=512),
        **(_some(rng, 0.3, high_precision_layers=2) if precision in ("fp8", "mxfp8", "nvfp4") else {}),
    }


def _stack(rng, framework, model):
    if framework is None:
        framework = rng.choice(["megatron-lm", "megatron-lm", "torchtitan", "deepspeed", "nemo"])
    stack = {
        "framework": framework, **_some(rng, 0.3, overlap_grad_reduce=rng.random() < 0.5),
        **_some(rng, 0.3, overlap_param_gather=rng.random() < 0.5),
        **_some(rng, 0.2, gradient_precision=rng.choice(["bf16", "fp32", "fp16"])),
        **_some(rng, 0.2, fused_rotary=False), **_some(rng, 0.1, attention="math"),
        **_some(rng, 0.2, compiled=rng.random() < 0.5), **_some(rng, 0.1, overlap_optimizer_offload=True),
    }  # fmt: skip
    if "num_experts" in model:
        stack |= _some(rng, 0.3, expert_dispatcher=rng.choice(["deepep", "hybridep"]), dispatcher_sms=24)
        stack |= _some(rng, 0.1, overlap_experts=True)
    if rng.random() < 0.15:
        stack |= rng.choice(
            [{"cuda_graphs": "full_iteration"}, {"cuda_graphs": "scoped", "cuda_graph_scope": ["attn"]}]
        )
    return stack
