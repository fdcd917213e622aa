"""Measured runs from a CSV: units that can be turned round, links in words, every guess listed, every refusal with its reason."""

import math
from pathlib import Path

import pytest
from counts import layer_forward_flop
from hypothesis import given
from hypothesis import strategies as st

from flopcast_calibration.readers.training_runs import FACTS, REQUIRED, read_rows, read_run, read_training_runs
from flopcast_validation.runs.scored import file_of, score_all
from sim.errors import SpecError
from sim.estimate import estimate
from sim.specs.yaml12 import load_yaml
from sim.work.sums import hardware_flop, model_flop, total_params

CONVENTIONS = [
    "", "model", "hardware incl. full recompute (4x forward)", "megatron2021", "hardware: 8*N per token (full recompute)",
    "8*N (with recompute) / 6*N (without) per token", "model, causal attention halved",
]  # fmt: skip


# Units


@given(measured=st.floats(1.0, 1e4), unit=st.sampled_from(FACTS["units"]), convention=st.sampled_from(CONVENTIONS))
def test_units_can_be_turned_round(measured, unit, convention, run_row):
    run = read_run(run_row(measured_unit=unit, flops_convention=convention, measured_value=measured), "row 1")
    assert run.skipped is None
    assert run.in_unit(run.step_time_s(run.scenario), run.scenario) == pytest.approx(measured, rel=1e-12)


def test_units_by_hand(run_row):
    run = read_run(run_row(), "row 1")
    tokens = 64 * 2048
    expected = {
        "iteration_s": 2.0, "tokens_per_s": tokens / 2, "tokens_per_s_per_gpu": tokens / 2 / 16,
        "tokens_per_s_per_node": tokens / 2 / 2, "samples_per_s": 32.0, "samples_per_s_per_gpu": 2.0,
    }  # fmt: skip
    for unit, value in expected.items():
        assert read_run(run_row(measured_unit=unit), "row 1").in_unit(2.0, run.scenario) == value


def test_flop_conventions_by_hand(run_row):
    def rate(convention, **changes):
        run = read_run(run_row(measured_unit="tflops_per_gpu", flops_convention=convention, **changes), "row 1")
        return run.in_unit(2.0, run.scenario) * 2.0 * 16 * 1e12

    scenario = read_run(run_row(), "row 1").scenario
    model, training, plan = scenario.model, scenario.training, scenario.plan
    tokens = training.tokens_per_step
    assert rate("model") == rate("") == pytest.approx(model_flop(model, training))
    assert rate("megatron2021") == pytest.approx(hardware_flop(model, training, plan))
    # The papers' formula counts recomputation even where the row says there was none.
    assert rate("megatron2021", recompute="none") == rate("megatron2021")
    assert rate("8*N (with recompute) / 6*N (without)") == pytest.approx(8 * total_params(model) * tokens)
    assert rate("8*N (with recompute) / 6*N (without)", recompute="none") == pytest.approx(
        6 * total_params(model) * tokens
    )
    # 4 b s² h a layer for scores and values forward, thrice that with the backward, half of it not counted.
    attention = 3 * 24 * 4 * 64 * 2048**2 * 2304
    assert rate("model") - rate("model, causal attention halved") == pytest.approx(attention / 2, rel=1e-3)
    assert layer_forward_flop(model, 64, 2048) > attention / 3 / 24
    # What Megatron-Core's releases print since they count half.
    assert rate("model", framework="Megatron-Bridge") == rate("model, causal attention halved")


# What the row does not say


def test_every_inference_is_listed(run_row):
    expected = {
        "vocab": "vocab 51200", "kv_heads": "kv_heads 24", "ffn_hidden": "ffn_hidden 9216", "gated_mlp": "gated_mlp n",
        "gpus_per_node": "gpus_per_node 8", "inter_node_link": "network as in node preset", "cp": "cp 1",
        "global_batch_seqs": "global_batch_seqs 16", "micro_batch_seqs": "micro_batch_seqs: the fastest of",
        "zero_stage": "zero_stage 0", "sequence_parallel": "sequence_parallel n", "precision": "precision bf16",
        "recompute": "recompute: none where it fits", "schedule": "schedule 1f1b", "stack.version": "framework megatron-lm latest",
    }  # fmt: skip
    full = set(read_run(run_row(), "row 1").inferred)
    new = {column: set(read_run(run_row(**{column: ""}), "row 1").inferred) - full for column in expected}
    wrong = {column: rules for column, rules in new.items()
             if not any(rule.startswith(expected[column]) for rule in rules) or (len(rules) > 1 and column != "stack.version")}  # fmt: skip
    assert wrong == {}


def test_a_count_of_parameters_tells_tied_tables_and_key_value_heads(run_row):
    # huggingface.co/Qwen/Qwen2.5-14B and Qwen2.5-1.5B, config.json; three digits are a count, two are a name.
    larger = run_row(
        model_name="", kv_heads="", layers=48, hidden=5120, heads=40, ffn_hidden=13824, gated_mlp="y", vocab=152064
    )
    smaller = run_row(
        model_name="", kv_heads="", layers=28, hidden=1536, heads=12, ffn_hidden=8960, gated_mlp="y", vocab=151936
    )
    cases = [(larger, "14.77", 8, False), (larger, "15", 40, False), (larger, "12.2", 40, False),
             (smaller, "1.544", 2, True), (smaller, "", 12, False)]  # fmt: skip
    wrong = []
    for row, said, shared, tied in cases:
        run = read_run({**row, "params_b": said}, "row 1")
        model = run.scenario.model
        if (model.num_kv_heads, model.tied_embeddings) != (shared, tied):
            wrong.append((said, model.num_kv_heads, model.tied_embeddings, run.inferred))
        assert any("by params_b" in rule for rule in run.inferred) == (said in ("14.77", "1.544"))
    assert wrong == []


def test_a_run_whose_state_has_no_room_held_less_of_it(run_row):
    # 16 bytes for each of 0.8 billion parameters a layer: one node shards or trains adapters, several offload
    # the optimizer, or train adapters where that is not enough.
    large = {
        "hidden": 8192, "heads": 64, "kv_heads": 64, "ffn_hidden": 32768, "tp": 1, "pp": 1,
        "micro_batch_seqs": 1, "recompute": "full", "vp_stages": 1, "schedule": "1f1b",
    }  # fmt: skip
    cases = {
        ("Hugging Face Trainer", 1, 20, ""): ("adapter_rank 16: ", {"adapter_rank": 16}, {}),
        ("Hugging Face Trainer", 8, 20, ""): ("zero_stage 3: ", {}, {"zero_stage": 3}),
        ("DeepSpeed", 2, 20, 3): ("adapter_rank 16: ", {"adapter_rank": 16}, {}),
        ("DeepSpeed", 16, 120, 3): ("optimizer_offload 1: ", {}, {"optimizer_offload": 1.0}),
        ("DeepSpeed", 16, 420, 3): ("adapter_rank 16: ", {"adapter_rank": 16}, {}),
        ("Megatron-LM", 1, 20, 0): ("", {}, {}),
    }  # fmt: skip
    for (framework, gpus, layers, stage), (rule, training, plan) in cases.items():
        shared = {"framework": framework, "layers": layers, "zero_stage": stage}
        own = {**shared, "num_gpus": gpus, "dp": gpus, "global_batch_seqs": gpus}
        (scored,) = score_all([read_run(run_row(**large, **own), "row 1")])
        assert scored.fits == bool(rule), framework
        assert not rule or scored.run.inferred[-1].startswith(rule), framework
        file = file_of(scored.run, scored.scenario)
        assert training.items() <= file["training"].items(), framework
        assert plan.items() <= file["plan"].items(), framework
        # What is stated stays.
        assert stage in ("", scored.scenario.plan.zero_stage), framework


# What a run must have done to fit


def test_an_unknown_framework_is_taken_for_what_was_usual_in_its_time(run_row):
    wrong = {}
    for changes, stack, says in (
        ({"precision": "bf16"}, "pytorch", "priced as one with flash attention"),
        ({"precision": "bf16", "stack.version": "2022"}, "megatron-2021", "framework unknown 2022"),
        ({"precision": "fp16"}, "megatron-2021", "by fp16"),
        ({"precision": "", "gpu": "V100-SXM2-32GB"}, "megatron-2021", "by V100"),
    ):
        run = read_run(run_row(framework="Homegrown", **changes), "row 1")
        if run.scenario.stack.name != stack or not any(says in rule for rule in run.inferred):
            wrong[says] = run.scenario.stack.name, run.inferred
    assert wrong == {}


# Refusals


REFUSED = load_yaml(Path(__file__).parent / "refused.yaml")["runs"]
"""Changes of a row, and what its refusal says."""


def test_refused_rows_stay_and_say_why(run_row):
    runs = [(read_run(run_row(**changes), "row 1"), says) for changes, says in REFUSED]
    wrong = [
        (run.skipped, says)
        for run, says in runs
        if run.choices or says not in (run.skipped or "") or "\n" in run.skipped
    ]
    assert wrong == []
    assert {run.id for run, _ in runs} == {"one"}


NUMBERS = (
    "num_gpus", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "seq_len", "tp", "pp",
    "vp_stages", "cp", "dp", "global_batch_seqs", "micro_batch_seqs", "measured_value",
)  # fmt: skip


def test_nonsense_numbers_are_refused_in_few_words(run_row):
    wrong = []
    for column in NUMBERS:
        for text in ("nan", "inf", "-inf", "-3", "0", "1e308", "1e-308", "9" * 400, "abc", "[/b]", "1e18"):
            said = read_run(run_row(**{column: text}), "row 1").skipped or ""
            if not 0 < len(said) < 420 or not (column in said or "tp · " in said):
                wrong.append((column, text, said))
    assert wrong == []


@given(row=st.dictionaries(st.sampled_from([*NUMBERS, "gpu", "precision", "schedule", "recompute", "zero_stage", "notes", "framework", "inter_node_link", "gpu_mem_gb", "flops_convention", "measured_unit", "kernel", "plan.tp", "plan.zero_stage", "cluster.node", "cluster.node.preset", "model.num_layers", "training.sequence_length", "stack.framework"]), st.text(max_size=12) | st.integers(-10, 10**6).map(str), max_size=3))  # fmt: skip
def test_whatever_a_cell_holds_there_is_a_scenario_or_a_reason(row, run_row):
    run = read_run(run_row(**row), "row 1")
    assert bool(run.choices) != bool(run.skipped)
    if run.choices:
        assert math.isfinite(run.step_time_s(run.scenario))


# Files


def test_rows_that_differ_in_their_measurement_alone_share_their_scenarios(runs_file, run_row):
    rows = [run_row(id=i, measured_value=v) for i, v in (("a", 3), ("b", 4))] + [run_row(id="c", dp="", tp=4)]
    first, second, third = read_training_runs(runs_file(rows))
    assert first.choices is second.choices
    assert (first.measured, second.measured) == (3, 4)
    assert third.choices is not first.choices


def test_byte_order_mark_crlf_quoted_newlines_and_spaces_in_the_header(tmp_path, run_row):
    row = run_row(notes='"two\r\nlines, and a comma"')
    path = tmp_path / "runs.csv"
    path.write_bytes(("\ufeff" + ", ".join(row) + "\r\n" + ",".join(row.values()) + "\r\n").encode())
    (run,) = read_training_runs(path)
    assert run.skipped is None
    assert run.id == "one"


def test_files_that_cannot_be_read(tmp_path):
    for name, content, says in (
        ("empty.csv", b"", "lacks the columns"),
        ("some.csv", b"gpu,layers\n1,2\n", "lacks the columns num_gpus, hidden, heads, seq_len"),
        ("header.csv", ",".join(REQUIRED).encode(), "has a header and no rows"),
        ("latin.csv", ",".join(REQUIRED).encode() + b"\ncaf\xe9\n", "not a text file in UTF-8"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SpecError, match=says):
            read_rows(tmp_path / name, REQUIRED)
    with pytest.raises(SpecError, match="No such file"):
        read_rows(tmp_path / "nowhere.csv", REQUIRED)
    with pytest.raises(SpecError, match="is a folder"):
        read_rows(tmp_path, REQUIRED)


def test_a_profile_for_all_runs(runs_file, run_row, tmp_path):
    path = runs_file([run_row()])
    with pytest.raises(SpecError, match="unknown profile preset 'a10'; did you mean 'a100'"):
        read_training_runs(path, "a10")
    with pytest.raises(SpecError, match="cannot read"):
        read_training_runs(path, str(tmp_path / "none.yaml"))
    assert "was made for H100" in read_training_runs(path, "h100")[0].skipped
    assert estimate(read_training_runs(path, "a100")[0].scenario).step_time_s > 0
