"""Published steps of reinforcement learning: how far ours are from them, held so that a change is seen."""

from pathlib import Path
from statistics import median

import pytest
from typer.testing import CliRunner

from flopcast_validation.rl_runs import factors, mean_error, published_rates, published_steps
from sim.cli import app
from sim.rl.step import ENGINES, MEASURED

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs():
    return published_steps()


def test_rates_of_an_engine_without_a_fitted_value():
    """Lengths from 128 to 20,000 tokens, models of 8 to 405 billion parameters, dense and of experts, two GPUs."""
    shares = sorted(rate.share for rate in published_rates())
    assert len(shares) == 77
    assert round(median(shares), 2) == ENGINES
    assert shares[7] > 0.68  # nine tenths of them within a third of the median
    assert shares[-8] < 1.0


@pytest.mark.thorough
def test_steps_of_nemo_rl(runs):
    """Tables of three versions, on which nothing is set, and runs timed by phase, on which the framework's seconds are."""
    assert len(runs) == 64
    assert mean_error(runs) < 0.25
    assert mean_error(run for run in runs if run.source != "phases") < 0.25
    assert tuple(round(factor, 2) for factor in factors(runs)) == MEASURED


@pytest.mark.thorough
def test_the_page_shows_what_is_printed(runs, monkeypatch):
    monkeypatch.setattr("flopcast_validation.rl_runs.published_steps", lambda: runs)
    shown = (ROOT / "docs" / "reinforcement-learning.md").read_text(encoding="utf-8")
    printed = CliRunner().invoke(app, ["validate", "rl"], env={"COLUMNS": "110"}).output
    lines = [line.rstrip() for line in printed.splitlines()]
    assert "\n".join(lines).rstrip() in shown
