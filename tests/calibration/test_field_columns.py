"""Columns that are fields of a scenario, shares of peak as measurements, models by their name."""

import pytest

from flopcast_calibration.readers.field_columns import ABOUT_THE_RUN, CELLS, check_columns, override_cells, with_fields
from flopcast_calibration.readers.training_runs import read_run, read_training_runs, unread_columns
from sim.errors import SpecError
from sim.specs.loading import SECTIONS
from sim.work.sums import hardware_flop, model_flop


def test_short_columns_stand_for_fields():
    for path, cell in CELLS.items():
        section, _, field = path.partition(".")
        assert field in SECTIONS[section].model_fields
        assert cell in ABOUT_THE_RUN


def test_a_field_s_column_says_it(run_row):
    row = run_row(
        notes="", **{"stack.attention": "math", "plan.recompute": "per_op", "cluster.node.gpu.memory": "90 GB"}
    )
    run = read_run(row, "row 1")
    (scenario,) = run.choices
    assert (scenario.stack.attention, scenario.plan.recompute) == ("math", "per_op")
    assert scenario.cluster.gpu.memory_bytes == 90e9
    # The path of a field that has a column of its own fills that one where it is empty.
    by_path = read_run(
        {**run_row(tp="", dp="", sequence_parallel=""), "plan.tp": "4", "plan.sequence_parallel": "true"}, "row 1"
    ).scenario
    assert (by_path.plan.tp, by_path.plan.sequence_parallel) == (4, True)
    assert read_run({**run_row(framework="NeMo"), "stack.version": "24.10"}, "").scenario.stack.packed_masters


def test_columns_that_nothing_reads_are_named(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("gpu,micro_batch_seq,plan.tp,stack.attention,colour\n1,2,3,4,5\n")
    assert unread_columns(path) == ["micro_batch_seq; did you mean 'micro_batch_seqs'?", "colour"]
    for column, says in (("stak.attention", "no section 'stak'"), ("stack.atention", "did you mean 'attention'")):
        with pytest.raises(SpecError, match=says):
            check_columns([column])


def test_overrides_win_over_cells(runs_file, run_row):
    path = runs_file([run_row(tp=2, dp=4, sequence_parallel="n")])
    (plain,), (other,) = (read_training_runs(path, None, said) for said in ((), ("plan.tp=4", "plan.dp=2")))
    assert (plain.scenario.plan.tp, other.scenario.plan.tp) == (2, 4)
    for wrong in ("plan.tp", "tp=4", "plan.tpp=4", "plan.tp="):
        with pytest.raises(SpecError, match=r"must look like|has no field"):
            override_cells([wrong])


def test_fields_laid_over_a_preset_s_name_is_a_section_that_differs():
    assert with_fields({"profile": "a100", "a": {"b": 1}}, {"profile": {"gpu": "x"}, "a": {"c": 2}}) == {
        "profile": {"preset": "a100", "gpu": "x"},
        "a": {"b": 1, "c": 2},
    }


def test_shares_of_peak(run_row):
    recomputing = {"recompute": "full", "precision": "bf16"}
    seconds = read_run(run_row(**recomputing), "").scenario
    gpus, peak = seconds.plan.num_gpus, 312e12
    for unit, flop in (
        ("mfu_pct", model_flop(seconds.model, seconds.training)),
        ("hfu_pct", hardware_flop(seconds.model, seconds.training, seconds.plan)),
    ):
        run = read_run(run_row(measured_unit=unit, measured_value=40, **recomputing), "")
        assert run.step_time_s(run.scenario) == pytest.approx(flop / (0.40 * peak * gpus))
        assert run.in_unit(run.step_time_s(run.scenario), run.scenario) == pytest.approx(40)
        half = read_run(run_row(measured_unit=unit, measured_value=40, peak_tflops=156, **recomputing), "")
        assert half.step_time_s(half.scenario) == pytest.approx(2 * run.step_time_s(run.scenario))
    halved = read_run(
        run_row(measured_unit="mfu_pct", measured_value=40, flops_convention="causal attention halved", **recomputing),
        "",
    )
    assert halved.step_time_s(halved.scenario) < model_flop(seconds.model, seconds.training) / (0.4 * peak * gpus)


def test_tokens_of_a_node(run_row):
    run = read_run(run_row(measured_unit="tokens_per_s_per_node", measured_value=1000), "")
    nodes = run.scenario.plan.num_gpus / run.scenario.cluster.node.gpus_per_node
    assert run.step_time_s(run.scenario) == pytest.approx(run.scenario.training.tokens_per_step / nodes / 1000)


@pytest.mark.parametrize("name", ["llama3-70b", "Llama3 70B", "meta-llama/Llama-3.1-70B-Instruct", "Meta-Llama-3-70B"])
def test_a_known_model_needs_no_sizes(name, run_row):
    sizes = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "gated_mlp"), "")
    run = read_run(run_row(model_name=name, tp=8, dp=1, zero_stage=3, **sizes), "row 1")
    model = run.scenario.model
    assert (model.num_layers, model.hidden_size, model.num_kv_heads, model.norm) == (80, 8192, 8, "rmsnorm")
    other = read_run(run_row(model_name=name, tp=8, dp=1, zero_stage=3, **{**sizes, "layers": 40, "hidden": 8192, "heads": 64, "ffn_hidden": 28672}), "row 1")  # fmt: skip
    assert other.scenario.model.num_layers == 40


def test_an_unknown_model_without_sizes_says_so(run_row):
    assert "is no model that ships" in read_run(run_row(model_name="Llama 9", layers=""), "").skipped


def test_columns_that_contradict_each_other_say_so(run_row):
    said = read_run(run_row(precision="bf16", **{"training.precision": "fp8"}), "row 1").skipped
    assert said == "training.precision = fp8 and precision = bf16 contradict each other; leave one empty"


def test_what_a_column_says_is_not_inferred(run_row):
    row = run_row(framework="torchtitan", recompute="", **{"plan.recompute": "per_op", "stack.version": "2025-06"})
    run = read_run(row, "row 1")
    assert run.scenario.plan.recompute == "per_op"
    assert not any(line.startswith(("recompute", "framework")) for line in run.inferred)
