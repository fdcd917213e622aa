"""Bad input: every mistake gets one message that names the value, the rule and the nearest remedy."""

import re
import shlex
from operator import attrgetter
from pathlib import Path

import pytest
from rows import rows

from sim import build_scenario, load_scenario
from sim.errors import FlopcastError, SpecError
from sim.specs.yaml12 import dump_yaml, parse_yaml

MAIN = Path(__file__).parents[2] / "scenarios" / "gpt-1t-3072-a100.yaml"
EXPERTS = MAIN.with_name("qwen3-235b-a22b-256-h100.yaml")
# What is set in a scenario | parts of what is said then, in order.
OF_A_GPT = """
plan.tpp=4 | unknown field 'tpp'; did you mean 'tp'?
stack.routing_launches=60 | unknown field 'routing_launches'; … write fused_router instead
cluster.oversubscription=2 | unknown field 'oversubscription'; write network.levels.NAME.oversubscription
training.global_batch_size=10000000000 | global_batch_size = 10000000000: should be less than or equal
cluster.network.leaf.oversubscription=2 | network.leaf: unknown field 'leaf'; choose from levels
cluster.network.levels.core.oversubscription=2 | the last level has no cables up; state it on the level below, levels.spine
'cluster.max_power=1 kW' | unknown field 'max_power'; write node.max_power or node.gpu.max_power
'cluster.node.pcie_bandwidth=32 GB/s' | write nvlink_bandwidth, which on a node with nvlink_topology: pcie
plan.tp=7 | plan.tp = 7 must divide model.num_heads = 160; nearest that does: 8
plan.num_chunks=3 | = 64 · 3 = 192 must divide the 128 layers; nearest that does: 128
plan.uneven_layers=true plan.num_chunks=3 | 128 layers cannot fill … = 192 stages; lower plan.num_chunks
plan.schedule=modular plan.pp=60 | 'modular' holds one layer a stage … set plan.num_chunks to 3
plan.schedule=modular plan.pipeline_layout=E(t|)*125tttL plan.pp=63 plan.num_chunks=2 | 'modular' holds one layer a stage … 126 stages for 128 layers; leave it out, or set plan.schedule to
plan.offloaded_layers=4 cluster.node.host_link_bandwidth=null | needs to know the host, but node … has no host_link_bandwidth; add
plan.offloaded_layers=200 | exceeds the 128 layers; lower it to 128
plan.pp=1 plan.num_chunks=2 | num_chunks to 1 with schedule 1f1b: on one rank only breadth_first and
stack.flash_version=5 | should be '1', '2', '3', '4', 'cudnn', 'efficient' or 'flex'
'profile.gemm.measured=[1, 2]' | measured.0: 1 has no unit; write an amount of compute
training.global_batch_size=1000 | must be a multiple of … = 6; nearest: 1002
plan.dp=16 | needs tp · pp · dp = 8 · 64 · 16 = 8192 GPUs, but cluster 'selene' has 4480; lower plan.dp to 8 … a search … -s plan=
training.sequence_length=4096 | exceeds the model's 2048 learned positions
plan.tp=eight | plan.tp = 'eight': should be a valid integer
stack.dispatcher_sms=1000 | stack.dispatcher_sms = 1000 exceeds the 108 multiprocessors of A100-SXM4-80GB
plan.recompute=ful | plan.recompute = 'ful': should be 'none', 'selective', 'per_op' or 'full'
'stack.attention={7: 1}' | attention: the key 7 is no name of a field
'cluster.node.gpu.memory=80 Gb' | may be bytes or bits; write '80 GB' or '80 Gbit'
plan=3 | plan must be a mapping of fields, not 3
training.precision=fp8 | has no fp8 matrix units; set … or state what it reaches as … gpu.peak.fp8
cluster.node.gpu.memory=80 | memory: 80 has no unit; write a size such as '80 GB'
'cluster.inter_node_bandwidth=80 GB' | '80 GB' is a size, not a bandwidth
cluster.nvlink_domain_gpus=3 | must be a multiple of the node's 8 GPUs; nearest: 8
model=gpt3-17b | unknown model preset 'gpt3-17b'; did you mean 'gpt3-175b'?
cluster=dgx-h100 | dgx-h100 is a node, not a cluster; write cluster: {node: dgx-h100, num_nodes: 1}
model.num_kv_heads=7 | num_heads 160 must be a multiple of num_kv_heads 7; use 8 key/value heads
foo.bar=2 | no section 'foo'; choose from cluster, model, plan
plan.tp | must look like plan.tp=4
plan.tp.x=3 | plan.tp is the value 8 and has no fields
plan.tp=[1 | override 'plan.tp=[1'
'cluster.inter_node_bandwidth=1e-300 B/s' | '1e-300 B/s' is outside what a bandwidth can be
'cluster.node.gpu.peak_flop_per_s={fp16: 1e-300}' | 1e-300 is outside what a compute rate can be
profile.gemm.k_overhead=1e300 | is larger than any number here
plan.tp=7 training.global_batch_size=1000 | num_heads … global_batch_size
plan.dp=true | dp = True: true is not a value for it
plan.sequence_parallel=yes | write true or false
profile=A10 | did you mean 'a100'
profile=h100 | 'h100' was made for H100, and says nothing of the cluster's A100-SXM4-80GB
'stack={framework: [unknown]}' | framework
model.num_layers=1e15 | num_layers = … should be less than or equal
model.hidden_size=18432000000 model.head_dim=128 | its sizes make a model of some … parameters
training.adapter_rank=16 training.adapter_targets=in_proj | has no in_proj; it has linear_qkv, linear_proj, linear_fc1, linear_fc2
plan.vocabulary_over_stages=true plan.head_as_layer=true | which plan.head_as_layer puts on one stage; leave one out
plan.vocabulary_over_stages=true plan.pp=2 plan.pipeline_layout=Et|tL | vocabulary_over_stages deals layers evenly
training.sequence_length=1.3k | sequence_length = '1.3k' is 1,331.2, which is no whole number; write 4096
training.tokens=15Q | tokens = '15Q' is not a number
'stack={framework: nemmo}' | unknown framework 'nemmo'; did you mean 'nemo'
stack=megatrn-core | did you mean
'stack={framework: nemo, version: 25.1}' | write it in quotes
'stack={framework: nemo, version: newest}' | no version of nemo: write a date
'stack={framework: megatron-lm, version: w2}' | a tag that begins with v0.1, v1.
stack=7 | stack must be a preset's name or a mapping
'stack={preset: megatron-2021, framework: nemo}' | is not what nemo latest has here, which is megatron-core; name one
'stack={preset: megatron-2021, version: "2023"}' | which is megatron-2023
'stack={framework: pytorch, version: 3.1.0}' | '3.1.0' is no version of pytorch: write a date
'plan=[{tp: 2}, {tp: 2}]' | plan
'stack={framework: torchtitan}' plan=3 | plan
plan.etp=8 | plan.etp = 8, but model 'gpt-1008b' has no experts
plan.recompute=selective plan.recompute_modules=moe | has no experts
plan.recompute=selective plan.recompute_modules=shared_experts | has no shared experts
plan.recompute=selective plan.recompute_modules=mla_up_proj | has no latent attention
plan.recompute=selective plan.recompute_num_layers=2 | need recompute: full, not selective
plan.recompute_num_layers=3 | exceeds the 2 layers of a stage; lower it to 2
training.optimizer=adafactor training.moment_precision=bf16 | no effect with adafactor … leave it out
training.precision=fp32 training.master_precision=none | no effect with weights in fp32
training.optimizer=lion | adam
training.optimizer=muon plan.zero_stage=1 plan.optimizer_offload=0.5 | Adam's or SGD's, not muon's; set it to 0
training.num_adapters=4 | num_adapters 4 has no effect without adapters
training.packed_length=9000 | packed_length 9000 exceeds sequence_length 2048
training.precision=nvfp4 | has no fp4 matrix units
training.precision=bf16 training.high_precision_layers=4 | high_precision_layers 4 has no effect with precision bf16
stack.context_by_heads=true plan.cp=32 plan.dp=1 | plan.tp · plan.cp (stack.context_by_heads) = 256 must divide
plan.zero_stage=2 plan.reshard_after_forward=false | reshard_after_forward: false needs zero_stage 3
plan.zero_stage=1 plan.sharding_group=5 | must divide dp · cp = 6
plan.sharding_group=2 | needs ZeRO
plan.microbatches_per_flush=5 | microbatches_per_flush = 5 must divide the 512 micro-batches … nearest … 4
plan.microbatches_per_flush=8 plan.pp=1 plan.dp=48 | needs a pipeline
plan.pp=4 plan.pipeline_layout=Ett|tt|ttL | has 3 stages, but pp · num_chunks = 4 · 1 = 4; write one more than there are |
plan.pp=2 plan.pipeline_layout=ttE|ttL | must begin with one E
plan.pp=2 plan.pipeline_layout=Et|Ltt | must end with one L
plan.pp=2 plan.pipeline_layout=Etm|tL | must have its m behind all t
plan.pp=3 plan.pipeline_layout=Ett||ttL | stage 1 holds nothing; give it a layer
plan.pp=2 plan.pipeline_layout=Ett|xtL | 'x' is none of E
plan.pp=2 plan.pipeline_layout=E(t*9999|)*9999tL | more than 100,000 letters
plan.pp=2 plan.pipeline_layout=Et*3|t*4L | has 7 t, but model.num_layers is 128; write 128, or change model.num_layers
plan.pp=2 plan.pipeline_layout=Et*64|t*64mL | has 1 m, but model.num_mtp_layers is 0; write 0, or change model.num_mtp_layers
plan.placement=tp-dp-pp | each of tp, cp, dp and pp once
cluster.fragmentation=1.5 | cluster.fragmentation = 1.5: should be less than or equal to 1
plan.dp=ONES | dp = a number of about 399 digits is larger than any count here
plan.dp="'ONES'" | 402 letters) is larger than any count here
"""
OF_EXPERTS = """
model.experts_per_token=129 | experts_per_token 129 must be 1 to num_experts 128
model.num_experts=0 | experts_per_token 8 needs num_experts
model.num_dense_layers=94 | leaves none of the 94 layers
model.key_value_rank=64 model.num_kv_heads=64 model.rotary_head_dim=128 | must be less than head_dim 128
model.rotary_head_dim=64 | needs key_value_rank
plan.ep=3 plan.dp=12 training.global_batch_size=1200 | plan.ep = 3 must divide model.num_experts
plan.ep=64 | ep 64 must divide tp · cp · dp = 32
plan.sequence_parallel=false | needs plan.sequence_parallel
training.expert_skew=0.5 training.expert_load=[1,2] | leave one out
training.expert_load=[1,2] | has 2 numbers, but model
model.num_experts=2 model.experts_per_token=1 plan.ep=2 training.expert_load=[0,0] | counts no tokens
training.pad_to_capacity=true | needs expert_capacity_factor
plan.etp=4 | etp 4 must be 1 (experts are whole) or tp = 2 … or tp to 4
plan.etp=2 | ep · etp = 32 · 2 = 64 must divide tp · cp · dp = 32 … nearest ep that does: 16
plan.etp=2 plan.ep=16 plan.sharding_group=8 | ep 16 · etp 2: … nearest ep that does: 8
plan.etp=2 plan.ep=16 model.expert_intermediate_size=1535 | plan.etp = 2 must divide model.expert_intermediate_size
plan.etp=2 plan.ep=16 model.mlp_bias=true | have biases … set plan.etp to 1
plan.recompute_modules=moe_act | need recompute: selective, not none
plan.recompute=selective plan.recompute_modules=moe_akt | did you mean 'moe_act'
plan.recompute=selective plan.recompute_modules=mlp,mlp | twice
plan.recompute=selective plan.recompute_modules=mlp | no layers without experts
stack.cuda_graphs=scoped stack.overlap_experts=false | needs cuda_graph_scope
stack.cuda_graph_scope=attn stack.cuda_graphs=none | needs cuda_graphs: scoped, not none
stack.cuda_graphs=scoped stack.cuda_graph_scope=atn | did you mean 'attn'
stack.cuda_graphs=scoped stack.cuda_graph_scope=moe_preprocess | add moe_router
stack.cuda_graphs=scoped stack.cuda_graph_scope=attn plan.recompute=full | does not go with CUDA graphs of attn
stack.cuda_graphs=scoped stack.cuda_graph_scope=moe_router plan.recompute=selective plan.recompute_modules=moe | leave one of the two out
cluster=superpod-b200 profile=b200 training.precision=nvfp4 training.high_precision_layers=95 | exceeds the 94 layers
plan.sharding_group=8 | ep must divide tp · sharding_group = 16
"""


@rows(("file", "table"), [(MAIN, OF_A_GPT), (EXPERTS, OF_EXPERTS)])
def test_every_mistake_is_named_with_its_rule_and_remedy(file, table):
    silent = {}
    for line in table.strip().splitlines():
        given, _, says = line.partition(" | ")
        try:
            found = repr(load_scenario(file, shlex.split(given.replace("ONES", "1" * 400))))
        except FlopcastError as error:
            found = str(error)
        if not re.search(".*".join(map(re.escape, says.split(" … "))), found, re.DOTALL):
            silent[given] = found
    assert silent == {}


@rows(
    ("layers", "overrides", "remedies"),
    [
        (61, [], ["plan.pp=1", "plan.uneven_layers=true"]),
        (126, [], ["plan.pp=14", "plan.head_as_layer=true plan.embedding_as_layer=true", "plan.uneven_layers=true"]),
        (126, ["plan.head_as_layer=true"], ["plan.pp=1", "plan.embedding_as_layer=true", "plan.uneven_layers=true"]),
        (127, [], ["plan.pp=1", "plan.head_as_layer=true", "plan.uneven_layers=true"]),
        (96, ["plan.embedding_as_layer=true"], ["plan.pp=1", "plan.embedding_as_layer=false", "plan.uneven_layers=true"]),
        (8, [], ["plan.pp=8"]),
    ],
)  # fmt: skip
def test_layers_that_stages_do_not_divide_come_with_all_that_would_help(layers, overrides, remedies):
    file, given = MAIN.with_name("gpt3-175b-1024-a100.yaml"), [f"model.num_layers={layers}", *overrides]
    with pytest.raises(SpecError) as error:
        load_scenario(file, given)
    told = str(error.value).partition("; nearest that does: ")[2].split("; or ")
    expected = [each.replace("plan.pp=", "").replace("=", ": ").replace(" plan", " and plan") for each in remedies]
    assert [re.sub(r" (stages?|\(.*\))$", "", words) for words in told] == expected
    for remedy in remedies:
        load_scenario(file, [*given, *remedy.split()])


def test_what_would_not_help_is_not_told():
    with pytest.raises(SpecError) as error:
        load_scenario(MAIN, ["plan.schedule=modular", "plan.num_chunks=2", "plan.head_as_layer=true"])
    assert "uneven" not in str(error.value)


@rows(
    ("text", "says"),
    [
        ("model: [1,2", r"file: line 2"),
        ("a: 1\na: 2", r"line 2: the key 'a' is given twice"),
        ("\ta: 1", r"line 1, column 1"),
        ("a: !!python/object/apply:os.system ['true']", r"could not determine a constructor"),
        ("a: &x [*x]", "what an anchor names there stands inside itself"),
        ("[" * 100_000 + "]" * 100_000, r"^file: line 1: nested more than 40 levels"),
        ("\n".join(" " * n + f"b{n}:" for n in range(60)), r"nested more than 40 levels"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "\n".join(f"{n}: &{n} [{', '.join(['*' + p] * 10)}]" for p, n in zip("abcdef", "bcdefg", strict=True)),
            "more than 200,000 values",
        ),
        ("a: " + "1" * 5000, r"digits"),
    ],
)
def test_broken_yaml(text, says):
    with pytest.raises(SpecError, match=says):
        parse_yaml(text, "file")


def test_what_is_written_reads_back():
    # Hexadecimal fingerprints of scenarios among them, which may look like numbers.
    data = {
        "text": ["12e34", "6e9512345", "1e9", "0x10", "no", "1:30", "007", "1_000", "~", ""],
        "numbers": [1, 1e20, 0.5],
    }
    assert parse_yaml(dump_yaml(data), "") == data


def test_yaml_reads_numbers_and_words_as_people_write_them():
    assert parse_yaml("[1e9, 300e9, 1, 0x10, .5, no, 1:30, true, null, 1f1b]", "") == [
        1e9, 300e9, 1, 16, 0.5, "no", "1:30", True, None, "1f1b",
    ]  # fmt: skip


@rows(
    ("data", "says"),
    [
        (None, "must be a mapping"),
        ({"model": "gpt3-175b"}, "missing section cluster, training"),
        ({"modell": "gpt3-175b"}, r"unknown section 'modell'; did you mean 'model'\?"),
        ({"model": 3, "cluster": "selene", "plan": {}, "training": {}}, "model must be a mapping"),
        ({"model": {"preset": "nope"}, "cluster": "selene", "plan": {}, "training": {}}, "unknown model preset 'nope'"),
        (
            {"model": "gpt3-175b", "cluster": "selene", "plan": {}, "training": {}},
            r"global_batch_size is required and missing; add it \(flopcast fields global_batch_size says",
        ),
    ],
)
def test_incomplete_scenario(data, says):
    with pytest.raises(SpecError, match=says):
        build_scenario(data)


def test_missing_file_hints_at_a_near_one(monkeypatch):
    monkeypatch.chdir(MAIN.parents[1])
    with pytest.raises(SpecError, match=r"did you mean 'scenarios/gpt-1t-3072-a100.yaml'"):
        load_scenario("gpt-1t-3072-a10.yaml")


OWN_CARD = {
    "name": "RTX-9000-96GB",
    "memory": "96 GB",
    "memory_bandwidth": "4 TB/s",
    "peak": {"bf16": "800 TFLOP/s", "fp32": "50 TFLOP/s"},
    "num_sms": 128,
    "max_power": "600 W",
}
OWN_NODE = {
    "name": "mine", "gpus_per_node": 8, "nvlink_bandwidth": "400 GB/s", "nics_per_node": 8, "nic_bandwidth": "25 GB/s",
}  # fmt: skip


def on_a_card_that_nobody_measured(*changes, **fields):
    cluster = {"node": {**OWN_NODE, "gpu": {**OWN_CARD, **fields}}, "num_nodes": 560}
    given = parse_yaml(MAIN.read_text(), "") | {"cluster": cluster, "profile": "datasheet"}
    return build_scenario(given, ["training.precision=bf16", *changes])


def test_whose_rates_a_name_brings_is_said_with_the_field_of_ones_own():
    """A graphics card's attention: A100's 0.62 where matrix units do twice as much for each fp32 lane."""
    card = on_a_card_that_nobody_measured()
    assert card.profile.attention.forward_efficiency == pytest.approx(1 / (1 + (1 / 0.62 - 1) * 16 / 8), abs=1e-3)
    stated = on_a_card_that_nobody_measured("profile.attention.forward_efficiency=0.5")
    other = on_a_card_that_nobody_measured(name="Acme 9000")
    # Turing has none of the instructions of A100's kernels: its attention is that of the mean GPU.
    older = on_a_card_that_nobody_measured("training.precision=fp16", peak={"fp16": "100 TFLOP/s"})
    for scenario in (stated, other, older):
        assert scenario.profile.attention.forward_efficiency != card.profile.attention.forward_efficiency
        assert not any("begins with" in line for line in scenario.assumed)
    memory = on_a_card_that_nobody_measured("profile.memory.efficiency=0.7")
    maker, named = (on_a_card_that_nobody_measured(name=name) for name in ("MI999", "T4-16GB"))
    for scenario, says in (
        (card, "begins with RTX-, .* as a100's kernels .* 45% of peak .*profile.attention.forward_eff"),
        (
            memory,
            "45% in attention's forward and 33% in its backward. Of bandwidths, it is 70% .as stated. in memory, 81%",
        ),
        (maker, "so it counts as AMD's: multiplies"),
        (named, "reach 65% of peak, as was"),
    ):
        assert [line for line in scenario.assumed if re.search(says, line)], says


@rows(
    ("changes", "fields", "says"),
    [
        ((), {"peak": {"bf16": "800 TFLOP/s"}}, r"RTX-9000-96GB states no peak in fp32 \(cluster.node.gpu.peak.fp32\)"),
        ((), {"name": "RTX-4090-24GB", "peak": {"bf16": "165 TFLOP/s"}}, r"add fp32 under peak in sim/presets/gpus/rtx-4090-24gb.yaml"),
        (("profile.gemm.max_efficiency=high",), {}, r"profile.gemm.max_efficiency = 'high': should be a valid number"),
    ],
)  # fmt: skip
def test_a_card_of_ones_own_lacks_nothing_that_is_needed(changes, fields, says):
    with pytest.raises(SpecError, match=says):
        on_a_card_that_nobody_measured(*changes, **fields)


def test_replace_derives_anew():
    scenario = load_scenario(MAIN)
    assert scenario.model.replace(hidden_size=12800).head_dim == 80
    assert scenario.model.replace(hidden_size=12800).intermediate_size == 51200
    half = scenario.cluster.node.replace(nic_bandwidth_bytes_per_s=12.5e9)
    assert scenario.cluster.replace(node=half).inter_node_bandwidth_bytes_per_s == pytest.approx(12.5e9)


SECTION = "plan={tp: 8, pp: 64, dp: 6, recompute: full}"


@rows(
    ("overrides", "path", "value"),
    [
        (["plan.dp=06"], "plan.dp", 6),  # not octal
        (["plan.dp=3", SECTION], "plan.dp", 6),  # the last wins, whatever its depth
        ([SECTION, "plan.dp=3"], "plan.dp", 3),
        (["stack.preset=llama3"], "stack.name", "llama3"),  # instead of the file's own
        (["cluster.node={preset: dgx-a100-40gb}"], "cluster.node.gpu.name", "A100-SXM4-40GB"),
        *(([f"cluster.node.gpu.memory{said}"], "cluster.gpu.memory_bytes", 80e9) for said in ("_bytes=8.0e10", "=80 GB", "_bytes=80 GB")),
        (["training.adapter_rank=16", "training.adapter_targets=in_proj,linear_fc1"], "training.adapter_targets", ("in_proj", "linear_fc1")),
    ],
)  # fmt: skip
def test_what_is_typed_is_what_is_read(overrides, path, value):
    assert attrgetter(path)(load_scenario(MAIN, overrides)) == value
