"""`flopcast validate --memory`: layouts that ran or did not, each predicted or refused with its reason."""

import json

import pytest
from typed import typed

from flopcast_validation.runs.memory import Outcome, score_memory, summary, with_their_runs


@pytest.fixture
def layouts(runs_file, run_row):
    """The function (changes of each row) -> outcomes."""

    def score(*changes):
        rows = [{**run_row(**change), "outcome": change.get("outcome", "ok")} for change in changes]
        for row in rows:
            del row["measured_value"], row["measured_unit"]
        return score_memory(runs_file(rows))

    return score


def test_predictions_say_what_is_needed_and_what_there_is(layouts):
    fits, full = layouts({}, {"outcome": "OOM Error", "recompute": "none", "layers": 96})
    assert (fits.row, fits.outcome, fits.predicted) == (1, "ok", "fits")
    assert fits.needed_bytes < fits.available_bytes == pytest.approx(85094039552)  # as an A100's driver reports it
    assert (full.row, full.outcome, full.predicted) == (2, "OOM Error", "oom")
    assert full.needed_bytes > full.available_bytes
    assert fits.right
    assert full.right


def test_outcomes_in_words(layouts):
    ran = {"ok": True, "OK": True, "fits": True, "OOM": False, "out of memory": False, "Out-of-Memory": False,
           "CUDA OOM at step 3": False}  # fmt: skip
    found = layouts(*({"outcome": said} for said in ran))
    assert {item.outcome: item.ran for item in found if item.skipped is None} == ran
    others = layouts(*({"outcome": said} for said in ("", "crashed", "NCCL timeout", "nan")))
    assert {item.skipped for item in others} == {
        f"outcome {item.outcome!r} is neither ok nor out of memory" for item in others
    }
    assert all(item.right is None for item in others)
    assert summary(others)["accuracy"] is None


def test_a_peak_counts_what_its_source_s_program_prints(layouts):
    # pytorch/torchtitan:torchtitan/components/metrics.py prints max_reserved; FlagPerf's tables say nothing of theirs.
    reserved, stated, unknown = layouts(
        {"source": "torchtitan, page on performance", "peak_gb": "20"},
        {"source": "torchtitan, page on performance", "peak_gb": "20", "peak_counts": "allocated"},
        {"source": "FlagPerf", "peak_gb": "20"},
    )
    assert stated.comparable_bytes < reserved.comparable_bytes < unknown.comparable_bytes > unknown.needed_bytes


def test_command_line(runs_file, run_row, tmp_path):
    path, out = runs_file([run_row(outcome="ok"), run_row(outcome="?")]), tmp_path / "out.json"
    result = typed("validate", "--memory", path, "--json", out)
    assert result.returncode == 0
    assert "100.0% of 1 outcomes right" in result.stdout
    assert "outcome '?' is neither ok nor out of memory" in result.stdout
    data = json.loads(out.read_text())
    assert set(data) == {"rows", "summary"}
    keys = "row outcome predicted needed_bytes available_bytes skipped peak_bytes comparable_bytes"
    assert set(data["rows"][0]) == set(keys.split())


def test_peaks_are_compared_with_what_they_count(runs_file, run_row):
    of_stack = {"stack.framework_memory": "3 GB", "stack.fragmentation": "0.1"}
    changes = [
        {"peak_counts": counts, "peak_rank": rank} for counts in ("", "allocated", "reserved") for rank in ("", "last")
    ]
    rows = [
        run_row(outcome="ok", peak_gb=10, pp=2, num_gpus=16, recompute="none", **of_stack, **each) for each in changes
    ]
    found = {
        (each["peak_counts"], each["peak_rank"]): item
        for each, item in zip(changes, score_memory(runs_file(rows)), strict=True)
    }
    assert not any(item.skipped for item in found.values())
    everything, reserved, allocated = (found[counts, ""].comparable_bytes for counts in ("", "reserved", "allocated"))
    assert everything == found["", ""].needed_bytes
    assert reserved == pytest.approx(everything - 3e9)
    assert allocated < reserved < everything
    assert (
        found["allocated", "last"].comparable_bytes < allocated
    )  # the first rank holds two micro-batches, the last one
    assert found["allocated", ""].peak_error == allocated / 10e9 - 1


def test_what_a_layout_leaves_out_is_as_in_its_run():
    at = {"source_locator": "table 1", "gpu": "A100"}
    layout = {**at, "tp": "2", "zero_stage": "", "peak_gb": "50"}
    runs = [
        {**at, "tp": "2", "zero_stage": "1", "framework": "NeMo", "notes": "first", "measured_value": "3"},
        {**at, "tp": "4", "zero_stage": "2", "framework": "NeMo", "measured_value": "4"},  # another layout
        {**at, "source_locator": "table 2", "tp": "2", "zero_stage": "3", "framework": "DeepSpeed"},
    ]
    assert with_their_runs([layout], runs) == [{**layout, "zero_stage": "1", "framework": "NeMo"}]
    # of two runs that it may be of it has what they agree on
    both = [runs[0], {**runs[0], "zero_stage": "2"}]
    assert with_their_runs([layout], both) == [{**layout, "framework": "NeMo"}]
    assert with_their_runs([{**layout, "zero_stage": "2"}], both) == [
        {**layout, "zero_stage": "2", "framework": "NeMo"}
    ]
    assert with_their_runs([layout, {"tp": "2"}], [{"tp": "2", "zero_stage": "1"}]) == [layout, {"tp": "2"}]
    # Two layouts that ran are the two, in the same order; what ran out of memory has no run.
    ran, full = {**layout, "outcome": "ok"}, {**layout, "outcome": "OOM Error"}
    assert [each.get("zero_stage") for each in with_their_runs([ran, full, ran], both)] == ["1", "", "2"]


def test_only_what_ran_is_taken_to_have_held_less(layouts):
    # 7 billion weights under Adam have no room on one GPU: what was measured trained adapters.
    seven = {"framework": "PyTorch", "layers": 32, "hidden": 4096, "heads": 32, "ffn_hidden": 11008, "gated_mlp": "y",
             "vocab": 32000, "kv_heads": 32, "num_gpus": 1, "tp": 1, "pp": 1, "dp": 1, "micro_batch_seqs": 1, "precision": "bf16", "recompute": "full"}  # fmt: skip
    ran, full = layouts(seven, {**seven, "outcome": "OOM"})
    assert (ran.predicted, full.predicted) == ("fits", "oom")


def test_false_alarms_are_of_all_and_of_those_that_ran():
    pairs = (("ok", "fits"), ("ok", "oom"), ("OOM", "fits"), ("OOM", "oom"), ("OOM", "oom"), ("ok", None))
    found = summary([Outcome(row, said, predicted, None, None) for row, (said, predicted) in enumerate(pairs)])
    assert (found["count"], found["skipped"], found["accuracy"]) == (5, 1, pytest.approx(0.6))
    assert (found["false_oom"], found["false_oom_of_those_that_ran"], found["missed_oom"]) == (0.2, 0.5, 0.2)


@pytest.mark.thorough
def test_published_peaks_of_the_third_collection(measurements):
    alone, joined = (
        summary(score_memory(measurements / "memory_outcomes_3.csv", runs))
        for runs in ([], [measurements / "training_runs_3.csv"])
    )
    assert joined["peaks"] >= 150
    assert joined["peak_error"] <= 0.11 < alone["peak_error"] <= 0.13
    assert joined["accuracy"] >= 0.98
