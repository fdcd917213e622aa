"""Training steps of transformers' models on one GPU: the table that ships, and the verb that writes such tables."""

import csv
from pathlib import Path
from statistics import median

import pytest
from scored import score_runs
from typer.testing import CliRunner

from flopcast_validation import steps
from flopcast_validation.cli import app
from flopcast_validation.runs.memory import score_memory
from sim.estimate import estimate
from sim.pricing.layouts import cost_model, cut_of
from sim.work.layers import head_operations, layer_operations
from sim.work.memory import CACHED
from sim.work.operations import Phase

DATA = Path(__file__).parents[2] / "calibration" / "data"
TABLE = DATA / "h200-steps.csv"


@pytest.fixture(scope="module")
def scored():
    return {item.run.id: item for item in score_runs(TABLE)}


def mean(values):
    values = [abs(each) for each in values]
    return sum(values) / len(values)


def test_steps_on_an_h200(scored):
    """Tight where kernels are large; the host's speed, and caches that small kernels meet, are nobody's to know."""
    errors = {name: item.error for name, item in scored.items()}
    assert len(errors) == 27
    assert not any(item.skipped for item in scored.values())
    assert mean(errors.values()) < 0.055
    assert mean(error for name, error in errors.items() if "lora" in name) < 0.02
    assert mean(item.covered for item in scored.values()) > 0.9


def test_steps_on_an_h100():
    """Of dense models none set a value: its multiplies were measured one by one. Experts in a loop, and grouped."""
    scored = {item.run.id: item for item in score_runs(DATA / "h100-steps.csv")}
    assert len(scored) == len(list(steps.suite())) - 1  # compiled under autocast was cut off
    errors = {name: item.error for name, item in scored.items() if not item.skipped}
    assert len(errors) == 33  # scores in memory do not fit
    assert mean(errors.values()) < 0.055
    assert mean(error for name, error in errors.items() if "experts in a loop" in name) < 0.05
    outcomes = [each for each in score_memory(DATA / "h100-steps.csv") if each.peak_bytes]
    assert len(outcomes) == 33
    assert all(each.right for each in outcomes)
    assert mean(each.comparable_bytes / each.peak_bytes - 1 for each in outcomes) < 0.06


def test_the_share_that_the_allocator_keeps_is_what_these_steps_say():
    rows = [row for gpu in ("h100", "h200") for row in csv.DictReader((DATA / f"{gpu}-steps.csv").open())]
    kept = [float(row["reserved_gb"]) / float(row["peak_gb"]) - 1.0 for row in rows if row["reserved_gb"]]
    assert len(kept) == 60
    assert median(kept) == pytest.approx(CACHED, abs=5e-4)


def kernels_s(scenario, chosen, clocked=True):
    """Seconds of some kernels of a step, at the clock that the layers' other kernels leave or at the benchmark's."""
    compute, cut = cost_model(scenario).compute, cut_of(scenario)
    layer, head = (work(scenario.model, scenario.stack, cut) for work in (layer_operations, head_operations))
    phases = [Phase(getattr(each, way)) for each in layer for way in ("forward", "input_grad", "weight_grad")]
    compute = compute.at_its_clock(phases) if clocked else compute
    again = 2 if scenario.plan.recompute == "full" else 1
    found = 0.0
    for operations, times in ((layer, scenario.model.num_layers), (head, 1)):
        for each in operations:
            for kernel in (*each.forward * (again if operations is layer else 1), *each.input_grad, *each.weight_grad):
                if chosen(kernel):
                    found += times * float(sum(compute.phase_time(Phase((kernel,))).values()))
    return found * scenario.training.global_batch_size / scenario.plan.microbatch_size


@pytest.mark.parametrize("table", ["h100-steps.csv", "h200-steps.csv"])
def test_classes_of_kernels(table):
    """Each by itself, not only their sum: what is bound by memory, adapters' narrow multiplies, the optimizer."""
    with (DATA / table).open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    errors = {"rest": [], "gemm": [], "optimizer": []}
    for item in score_runs(DATA / table):
        name, lora = item.run.id, "lora" in item.run.id
        if any(word in name for word in ("eager", "compiled", "liger", "loop", "1024x1", "2048x1x")):
            continue  # kernels that are not counted, and those so small that caches hold what they read
        found, row = item.scenario, rows[name]
        rest = kernels_s(found, lambda each: each.kind == "memory" and each.name != "accumulate gradients")
        errors["rest"].append(rest / float(row["rest_s"]) - 1)
        if lora:
            errors["gemm"].append(kernels_s(found, lambda each: each.kind == "matmul") / float(row["gemm_s"]) - 1)
        else:
            seconds = estimate(found).breakdown.seconds["optimizer"]
            errors["optimizer"].append(seconds / float(row["optimizer_s"]) - 1)
    assert min(map(len, errors.values())) >= 8
    assert mean(errors["rest"]) < 0.09
    assert mean(errors["gemm"]) < 0.05
    assert mean(errors["optimizer"]) < 0.03


@pytest.mark.parametrize(
    ("run", "field", "worth"),
    [
        ("GPT-2 medium 1024x8x1 mixed", {"stack.autocast": False}, 0.15),
        ("Llama-3.2-1B 2048x4x1 mixed", {"stack.autocast": False}, 0.08),
        ("Llama-3.2-1B 2048x4x1 bf16 compiled", {"stack.masked_attention": False}, 0.08),
        ("Llama-3.2-1B 2048x4x1 bf16", {"stack.fused_norm": True}, 0.1),
        ("Llama-3.2-1B 2048x4x1 bf16", {"stack.fused_linears": True}, 0.01),
    ],
)
def test_what_transformers_runs_by_itself_takes(scored, run, field, worth):
    """Without a mechanism the step is this much faster, and further from what was measured."""
    scenario, measured = scored[run].scenario, scored[run].run.measured
    stack = scenario.stack.replace(**{name.partition(".")[2]: value for name, value in field.items()})
    without, whole = (estimate(each).step_time_s for each in (scenario.replace(stack=stack), scenario))
    assert without / whole - 1 < -worth
    assert abs(whole / measured - 1) < abs(without / measured - 1)


def test_the_verb_needs_a_gpu_and_keeps_what_was_measured(tmp_path):
    table = tmp_path / "steps.csv"
    table.write_bytes(TABLE.read_bytes())
    result = CliRunner().invoke(app, ["steps", "-o", str(table)])
    assert "torch sees no CUDA device" in str(result.exception)
    assert table.read_bytes() == TABLE.read_bytes()
    assert len(steps.read_rows(table)) == 27
