"""Frameworks: what a name and a version come to, every rule with its source, and that no rule is dead."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import settings
from rows import rows
from typer.testing import CliRunner

from sim.cli import app
from sim.specs import build_scenario, load_preset, preset_names
from sim.specs.base import file_name
from sim.specs.frameworks import (
    Consequence,
    _facts,
    date_of,
    halves_attention,
    resolve_stack,
    rules_of,
)
from sim.specs.loading import SECTIONS
from sim.specs.presets import raw_preset
from sim.specs.stack import StackSpec
from sim.specs.yaml12 import load_yaml

FRAMEWORKS = preset_names("frameworks")


def own_rules(name):
    """A framework's rules but those of the one that it is like."""
    like = raw_preset("frameworks", name).get("like")
    return rules_of(name)[: -len(rules_of(like)) or None] if like else rules_of(name)


RULES = [(name, number, rule) for name in FRAMEWORKS for number, rule in enumerate(own_rules(name))]
LAYOUTS = {"recompute", "recompute_of_experts", "recompute_modules_of_experts", "selective_is", "interleaved", "microbatches", "offload", "offload_to_grace", "offload_optimizer", "shards", "adapters", "source"}  # fmt: skip
STACK_FIELDS = {file_name(name) for name in StackSpec.model_fields}


def scenario(*said, **changes):
    base = {
        "model": "llama3-8b",
        "cluster": {"preset": "superpod-h100", "num_nodes": 8},
        "plan": {"tp": 2, "pp": 2, "dp": 16},
        "training": {"global_batch_size": 64, "sequence_length": 8192, "precision": "bf16"},
        "profile": "h100",
    }
    return build_scenario({**base, **changes}, said)


def sections(when, version_of):
    """A scenario's sections in which a rule's conditions hold."""

    def first(key, default):
        value = when.get(key, default)
        return value[0] if isinstance(value, list) else value

    return {
        "model": {
            "name": first("model", ""),
            "num_layers": 4,
            "num_experts": 8 if when.get("experts") else 0,
            "norm": first("norm", "layernorm"),
            "position": first("position", "learned"),
            "gated_mlp": bool(when.get("gated")),
            "key_value_rank": 512 if when.get("latent_attention") else None,
        },
        "plan": {
            "tp": 2 if when.get("tensor_parallel") or when.get("model_parallel") else 1,
            "pp": 2 if when.get("pipeline_parallel") else 1,
            "cp": 2 if when.get("context_parallel", True) else 1,
            "schedule": first("schedule", "1f1b"),
            **({} if first("zero_stage", "unsaid") == "unsaid" else {"zero_stage": first("zero_stage", 0)}),
        },
        "training": {
            "precision": first("precision", "bf16"),
            **({"adapter_rank": 8} if when.get("fine_tuning") or when.get("adapters") else {}),
            **({"master_precision": when["masters"]} if "masters" in when else {}),
            "expert_capacity_factor": 1.0 if when.get("capacity") else None,
        },
        "cluster": {"node": {"gpu": {"name": first("gpu", "H100")}}},
    }


@rows("name", FRAMEWORKS)
def test_a_framework_s_file_says_nothing_that_is_not_read(name):
    data = raw_preset("frameworks", name)
    known = "title source aliases like tags flops releases rules shared layouts plans"
    assert data.keys() <= {*known.split()}
    assert data["title"]
    assert data["source"].strip()
    dates = [date_of(release["since"], name) for release in data["releases"]]
    assert dates == sorted(dates)
    for release in data["releases"]:
        assert release.keys() <= {"stack", "since"}
        assert release["stack"] in preset_names("stacks")
    tags = data.get("tags", {})
    for tag, since in (raw_preset("frameworks", tags)["tags"] if isinstance(tags, str) else tags).items():
        assert date_of(f"{tag}5", name) == date_of(since, name) > (2018, 0)
    assert data.get("like", name) in FRAMEWORKS
    layouts = data.get("layouts", {"source": "none"})
    assert layouts.keys() <= LAYOUTS
    assert layouts["source"].strip()
    counted = data.get("flops", {"attention_halved_since": "2025", "source": "none"})
    assert counted.keys() == {"attention_halved_since", "source"}
    since = counted["attention_halved_since"]
    assert since == "never" or date_of(since, name) > (2018, 0)
    assert counted["source"].strip()


@rows(("name", "number", "rule"), RULES, ids=[f"{name} {number}" for name, number, _ in RULES])
def test_every_rule_has_a_source_reads_what_there_is_and_can_apply(name, number, rule):
    assert rule.keys() <= {"when", "set", "source"}
    assert len(rule["source"].strip()) > 9 or rule["source"].startswith("as ")
    when = rule.get("when", {})
    assert when.keys() <= {"since", "until", *_facts({}), *STACK_FIELDS}
    since = when.get("since", raw_preset("frameworks", name)["releases"][0]["since"])
    stated = {
        key: (value[0] if isinstance(value, list) else value) for key, value in when.items() if key in STACK_FIELDS
    }
    found = resolve_stack({"framework": name, "version": str(since), **stated}, sections(when, since)).consequences
    for key, value in rule["set"].items():
        section, _, field = key.rpartition(".")
        record = SECTIONS[section or "stack"]
        assert field in {file_name(each) for each in record.model_fields}
        value = 4 if value == "all" else value
        assert Consequence(f"{section or 'stack'}.{field}", value, rule["source"]) in found


@rows(("framework", "version", "said", "expected"), load_yaml(Path(__file__).with_name("ruled.yaml")))
def test_what_rules_set(framework, version, said, expected):
    own = {name: value for name, value in said.items() if name in STACK_FIELDS}
    model = {"name": said.get("name", "dense"), "num_layers": 4, "num_experts": said.get("num_experts", 0)}
    if "model" in said:
        model = load_preset("models", said["model"]) | {"name": said["model"]}
    training = {name: said[name] for name in ("precision", "adapter_rank", "expert_capacity_factor") if name in said}
    data = {"model": model, "training": training, "plan": {"cp": said.get("cp", 1)}}
    if "gpu" in said:
        data["cluster"] = {"node": {"gpu": {"name": said["gpu"]}}}
    stack = StackSpec.read(resolve_stack({"framework": framework, "version": version, **own}, data).fields, "stack")
    wanted = {name: tuple(value) if isinstance(value, list) else value for name, value in expected.items()}
    assert {name: getattr(stack, name) for name in wanted} == wanted


def test_aliases_are_in_lower_case_and_each_framework_s_own():
    aliases = [alias for name in FRAMEWORKS for alias in raw_preset("frameworks", name).get("aliases", ())]
    assert len({alias.lower() for alias in aliases} - {*FRAMEWORKS}) == len(aliases)
    assert all(alias == alias.lower() for alias in aliases)


@rows("name", preset_names("stacks"))
def test_every_stack_belongs_to_a_framework_or_to_none(name):
    framework = load_preset("stacks", name).get("framework")
    if framework is None:
        assert name in ("lamy-poirier", "pipedream")
    else:
        assert name in [release["stack"] for release in raw_preset("frameworks", framework)["releases"]]
        assert resolve_stack(name, {}).release == name


@rows(
    ("version", "stack"),
    [
        ("2019", "megatron-2019"), ("v1.1", "megatron-2021"), ("v2.4", "megatron-2021"), ("2021-06", "megatron-2021"),
        ("v3.0", "megatron-2022"), ("2022-12", "megatron-2022"), ("23.06", "megatron-2023"), ("core_r0.8.0", "megatron-core"),
        ("latest", "megatron-core"), (None, "megatron-core"), (2022, "megatron-2021"), ("2.4", "megatron-2021"), ("Latest", "megatron-core"),
    ],
)  # fmt: skip
def test_a_version_finds_its_release(version, stack):
    assert resolve_stack({"framework": "megatron-lm", "version": version}, {}).release == stack


def test_what_is_stated_wins_and_is_not_asked_twice():
    plain = scenario(stack={"framework": "nemo", "version": "24.07"})
    assert (plain.stack.gradient_precision, plain.stack.packed_masters, plain.plan.zero_stage) == ("bf16", True, 1)
    own = scenario(
        stack={"framework": "nemo", "version": "24.07", "gradient_precision": "fp32"},
        plan={"tp": 2, "pp": 2, "dp": 16, "zero_stage": 0, "sequence_parallel": False},
    )
    assert (own.stack.gradient_precision, own.plan.zero_stage, own.plan.sequence_parallel) == ("fp32", 0, False)
    assert any(line.startswith("plan.zero_stage 1: the default of nemo") for line in plain.assumed)
    assert not any("zero_stage" in line for line in own.assumed)


@rows(("version", "halved"), [("2025-06", True), ("core_r0.8.0", False), ("2021", False)])
def test_what_a_framework_s_printed_rate_counts(version, halved):
    assert halves_attention("megatron-lm", version) == halved


MODELS_OF_RULES = (
    "llama3-8b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt-oss-120b",
    "nemotron-3-nano-30b-a3b",
    "nemotron-h-8b",
)


@rows("name", preset_names("frameworks"))
def test_whatever_rules_set_is_a_stack_on_every_gpu(name):
    """A scenario that says nothing of its stack but the framework's name is never refused for what rules set."""
    gpus = {load_preset("gpus", gpu)["name"] for gpu in preset_names("gpus")}
    plans = ({}, {"recompute": "full"}, {"recompute": "selective", "recompute_modules": ["moe"]})
    everything = [*product(MODELS_OF_RULES, sorted(gpus), ("bf16", "fp8", "mxfp8", "nvfp4"), (0, 16), plans)]
    for model, gpu, precision, tuned, plan in everything[:: 1 if settings().max_examples > 100 else 31]:
        data = {"model": load_preset("models", model) | {"name": model}, "cluster": {"node": {"gpu": {"name": gpu}}}}
        data |= {"training": {"precision": precision, "adapter_rank": tuned}, "plan": plan}
        found = StackSpec.read(resolve_stack(name, data).fields, "stack")
        if plan.get("recompute") == "full":
            assert not found.cuda_graph_scope
        assert not ("moe" in plan.get("recompute_modules", ()) and "moe_router" in found.cuda_graph_scope)


def test_overrides_reach_the_framework_and_its_rules():
    moe = {
        "model": "qwen3-30b-a3b", "cluster": {"preset": "superpod-b200", "num_nodes": 8}, "plan": {"dp": 64, "ep": 8},
        "profile": "b200", "stack": {"framework": "megatron-bridge", "version": "26.08"},
    }  # fmt: skip
    dense = {"stack": "megatron-2021", "plan": {"dp": 64}}
    for given, overrides, wanted in (
        (dense, ["stack.version=2020-06"], {"framework": "megatron-lm", "version": "2020-06"}),
        (dense, ["stack.framework=nemo"], {"framework": "nemo", "version": "latest", "overlap_grad_reduce": True}),
        (dense, ["stack.overlap_grad_reduce=false"], {"framework": "megatron-lm", "overlap_grad_reduce": False}),
        (dense, ["stack=torchtitan", "stack.attention=math"], {"framework": "torchtitan", "attention": "math"}),
        (moe, [], {"cuda_graphs": "none"}),
        (moe, ["training.precision=fp8"], {"cuda_graphs": "full_iteration", "overlap_experts": True}),
        (moe, ["training.precision=fp8", "stack.version=26.04"], {"cuda_graphs": "none", "overlap_experts": False}),
        (moe, ["stack.overlap_experts=true"], {"kernel_launch_s": 50e-6, "backward_launch_s": 60e-6}),
    ):
        stack = scenario(*overrides, **given).stack
        assert {name: getattr(stack, name) for name in wanted} == pytest.approx(wanted), overrides


def test_show_prints_what_a_framework_comes_to():
    """By an alias too, and the framework where a stack has its name."""

    def shown(words):
        return " ".join(CliRunner().invoke(app, ["presets", "show", *words.split()]).output.split())

    words = shown(
        "megatron-bridge -s stack.version=26.08 -s training.precision=fp8 -s cluster.node.gpu=b200-sxm-180gb -s stack.attention=math"
    )
    for says in (
        "Megatron-Bridge 26.08", "stacks: megatron-core since 2025-07", "attention math stated", "fused_norm true default",
        "gradient_precision bf16 NVIDIA-NeMo/Megatron-Bridge", "backward_launch 30.0 µs default", "rules that do not apply here",
    ):  # fmt: skip
        assert says in words, says
    assert {file_name(name) for name in StackSpec.model_fields} - {"framework", "version"} <= {*words.split()}
    for name, begins in (("composer", "llm-foundry latest"), ("torchtitan", "torchtitan latest")):
        assert shown(name).startswith(begins)


def test_an_answer_says_what_rules_set():
    given = {
        "model": "qwen3-30b-a3b",
        "cluster": {"node": "gb300-tray", "num_nodes": 2, "name": "two"},
        "profile": "b300",
    }
    given |= {
        "plan": {"dp": 8, "ep": 8},
        "training": {"global_batch_size": 64, "sequence_length": 4096, "precision": "mxfp8"},
    }
    said = scenario(**given, stack={"framework": "megatron-bridge"}).assumed
    line = next(text for text in said if text.startswith("the latest megatron-bridge is taken: stack "))
    assert "cuda_graphs full_iteration" in line
    assert "expert_dispatcher hybridep" in line
    plain = scenario(**given, stack={"framework": "megatron-bridge", "cuda_graphs": "none"}).assumed
    assert not any("cuda_graphs" in text for text in plain)
