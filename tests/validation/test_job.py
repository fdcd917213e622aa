"""The real job: cutting it changes nothing but its time; that time is predicted; processes that share cores obey laws."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import orders

from flopcast_validation.job.configs import QUICK_SHAPE, QUICK_SUITE, Configuration, GptShape
from flopcast_validation.job.cores import Processes
from sim import estimate, load_scenario
from sim.engines import Program, run
from sim.errors import SpecError
from sim.schedules import build_order, get_schedule, schedule_names

ROOT = Path(__file__).parents[2]
SMALL = GptShape(num_layers=4, hidden_size=64, num_heads=4, vocab_size=64, sequence_length=32)


ZERO_3 = Configuration(tp=2, dp=2, schedule="1f1b", zero_stage=3, recompute="full")
INTERLEAVED = Configuration(pp=2, dp=2, schedule="interleaved", num_chunks=2, microbatches=4)
FLUSHED = [name for name in schedule_names() if not get_schedule(name).asynchronous]
seeds = st.integers(0, 2**32).map(np.random.default_rng)


@given(order=orders(FLUSHED), rng=seeds, twins=st.integers(1, 4), blocks=st.booleans())
def test_with_a_core_for_each_process_nothing_is_shared(order, rng, twins, blocks, random_costs):
    costs = random_costs(rng, order, blocks=blocks)
    exact = run(Program(order, costs), "dag")
    for cores in (None, order.num_ranks * twins, 1000.0):
        shared = Processes(Program(order, costs), cores, twins).run()
        assert shared.step_time_s == pytest.approx(exact.step_time_s, rel=1e-9)
        np.testing.assert_allclose(shared.start, exact.start, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(shared.end, exact.end, rtol=1e-9, atol=1e-9)


@given(order=orders(FLUSHED), rng=seeds, twins=st.integers(1, 4), cores=st.floats(1.0, 8.0))
def test_the_work_is_done_and_fewer_cores_never_finish_it_sooner(order, rng, twins, cores, random_costs):
    assume(not get_schedule(order.schedule).staggered)  # a rank's own clock does not see the others' work
    program = Program(order, random_costs(rng, order))
    timeline = Processes(program, cores, twins).run()
    work = twins * (
        program.action_seconds()[1].sum()
        + program.costs.reduce_s.sum()
        + (program.costs.optimizer_s + program.costs.gather_s).sum()
    )
    assert timeline.step_time_s >= work / cores * (1 - 1e-9)
    assert timeline.step_time_s >= run(Program(order, program.costs), "dag").step_time_s * (1 - 1e-9)
    assert Processes(program, 1.0, twins).run().step_time_s >= max(work, timeline.step_time_s) * (1 - 1e-9)


def test_shares_of_unequal_work(costs_of):
    """Three updates at a third of the speed until 1 is done, two at a half, one alone."""
    order, costs = build_order("gpipe", 3, 1, 1), costs_of(3, [1.0] * 3, [1.0] * 3, optimizer_s=[3.0, 1.0, 2.0])
    tasks = Processes(Program(order, costs), 1.0).run().tasks
    updates = tasks.what == "update"
    np.testing.assert_allclose((tasks.end_s - tasks.begin_s)[updates], [6.0, 3.0, 5.0])


def test_what_the_job_cannot_cut_is_refused():
    for wrong, why in (
        ({"zero_stage": 3, "dp": 2, "pp": 2, "schedule": "1f1b"}, "layer by layer"),
        ({"num_experts": 4, "ep": 2}, "over all replicas"),
        ({"num_experts": 3, "ep": 2, "dp": 2}, "multiple of ep"),
        ({"num_experts": 4, "ep": 2, "dp": 2, "tp": 2}, "over all replicas"),
    ):
        with pytest.raises(SpecError, match=why):
            Configuration(**wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "cut"),
    [
        pytest.param("fp32", ZERO_3, marks=pytest.mark.thorough),
        pytest.param("bf16", INTERLEAVED, marks=pytest.mark.thorough),
        ("fp32", Configuration(pp=2, schedule="zb_v", num_chunks=2, microbatches=4)),
    ],
    ids=lambda given: given if isinstance(given, str) else given.name,
)
def test_losses_are_those_of_one_process(cut, precision):
    pytest.importorskip("torch", reason="the real job needs torch")
    from flopcast_validation.job.compare import LOSS_TOLERANCE, check_losses
    from flopcast_validation.job.launch import run_configuration

    shape = replace(SMALL, precision=precision)
    result = run_configuration(shape, cut, "cpu", steps=3)
    # Far below what is borne, which larger models and more steps need.
    assert check_losses(result["losses"], shape, cut, "cpu") <= LOSS_TOLERANCE[precision] / 5
    assert len(result["trace"]) == cut.num_ranks
    order = build_order(cut.schedule, cut.pp, cut.num_chunks, cut.microbatches)
    for rank in result["trace"]:  # what torch did is what the simulator plays
        done = [f"{stage}{kind}{number}" for kind, stage, number, *_ in sorted(rank["events"], key=lambda e: e[3])]
        assert done == [str(action) for action in order.actions[rank["pp"]]]


def test_a_wrong_loss_is_told(monkeypatch):
    pytest.importorskip("torch", reason="the real job needs torch")
    from flopcast_validation.job import compare
    from sim.errors import FlopcastError

    monkeypatch.setattr(compare, "launch", lambda *ask: [4.0, 3.0, 2.0])
    cut = Configuration(microbatches=1234)
    with pytest.raises(FlopcastError, match="changes what is computed"):
        compare.check_losses([4.0, 3.01, 2.0], SMALL, cut, "cpu")
    monkeypatch.setattr(compare, "launch", lambda *ask: [2.0, 2.0, 2.0])
    with pytest.raises(FlopcastError, match="does not fall"):
        compare.check_losses([2.0, 2.0, 2.0], GptShape(), cut, "cpu")


def test_experts_are_used_evenly_and_weighed_by_the_router():
    torch = pytest.importorskip("torch", reason="the real job needs torch")
    from flopcast_validation.job.experts import Experts

    torch.manual_seed(1)
    block = Experts(hidden=16, width=32, num_experts=4, per_token=2)
    x = torch.randn(2, 8, 16)
    chosen, weights = block._route(x.flatten(0, 1))
    assert torch.bincount(chosen.flatten()).tolist() == [8, 8, 8, 8]
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(16))
    plain = torch.stack(
        [
            sum(weight * block.experts[expert](token) for expert, weight in zip(two, both, strict=True))
            for token, two, both in zip(x.flatten(0, 1), chosen.tolist(), weights, strict=True)
        ]
    )
    torch.testing.assert_close(block(x), plain.view_as(x))


@pytest.mark.thorough
def test_quick_mode_predicts_measures_writes_and_draws(tmp_path):
    pytest.importorskip("torch", reason="the real job needs torch")
    out, figure = tmp_path / "job.json", tmp_path / "job.png"
    program = (
        "from flopcast_validation.cli import app; from flopcast_validation.job import choose, configs;"
        "choose.QUICK_SUITE = configs.QUICK_SUITE[1:2]; app()"  # one cut shows what three would
    )
    command = [sys.executable, "-c", program, "job", "--quick", "--steps", "3", "--device", "cpu"]
    command += ["--json", str(out), "--figure", str(figure)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    data = json.loads(out.read_text())
    assert [row["name"] for row in data["rows"]] == [QUICK_SUITE[1].name]
    for row in data["rows"]:
        assert row["loss_error"] <= data["loss_tolerance"]
        assert min(row["predicted_s"], row["measured_s"]) > 0  # how near they are a shared machine cannot say
    assert data["model"]["hidden_size"] == QUICK_SHAPE.hidden_size
    assert figure.stat().st_size > 10_000


def test_a_scenario_whose_ranks_would_share_cores_says_so(scenarios):
    few = load_scenario(scenarios / "megatron-2021" / "1.7b.yaml", ["cluster.node.cores=4"])
    assert any("is given a core of its own" in line for line in estimate(few).assumptions)
