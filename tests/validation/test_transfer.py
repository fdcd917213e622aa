"""Runs of others' frameworks and GPUs: taken for unknown, known by a datasheet, and after some of them were measured."""

import math
from dataclasses import replace

import numpy as np
import pytest

from flopcast_calibration.datasheet import GPUS, table
from flopcast_calibration.from_runs import as_driven, fit_runs, parameters_named, priors
from flopcast_calibration.readers.training_runs import read_run, read_runs, read_training_runs
from flopcast_calibration.write import as_measured
from flopcast_validation.runs.scored import file_of, score_all
from flopcast_validation.runs.transfer import (
    Transfer,
    after_runs,
    coverages,
    datasheet_only,
    predicted_anew,
    sources,
    summaries,
    unknown_stack,
)
from sim import estimate, load_scenario
from sim.errors import SpecError
from sim.specs import load_preset
from sim.specs.hardware import GpuSpec
from sim.specs.presets import TABLE, datasheet_profile, watts_per_flop_per_s
from sim.specs.values import drawn_as_near, place_of, start_of, with_values
from sim.specs.yaml12 import load_yaml
from sim.uncertainty import PARTS, Doubt, doubt_of, shipped_spreads, spread_of

LAYOUTS = ((1, 1, 1, 1), (2, 2, 1, 4), (8, 2, 2, 2), (8, 8, 1, 1), (4, 1, 4, 1), (8, 4, 2, 8))
SLOWER = {"gemm.max_efficiency": 0.65}


@pytest.fixture(scope="module")
def scored(run_row):
    """Two sources' runs of one model in six layouts, as a framework whose multiplies are slower would measure them."""
    rows = []
    for source in ("here", "there"):
        for index, (gpus, tp, pp, size) in enumerate(LAYOUTS):
            row = run_row(
                id=f"{source}-{index}", source=source, num_gpus=gpus, layers=24, hidden=4096, heads=32, kv_heads=32,
                ffn_hidden=16384, tp=tp, pp=pp, dp=gpus // tp // pp, micro_batch_seqs=size, zero_stage="0",
            )  # fmt: skip
            scenario = read_run(row, "row").choices[0]
            seconds = estimate(with_values(scenario, SLOWER)).step_time_s
            rows.append({**row, "measured_value": repr(seconds), "measured_unit": "iteration_s"})
    return score_all(read_runs(rows))


@pytest.fixture(scope="module")
def after_one(scored):
    return after_runs(scored, 1)


@pytest.fixture(scope="module")
def unknown(scored):
    """The runs as those of a framework that nobody knows, and these after one of them was measured."""
    runs = predicted_anew(scored, unknown_stack)
    return runs, after_runs(runs, 1)


def test_a_run_of_ones_own_brings_the_others_along(scored, after_one):
    """What one run says of a value holds for the others: the same slow multiplies are behind all of them."""
    one, three = after_one, after_runs(scored, 3)
    for every, most in ((one, 0.5), (three, 0.25)):
        before, after = (
            np.mean([abs(item.error) for each in every for item in getattr(each, name)]) for name in ("before", "after")
        )
        assert before > 0.1
        assert after < most * before
    for every, count in ((one, 1), (three, 3)):
        for each in every:
            assert len({item.run.source for item in each.after}) == 1
            assert len(each.after) == len(LAYOUTS) - count
            assert all(len(item.scenario.profile.provenance.measured) == count for item in each.after)


def test_the_further_away_a_run_is_the_less_it_tells(scored):
    """A sequence eight times as long takes of each run's pull what it has in common with that run."""
    scenario = scored[0].scenario
    value = scenario.profile.gemm.max_efficiency
    run = as_measured(scenario, estimate(scenario).breakdown.shares())
    run = run.replace(pulls={"gemm.max_efficiency": math.log(value / 0.9)})
    provenance = scenario.profile.provenance.replace(
        measured=(run,), moved={"gemm.max_efficiency": (0.9, value, 0.3, 1.0)}
    )
    drawn = scenario.replace(profile=scenario.profile.replace(provenance=provenance))
    same, said = drawn_as_near(drawn)
    assert same.profile.gemm.max_efficiency == pytest.approx(value)
    assert said == ""
    longer = drawn.replace(
        training=drawn.training.replace(sequence_length=8 * drawn.training.sequence_length),
        model=drawn.model.replace(max_sequence_length=8 * drawn.training.sequence_length),
    )
    near = math.exp(-3.0 * shipped_spreads().apart["sequence length"])
    moved, said = drawn_as_near(longer)
    want = 0.9 * (value / 0.9) ** near
    assert moved.profile.gemm.max_efficiency == pytest.approx(want, rel=1e-3)
    assert f"move only {near:.0%} of the way" in said
    own = longer.replace(profile=longer.profile.replace(gemm=longer.profile.gemm.replace(max_efficiency=0.5)))
    assert drawn_as_near(own)[0].profile.gemm.max_efficiency == 0.5  # what a scenario states stays
    told = Doubt(dict(run.shares), run.facts, run.place)
    away = told._replace(place=place_of(longer))
    assert spread_of(told, [told]) < spread_of(away, [told]) <= spread_of(away)


ODD = {
    "eight GPUs of another model": ({"num_gpus": 8, "dp": 8, "hidden": 1024, "heads": 16, "kv_heads": 16}, 0.5),
    "above the peak": ({}, 0.15),
    "a stalled loader": ({}, 3.0),
}
"""Runs that nobody should learn of: changes of the row, and how many times as long as predicted they took."""


@pytest.mark.parametrize("name", ODD)
def test_an_odd_run_makes_no_other_worse(name, run_row):
    """Alone it moves nothing; beside two sound runs these decide."""
    large = {
        "num_gpus": 384, "layers": 24, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn_hidden": 16384,
        "global_batch_seqs": 1536, "micro_batch_seqs": 1,
    }  # fmt: skip
    rows = [run_row(id=f"{tp}-{pp}", **large, tp=tp, pp=pp, dp=384 // tp // pp) for tp, pp in ((2, 1), (4, 2), (8, 3))]
    changes, factor = ODD[name]
    rows.append(run_row(**{"id": "odd", **large, "tp": 1, "pp": 1, "dp": 384, **changes}))
    runs = [read_run(row, "row") for row in rows]
    times = [estimate(run.choices[0]).step_time_s for run in runs]
    measured = [1.1 * each for each in times[:3]] + [factor * times[3]]
    timed = [replace(run, measured=each, unit="iteration_s") for run, each in zip(runs, measured, strict=True)]
    names = parameters_named(None)
    alone = fit_runs(timed[3:], names)
    assert alone.explained == ()
    assert not any(item.moved for item in alone.parameters)
    sound, beside = (fit_runs(given, names) for given in (timed[:2], [*timed[:2], timed[3]]))
    asked = timed[2].choices[0]
    one, other = (estimate(with_values(asked, fit.values)).step_time_s / measured[2] - 1 for fit in (sound, beside))
    assert abs(one) < 0.04 < abs(times[2] / measured[2] - 1)
    assert abs(other) < abs(one) + 0.02


def test_a_folder_of_cases_is_a_table_of_runs(tmp_path, scenarios):
    (tmp_path / "cases").mkdir()
    text = (scenarios / "megatron-2021" / "1.7b.yaml").read_text(encoding="utf-8")
    (tmp_path / "cases" / "one.yaml").write_text(text, encoding="utf-8")
    table = tmp_path / "cases.csv"
    table.write_text("id,source,measured_step_s\none,somebody,3.5\nnone,somebody,\nlost,somebody,2\n", encoding="utf-8")
    one, none, lost = read_training_runs(tmp_path)
    assert (one.measured, one.family, one.skipped) == (3.5, "somebody / gpt1.7b", None)
    assert none.skipped == "no step time was measured"
    assert "lost.yaml" in lost.skipped
    (item, *_) = score_all([one, none, lost])
    assert file_of(item.run, item.scenario)["plan"]
    with pytest.raises(SpecError, match=r"has no cases.csv; give a CSV of runs, or a folder"):
        read_training_runs(tmp_path / "cases")


@pytest.mark.parametrize("changes", [(), ("stack.attention=flash", "stack.fused_norm=false")])
def test_shares_are_slopes_of_the_values_that_drive_them(changes):
    scenario = load_scenario("scenarios/megatron-2021/1.7b.yaml", changes)
    answer = estimate(scenario)
    shares = as_driven(doubt_of(scenario, answer.breakdown.shares()), scenario).shares
    slopes = dict.fromkeys(PARTS, 0.0)
    for name, known in priors().items():
        start = start_of(scenario, name)
        value = known.pulled(start, 0.1 * known.power)
        longer = np.log(estimate(with_values(scenario, {name: value})).step_time_s / answer.step_time_s)
        slopes[known.part] += longer / 0.1
    for part in ("matrix multiplies", "attention", "memory-bound kernels"):
        assert slopes[part] == pytest.approx(shares.get(part, 0.0), abs=0.06), part


@pytest.mark.thorough
def test_the_report_has_every_way_to_know_a_run(scored, unknown):
    runs, after = unknown
    found = Transfer(scored, runs, predicted_anew(scored, datasheet_only), {1: after, 3: after_runs(runs, 3)})
    rows = summaries(found)
    assert [row.what for row in rows] == [
        "known", "known, GPU by datasheet", "unknown", "after one run", "after three runs",
    ]  # fmt: skip
    assert all(row.before == row.error for row in rows[:3])
    assert rows[3].error < rows[3].before
    assert {each.name for each in coverages(found)} >= {"known framework, 16-bit", "unknown framework, after one run"}
    assert all(0 <= each.mean <= 1 and each.factor >= 1 for each in coverages(found))
    assert len(sources(scored)) == 2


# What a datasheet tells.


def test_the_shipped_table_is_what_the_profiles_have_in_common():
    shipped = load_yaml(TABLE)
    assert {name: shipped[name] for name in table()} == table()


def by_datasheet_of(gpu):
    return datasheet_profile(GpuSpec.read(load_preset("gpus", gpu), gpu))


# GPU, FLOPs a clock that its matrix units do in a multiprocessor: A100's do 2,048, and reach 0.62 of peak.
GRAPHICS_CARDS = {
    "rtx-a6000-48gb": 1024, "rtx-pro-6000-96gb": 1024, "l40s-48gb": 1024, "rtx-4090-24gb": 512, "l40-48gb": 512,
}  # fmt: skip


def test_attention_of_graphics_cards_loses_to_exponentials_what_its_slower_multiplies_leave():
    for gpu, flop in GRAPHICS_CARDS.items():
        lost = (1 / 0.62 - 1) * flop / 2048
        assert by_datasheet_of(gpu)["attention"]["forward_efficiency"] == pytest.approx(1 / (1 + lost), rel=0.02), gpu


@pytest.mark.parametrize("left", ["v100-sxm3", "a100", "h100", "b200"])
def test_the_share_of_peak_follows_the_power(left):
    """Of a GPU that the law has not seen, what multiplies reach in training, from its datasheet alone."""
    law = table([left])["power_law"]
    gpu = GpuSpec.read(load_preset("gpus", GPUS[left]), left)
    watts = watts_per_flop_per_s(gpu if gpu.max_power_w else gpu.replace(max_power_w=450.0))
    reached = min(1.0, law["max_efficiency"] * (watts / law["at"]) ** law["exponent"])
    assert reached == pytest.approx(load_preset("profiles", left)["gemm"]["max_efficiency"], rel=0.15)
