"""Bad input: every mistake gets one message that names the value, the rule and the nearest remedy."""

import re
import shlex
from operator import attrgetter
from pathlib import Path

import pytest
from rows import rows

from sim import build_scenario, load_scenario
from sim.errors import FlopcastError, SpecError
from sim.specs.yaml12 import dump_yaml, load_yaml, parse_yaml

MAIN = Path(__file__).parents[2] / "scenarios" / "gpt-1t-3072-a100.yaml"
MISTAKES = load_yaml(Path(__file__).with_name("mistakes.yaml"))


@rows(("name", "table"), MISTAKES.items())
def test_every_mistake_is_named_with_its_rule_and_remedy(name, table):
    silent = {}
    for line in table.strip().splitlines():
        given, _, says = line.partition(" | ")
        try:
            found = repr(load_scenario(MAIN.with_name(f"{name}.yaml"), shlex.split(given.replace("ONES", "1" * 400))))
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
