"""Fits to training runs: known values come back, what runs cannot tell stays where it was, whole families are left out."""

from dataclasses import replace
from pathlib import Path

import pytest
from typed import typed
from typer.testing import CliRunner

from flopcast_calibration.cli import app
from flopcast_calibration.from_runs import fit_runs, predict
from flopcast_calibration.readers.training_runs import read_run
from flopcast_calibration.write import write_runs_profile
from sim import estimate, load_scenario
from sim.errors import FlopcastError
from sim.specs import Profile
from sim.specs.presets import load_preset, split_profile
from sim.specs.values import place_of, with_values

ROOT = Path(__file__).parents[2]
TRUE = {"stack.kernel_launch_s": 4e-5, "gemm.max_efficiency": 0.7}
MODELS = {"small": (12, 1024), "middle": (24, 2048), "large": (24, 4096), "largest": (32, 6144)}
LAYOUTS = ((1, 1, 1, 1), (2, 2, 1, 4), (8, 2, 2, 2), (8, 8, 1, 1), (4, 1, 4, 1), (8, 4, 2, 8))


@pytest.fixture(scope="module")
def rows(run_row):
    """Runs on one node: four models of 12 to 32 layers in six layouts, as measured with the true values."""
    rows = []
    for name, (layers, hidden) in MODELS.items():
        for index, (gpus, tp, pp, size) in enumerate(LAYOUTS):
            row = run_row(
                id=f"{name}-{index}", source=name, model_name=name, num_gpus=gpus, layers=layers, hidden=hidden,
                heads=16, kv_heads=16, ffn_hidden=4 * hidden, tp=tp, pp=pp, dp=gpus // tp // pp, micro_batch_seqs=size,
            )  # fmt: skip
            rows.append({**row, "measured_value": repr(predict(read_run(row, "row"), TRUE).step_time_s)})
    return rows


@pytest.fixture(scope="module")
def runs(rows):
    return [read_run(row, "row") for row in rows]


@pytest.fixture(scope="module")
def fit(runs):
    return fit_runs(runs, [*TRUE, "network.shared_efficiency"])


def test_known_values_come_back(fit):
    for name, value in TRUE.items():
        (found,) = (parameter for parameter in fit.parameters if parameter.name == name)
        assert found.width < 0.75 * found.prior_width
        assert abs(found.value - value) < 0.5 * abs(found.prior - value)  # as far as what runs differ by lets them
    assert abs(fit.before).mean() > 0.1
    assert abs(fit.errors).mean() < 0.2 * abs(fit.before).mean()


def test_what_the_runs_cannot_tell_stays_and_says_so(fit):
    (network,) = (parameter for parameter in fit.parameters if parameter.name == "network.shared_efficiency")
    assert not network.identified
    assert network.value == pytest.approx(network.prior, rel=1e-3)
    assert network.width == pytest.approx(network.prior_width, rel=1e-3)


def test_runs_that_cannot_be_simulated_are_left_out(runs):
    scenario = runs[1].choices[0]
    broken = replace(
        runs[1], choices=(scenario.model_copy(update={"plan": scenario.plan.model_copy(update={"schedule": "?"})}),)
    )
    assert len(fit_runs([*runs[:3], broken], ["gemm.max_efficiency"]).runs) == 3
    for nothing in ([broken], []):
        with pytest.raises(FlopcastError, match="no run can be modelled"):
            fit_runs(nothing, ["gemm.max_efficiency"])


def test_values_of_single_precisions_and_collectives_move_along():
    """Multiplies in 8 bits have a share of peak of their own on H100, and all-to-alls a share of the link."""
    scenario = load_scenario("scenarios/llama3-405b-16384-h100.yaml", ["training.precision=fp8"])
    before = scenario.profile
    slow = with_values(scenario, {"gemm.max_efficiency": 0.8 * before.gemm.max_efficiency, "nvlink.efficiency": 0.5})
    assert slow.profile.gemm.precisions["fp8"] == pytest.approx(0.8 * before.gemm.precisions["fp8"])
    ratios = [
        each.nvlink.operations["all_to_all"].efficiency / each.nvlink.efficiency for each in (before, slow.profile)
    ]
    assert ratios[0] == pytest.approx(ratios[1])
    assert estimate(slow).step_time_s > 1.1 * estimate(scenario).step_time_s
    fast = with_values(scenario, {"gemm.max_efficiency": 2 * before.gemm.max_efficiency})
    assert fast.profile.gemm.precisions["fp8"] == 1.0
    started = with_values(scenario, {"stack.kernel_launch_s": 2 * scenario.stack.kernel_launch_s}).stack
    assert started.collective_launch_s == pytest.approx(2 * scenario.stack.collective_launch_s)
    assert [place_of(each)["bits"] for each in (scenario, load_scenario("scenarios/megatron-2021/1.7b.yaml"))] == [
        8,
        16,
    ]


def test_a_value_stops_at_its_bound(runs):
    """Steps a tenth shorter ask for more of a GPU than its peak."""
    quick = [replace(run, measured=0.88 * run.measured) for run in runs[:6]]
    (multiplies,) = fit_runs(quick, ["gemm.max_efficiency"]).parameters
    (wider,) = fit_runs(quick[:1], ["gemm.max_efficiency"]).parameters
    assert multiplies.prior + multiplies.prior_width < multiplies.value <= 1.0
    assert wider.prior < wider.value <= 1.0


def test_the_written_profile_gives_the_fitted_step_times(fit, tmp_path):
    write_runs_profile(fit, tmp_path / "mine.yaml", "runs.csv")
    data, stack = split_profile(load_preset("profiles", str(tmp_path / "mine.yaml")))
    profile = Profile.read(data, "profile")
    assert profile.name == "mine"
    assert set(profile.provenance.fitted_families) == {run.family for run in fit.runs}
    scenario = fit.runs[8].choices[0]
    written = scenario.replace(profile=profile, stack=scenario.stack.replace(kernel_launch_s=fit.values["stack.kernel_launch_s"]))  # fmt: skip
    assert estimate(written).step_time_s == pytest.approx(predict(fit.runs[8], fit.values).step_time_s, rel=1e-3)
    assert stack == {"kernel_launch": f"{fit.values['stack.kernel_launch_s']:.5g} s"}
    text = (tmp_path / "mine.yaml").read_text()
    assert text.count("hardly narrow") == sum(not each.identified for each in fit.parameters)


# The command line


def test_command_line_writes_a_profile_that_estimates_use(runs_file, rows, tmp_path):
    path, out = runs_file(rows), tmp_path / "mine.yaml"
    result = typed("calibrate", "from-runs", path, "-o", out, "--parameter", "gemm.max_efficiency")
    assert result.returncode == 0
    assert "gemm.max_efficiency" in result.stdout
    assert f"--profile {out}" in result.stdout
    scenario = ROOT / "scenarios" / "megatron-2021" / "39.1b.yaml"
    assert estimate(load_scenario(scenario, (), str(out))).step_time_s > 1.05 * estimate(load_scenario(scenario)).step_time_s  # fmt: skip
    assert typed("estimate", scenario, "--profile", out).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--parameter", "gemm.max"), "unknown parameter 'gemm.max'; did you mean 'gemm.max_efficiency'?"),
        (("--stack", "megatron-2020"), "no run of stack 'megatron-2020'; did you mean 'megatron-2021'?"),
        (("--gpu", "V100"), "no run on a GPU 'V100'; choose from A100-SXM4-80GB"),
        (("--precision", "fp4"), "no run of precision 'fp4'"),
        (("--base", "a10"), "did you mean 'a100'"),
        ((), "runs of several kinds cannot share one fit: profile a100, stack megatron-2021; profile a100, stack torchtitan"),
        (("-o", "nowhere/mine.yaml"), "make it first"),
    ],
)  # fmt: skip
def test_mistakes_name_the_remedy(arguments, says, runs_file, run_row, tmp_path):
    path = runs_file([run_row(), run_row(framework="torchtitan")])
    assert says in refusal(path, *(arguments if "-o" in arguments else ("-o", tmp_path / "mine.yaml", *arguments)))
    assert not (tmp_path / "mine.yaml").exists()


def test_a_table_without_a_usable_row_is_refused(runs_file, run_row, tmp_path):
    path = runs_file([run_row(experts=8), run_row(gpu="TPU")])
    said = refusal(path, "-o", tmp_path / "mine.yaml")
    assert "none of 2 rows can be modelled (one: topk is empty)" in said


def refusal(*arguments):
    """What a refused fit says."""
    error = CliRunner().invoke(app, ["from-runs", *map(str, arguments)]).exception
    assert isinstance(error, FlopcastError)
    return str(error)
