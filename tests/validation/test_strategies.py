"""Lamy-Poirier's claims with searched plans: what comes out, what does not, and on which assumption."""

import pytest
from typer.testing import CliRunner

from flopcast_validation.cli import app
from flopcast_validation.strategies import plans
from flopcast_validation.strategies.plans import METHODS, compare_strategies
from flopcast_validation.strategies.question import NO_VOCABULARY, question
from sim.errors import SpecError

THREE = "data + pipeline + tensor"


NETWORKS = {
    "InfiniBand": {}, "Ethernet": {"bandwidth": "25 Gbit/s"},
    "Ethernet as InfiniBand": {"bandwidth": "25 Gbit/s", "efficiency": 0.53},
    "Ethernet at 0.9": {"bandwidth": "25 Gbit/s", "efficiency": 0.9}, "ideal InfiniBand": {"ideal_network": True},
    "ideal Ethernet": {"bandwidth": "25 Gbit/s", "ideal_network": True},
}  # fmt: skip
LAYERS_ONLY = {"vocabulary": NO_VOCABULARY}


@pytest.fixture
def few_batches(monkeypatch):
    """Fewer batches than the command tries."""
    monkeypatch.setattr(plans, "BATCHES", (1, 4))


class Days(dict):
    """Entries of X_160 by (network, method, and whether partitioned), best plans of few batches; each when it is asked."""

    def __missing__(self, key):
        network, method, *partitioned = key
        options = NETWORKS[network] | (LAYERS_ONLY if method == "layers only" else {})
        methods = (method,) if method in METHODS else ("improved",)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plans, "BATCHES", (1, 4))
            asked = compare_strategies(
                question(160, **options), (THREE,), methods=methods, partitioned=bool(partitioned)
            )
        (self[key],) = asked
        return self[key]


@pytest.fixture(scope="module")
def days():
    return Days()


@pytest.mark.thorough
@pytest.mark.parametrize("network", ["InfiniBand", "ideal InfiniBand"])
def test_the_shortest_time_is_cut_by_half(days, network):
    """Abstract: "cut the shortest training time by half"; 1.9 by the reconstructed table."""
    ratio = days[network, "baseline"].days / days[network, "improved"].days
    assert ratio == pytest.approx(1.9, abs=0.15)


@pytest.mark.thorough
def test_no_fast_network_is_needed(days):
    """Abstract: "a fast InfiniBand connection is not necessary"; layered on Ethernet beats standard on InfiniBand."""
    assert days["Ethernet", "improved"].days < days["InfiniBand", "baseline"].days
    assert days["ideal Ethernet", "improved"].days < 0.75 * days["ideal InfiniBand", "baseline"].days


@pytest.mark.thorough
def test_what_25_gbit_costs(days):
    """The goal is a fifth: nearly met where Ethernet reaches 0.9 of its rate, missed elsewhere by what has nothing to hide behind.

    That is the first layer's weights and the last one's gradients, on an ideal network as well. Embedding and head cost
    a little more, the 53 % that the profile has from an InfiniBand machine two fifths of the time again, and RoCE, of which a
    collective alone reaches 78 % instead of 96, a little more than that.
    """

    def loss(slow, fast, method="improved"):
        return days[slow, method].days / days[fast, method].days - 1

    assert loss("Ethernet at 0.9", "InfiniBand") == pytest.approx(0.217, abs=0.01)
    assert loss("ideal Ethernet", "ideal InfiniBand", "layers only") == pytest.approx(0.212, abs=0.015)
    assert loss("ideal Ethernet", "ideal InfiniBand") == pytest.approx(0.235, abs=0.02)
    assert loss("Ethernet as InfiniBand", "InfiniBand") == pytest.approx(0.415, abs=0.03)
    assert loss("Ethernet", "InfiniBand") == pytest.approx(0.50, abs=0.03)


@pytest.mark.thorough
def test_large_models_are_cut_over_as_few_nodes_as_hold_them(few_batches):
    """A layer of X_512 is larger than 16 GPUs: 103 GB of weights each."""
    standard, layered = compare_strategies(question(512), (THREE,))
    plan = layered.answer.scenario.plan
    assert (plan.tp, plan.sequence_parallel) == (64, True)
    assert layered.answer.fits
    assert layered.answer.num_gpus <= plan.tp * layered.answer.scenario.training.global_batch_size
    assert standard.answer is None
    assert standard.refused == "no plan fits"


def test_a_prime_number_of_layers_has_no_layered_pipeline(few_batches):
    _, layered = compare_strategies(question(7), (THREE,))
    assert layered.refused == "7 layers cannot be dealt to several ranks in several chunks"


@pytest.mark.thorough
def test_the_command(tmp_path):
    arguments = ["strategies", "--sizes", "16", "--figure", str(tmp_path / "a.png")]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exception is None, result.exception
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "X_16" in result.stdout
    assert (tmp_path / "a.png").stat().st_size > 30_000
    wrong = CliRunner().invoke(app, ["strategies", "--sizes", "32,x"])
    assert isinstance(wrong.exception, SpecError)
    with pytest.raises(SpecError, match="beyond X_2,000"):
        CliRunner().invoke(app, ["strategies", "100000"], catch_exceptions=False)
