"""Bad input: every mistake gets one message that names the value, the rule and the nearest remedy."""

import re
from operator import attrgetter
from pathlib import Path

import pytest
from rows import rows

from sim import build_scenario, load_scenario
from sim.errors import FlopcastError, SpecError
from sim.specs.yaml12 import dump_yaml, parse_yaml

MAIN = Path(__file__).parents[2] / "scenarios" / "gpt-1t-3072-a100.yaml"


@rows(
    ("override", "says"),
    [
        ("plan.tpp=4", r"unknown field 'tpp'; did you mean 'tp'\?"),
        ("stack.routing_launches=60", r"unknown field 'routing_launches'; .* write fused_router instead"),
        ("cluster.oversubscription=2", r"unknown field 'oversubscription'; write network.levels.NAME.oversubscription"),
        ("training.global_batch_size=10000000000", r"global_batch_size = 10000000000: should be less than or equal"),
        ("cluster.network.leaf.oversubscription=2", r"network.leaf: unknown field 'leaf'; choose from levels, "),
        (
            "cluster.network.levels.core.oversubscription=2",
            r"the last level has no cables up; state it on the level below, levels.spine",
        ),
        ("cluster.max_power=1 kW", r"unknown field 'max_power'; write node.max_power or node.gpu.max_power"),
        ("cluster.node.pcie_bandwidth=32 GB/s", r"write nvlink_bandwidth, which on a node with nvlink_topology: pcie"),
        ("plan.tp=7", r"plan.tp = 7 must divide model.num_heads = 160; nearest that does: 8"),
        ("plan.num_chunks=3", r"= 64 · 3 = 192 must divide the 128 layers; nearest that does: 128"),
        ("plan.uneven_layers=true plan.num_chunks=3", r"128 layers cannot fill .* = 192 stages; lower plan.num_chunks"),
        ("plan.schedule=modular plan.pp=60", r"'modular' holds one layer a stage.* set plan.num_chunks to 3"),
        ("plan.schedule=modular plan.pp=129", r"deals 128 layers to plan.pp = 129 ranks; lower plan.pp to 128"),
        (
            "plan.schedule=modular plan.pipeline_layout=E(t|)*125tttL plan.pp=63 plan.num_chunks=2",
            r"'modular' holds one layer a stage.*126 stages for 128 layers; leave it out, or set plan.schedule to",
        ),
        ("plan.offloaded_layers=200", r"exceeds the 128 layers; lower it to 128"),
        ("plan.pp=1 plan.num_chunks=2", r"num_chunks to 1 with schedule 1f1b: on one rank only breadth_first and"),
        ("stack.flash_version=5", r"should be '1', '2', '3', '4', 'cudnn', 'efficient' or 'flex'"),
        ("profile.gemm.measured=[1, 2]", r"measured.0: 1 has no unit; write an amount of compute"),
        ("training.global_batch_size=1000", r"must be a multiple of .* = 6; nearest: 1002"),
        (
            "plan.dp=16",
            r"needs tp · pp · dp = 8 · 64 · 16 = 8192 GPUs, but cluster 'selene' has 4480; lower plan.dp to 8 .* a search .* -s plan=$",
        ),
        ("training.sequence_length=4096", r"exceeds the model's 2048 learned positions"),
        ("plan.tp=eight", r"plan.tp = 'eight': should be a valid integer"),
        ("stack.dispatcher_sms=1000", r"stack.dispatcher_sms = 1000 exceeds the 108 multiprocessors of A100-SXM4-80GB"),
        ("plan.recompute=ful", r"plan.recompute = 'ful': should be 'none', 'selective', 'per_op' or 'full'"),
        ("stack.attention={7: 1}", r"attention: the key 7 is no name of a field"),
        ("cluster.node.gpu.memory=80 Gb", r"may be bytes or bits; write '80 GB' or '80 Gbit'"),
        ("plan=3", r"plan must be a mapping of fields, not 3"),
        ("training.precision=fp8", r"has no fp8 matrix units; set .* or state what it reaches as .*gpu.peak.fp8"),
        ("cluster.node.gpu.memory=80", r"memory: 80 has no unit; write a size such as '80 GB'"),
        ("cluster.inter_node_bandwidth=80 GB", r"'80 GB' is a size, not a bandwidth"),
        ("cluster.nvlink_domain_gpus=3", r"must be a multiple of the node's 8 GPUs; nearest: 8"),
        ("model=gpt3-17b", r"unknown model preset 'gpt3-17b'; did you mean 'gpt3-175b'\?"),
        ("cluster=dgx-h100", r"dgx-h100 is a node, not a cluster; write cluster: {node: dgx-h100, num_nodes: 1}"),
        ("model.num_kv_heads=7", r"num_heads 160 must be a multiple of num_kv_heads 7; use 8 key/value heads"),
        ("foo.bar=2", r"no section 'foo'; choose from cluster, model, plan"),
        ("plan.tp", r"must look like plan.tp=4"),
        ("plan.tp.x=3", r"plan.tp is the value 8 and has no fields"),
        ("plan.tp=[1", r"override 'plan.tp=\[1'"),
        ("plan.dp=" + "1" * 400, r"dp = a number of about 399 digits is larger than any count here"),
        ("plan.dp='" + "1" * 400 + "'", r"402 letters\) is larger than any count here"),
        ("cluster.inter_node_bandwidth=1e-300 B/s", r"'1e-300 B/s' is outside what a bandwidth can be"),
        ("cluster.node.gpu.peak_flop_per_s={fp16: 1e-300}", r"1e-300 is outside what a compute rate can be"),
        ("profile.gemm.k_overhead=1e300", r"is larger than any number here"),
    ],
)
def test_override(override, says):
    with pytest.raises(SpecError, match=says):
        load_scenario(MAIN, re.split(r" (?=plan\.)", override))


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


def test_what_was_left_open_is_stated():
    scenario = build_scenario(
        {
            "model": "gpt3-175b",
            "cluster": "selene",
            "plan": {"tp": 8, "pp": 16},
            "training": {"global_batch_size": 16, "sequence_length": 2048},
        }
    )
    assert any("no stack was named" in line for line in scenario.assumed)
    assert any("no profile was named: a100" in line for line in scenario.assumed)


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
    [said] = [line for line in card.assumed if "begins with" in line]
    assert re.search(r"begins with RTX-, .* as a100's kernels .* 45% of peak .*profile.attention.forward_eff", said)
    stated = on_a_card_that_nobody_measured("profile.attention.forward_efficiency=0.5")
    other = on_a_card_that_nobody_measured(name="Acme 9000")
    for scenario in (stated, other):
        assert scenario.profile.attention.forward_efficiency != card.profile.attention.forward_efficiency
        assert not any("begins with" in line for line in scenario.assumed)


def test_rates_of_a_maker_and_of_a_card_by_name_are_said_too():
    for name, said in {"MI999": "so it counts as AMD's: multiplies", "T4-16GB": "reach 65% of peak, as was"}.items():
        assert any(said in line for line in on_a_card_that_nobody_measured(name=name).assumed), name


def test_the_shares_that_a_datasheet_lacks_are_said_as_they_are_stated():
    stated = on_a_card_that_nobody_measured("profile.memory.efficiency=0.7")
    [said] = [line for line in stated.assumed if line.startswith("no measured profile")]
    assert (
        "45% in attention's forward and 33% in its backward. Of bandwidths, it is 70% (as stated) in memory, 81% in a"
        in said
    )
    with pytest.raises(SpecError, match=r"profile.gemm.max_efficiency = 'high': should be a valid number"):
        on_a_card_that_nobody_measured("profile.gemm.max_efficiency=high")


def test_a_card_without_the_peak_that_its_attention_needs_is_refused_by_field_and_file():
    with pytest.raises(SpecError, match=r"RTX-9000-96GB states no peak in fp32 \(cluster.node.gpu.peak.fp32\)"):
        on_a_card_that_nobody_measured(peak={"bf16": "800 TFLOP/s"})
    with pytest.raises(SpecError, match=r"add fp32 under peak in sim/presets/gpus/rtx-4090-24gb.yaml"):
        on_a_card_that_nobody_measured(name="RTX-4090-24GB", peak={"bf16": "165 TFLOP/s"})
    # Turing has none of the instructions of A100's kernels: its attention is that of the mean GPU.
    older = on_a_card_that_nobody_measured("training.precision=fp16", peak={"fp16": "100 TFLOP/s"})
    assert not any("begins with" in line for line in older.assumed)


def test_replace_derives_anew():
    scenario = load_scenario(MAIN)
    assert scenario.model.replace(hidden_size=12800).head_dim == 80
    assert scenario.model.replace(hidden_size=12800).intermediate_size == 51200
    half = scenario.cluster.node.replace(nic_bandwidth_bytes_per_s=12.5e9)
    assert scenario.cluster.replace(node=half).inter_node_bandwidth_bytes_per_s == pytest.approx(12.5e9)


SECTION = "plan={tp: 8, pp: 64, dp: 6, recompute: full}"
OVER_STAGES = "plan.vocabulary_over_stages=true"


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


@rows(
    ("overrides", "says"),
    [
        (["plan.tp=7", "training.global_batch_size=1000"], r"(?s)(?=.*num_heads).*global_batch_size"),  # all at once
        (["plan.dp=true"], "dp = True: true is not a value for it"),
        (["plan.zero_stage=true"], "is not a value for it"),
        *(([f"plan.sequence_parallel={said}"], "write true or false") for said in ("yes", "1")),
        (["profile=A10"], "did you mean 'a100'"),
        (["profile=h100"], r"'h100' was made for H100, and says nothing of the cluster's A100-SXM4-80GB"),
        *(([f"stack={{framework: {name}}}"], "framework") for name in (["unknown"], {"unknown": 1}, 7)),
        *(([f"{field}=1e15"], f"{field} = .* should be less than or equal") for field in ("model.num_layers", "cluster.nvlink_domain_gpus")),
        (["model.hidden_size=18432000000", "model.head_dim=128"], r"its sizes make a model of some \de\+\d+ parameters"),
        (["training.adapter_rank=16", "training.adapter_targets=in_proj"], r"has no in_proj; it has linear_qkv, linear_proj, linear_fc1, linear_fc2"),
        ([OVER_STAGES, "plan.head_as_layer=true"], "which plan.head_as_layer puts on one stage; leave one out"),
        ([OVER_STAGES, "model.num_mtp_layers=1"], "which model.num_mtp_layers puts on one stage"),
        ([OVER_STAGES, "plan.pp=2", "plan.pipeline_layout=Et|tL"], "vocabulary_over_stages deals layers evenly"),
    ],
)  # fmt: skip
def test_nothing_is_coerced_in_silence(overrides, says):
    with pytest.raises(FlopcastError, match=says):
        load_scenario(MAIN, overrides)


@rows("plan", [[{"tp": 2}, {"tp": 2}], "x", [], 3])
def test_a_section_that_is_no_mapping_is_named_whatever_the_framework_would_set_in_it(plan):
    data = {
        "model": "llama2-7b", "cluster": "selene", "plan": plan, "stack": {"framework": "torchtitan"},
        "training": {"global_batch_size": 8, "sequence_length": 4096},
    }  # fmt: skip
    with pytest.raises(SpecError, match="plan"):
        build_scenario(data)
