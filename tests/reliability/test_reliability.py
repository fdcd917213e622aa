"""Goodput: published counts, worked optima, the closed form against failures played one by one; and prices."""

import math
from collections.abc import Iterator
from datetime import date
from heapq import heappop, heappush
from itertools import islice
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import called, refusals

from sim.arrays import FloatArray, Number
from sim.errors import SpecError
from sim.reliability.cost import Price, listed_price
from sim.reliability.goodput import (
    GPU_MTBF_S,
    Checkpoints,
    Failures,
    Goodput,
    best_interval,
    daly_interval,
    goodput,
    job_mtbf,
    slowdown,
    waiting_share,
)
from sim.specs.machines import price_list
from sim.specs.presets import load_preset

SHARES = ("useful", "checkpoints", "lost_work", "restarts", "waiting")
LLAMA3_COUNTS = {
    "faulty GPU": 148, "HBM": 72, "software": 54, "network": 35, "host maintenance": 32, "SRAM": 19,
    "GPU system processor": 17, "NIC": 7, "NCCL timeout": 7, "silent data corruption": 6, "thermal": 6, "SSD": 3,
    "power supply": 3, "chassis": 2, "IO board": 2, "dependency": 2, "CPU": 2, "system memory": 2,
}  # fmt: skip


def test_llama3s_failures():
    assert sum(LLAMA3_COUNTS.values()) == 419 == 466 - 47
    assert pytest.approx(50_677, abs=1) == GPU_MTBF_S / 3600
    assert pytest.approx(5.78, abs=5e-3) == GPU_MTBF_S / (365.25 * 86400)
    assert pytest.approx(0.474, abs=5e-4) == 1000 * 86400 / GPU_MTBF_S
    assert job_mtbf(16_384) / 3600 == pytest.approx(3.093, abs=5e-4)


def test_llama3s_goodput_is_above_90_percent():
    written = 405e9 * 14 / 2e12  # 14 bytes a parameter
    interval = float(best_interval(written, job_mtbf(16_384)))
    assert goodput(16_384, Checkpoints(interval, written)).useful > 0.9


@pytest.mark.parametrize(
    ("write", "restart", "exact", "daly", "useful"),
    [(60, 300, 1116.30, 1116.29, 0.8758), (300, 600, 2388.8, 2388.6, 0.7443)],
)
def test_worked_optima(write, restart, exact, daly, useful):
    mtbf = 11_135.0
    interval = best_interval(write, mtbf)
    assert interval == pytest.approx(exact, rel=3e-5)
    assert daly_interval(write, mtbf) == pytest.approx(daly, rel=3e-5)
    assert 1 / slowdown(interval, write, mtbf, restart) == pytest.approx(useful, abs=5e-5)


@given(st.floats(1e-4, 3.0), st.floats(1e3, 1e6), st.floats(0.3, 3.0))
def test_no_other_interval_is_better(share, mtbf, factor):
    interval = best_interval(share * mtbf, mtbf)
    assert slowdown(interval * factor, share * mtbf, mtbf) >= slowdown(interval, share * mtbf, mtbf) * (1 - 1e-9)


@given(st.floats(1e-15, 1e-3), st.floats(1e3, 1e6))
def test_dalys_interval_tends_to_the_exact_one(share, mtbf):
    exact = best_interval(share * mtbf, mtbf)
    assert daly_interval(share * mtbf, mtbf) == pytest.approx(exact, rel=1e-4)


@settings(max_examples=6, derandomize=True)
@given(
    mtbf=st.floats(3.3, 5.5).map(lambda power: 10**power), write=st.floats(0.001, 0.2), restart=st.floats(0.0, 0.3),
    stretch=st.floats(0.5, 2.0), drain=st.sampled_from([0.0, 0.5, 1.0]), hardware=st.floats(0.0, 1.0),
    repair=st.floats(0.1, 3.0), spares=st.sampled_from([None, 1, 2, 4]), kind=st.sampled_from(["fixed", "exponential"]),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_closed_form_and_simulation_agree(mtbf, write, restart, stretch, drain, hardware, repair, spares, kind, seed):
    gpus = 1024
    failures = Failures(mtbf * gpus, restart * mtbf, hardware, repair * mtbf, spare_nodes=spares)
    interval = float(best_interval(write * mtbf, mtbf)) * stretch
    checkpoints = Checkpoints(interval, write * mtbf, drain * (interval + write * mtbf))
    formula = goodput(gpus, checkpoints, failures)
    played = simulate_goodput(gpus, checkpoints, failures, num_failures=300_000, seed=seed, repair=kind)
    assert played.useful == pytest.approx(
        formula.useful, rel=0.02
    )  # 300,000 failures leave 0.5 % where little is useful
    for share in SHARES:
        assert getattr(played, share) == pytest.approx(getattr(formula, share), abs=0.01), share


def test_spares_are_erlangs_loss():
    # 16,384 GPUs lose 6.05 nodes a day; with none to spare the job mostly waits.
    load = 0.78 * 86400 / float(job_mtbf(16_384))
    assert load == pytest.approx(6.05, abs=5e-3)
    assert waiting_share(Failures(spare_nodes=0), 16_384) == pytest.approx(load / (1 + load))
    factorials = np.cumprod([1, *range(1, 11)])
    terms = load ** np.arange(11) / factorials
    assert waiting_share(Failures(spare_nodes=9), 16_384) == pytest.approx(terms[-1] / terms.sum())
    assert waiting_share(Failures(), 16_384) == 0.0
    found = goodput(16_384, Checkpoints(1000, 60), Failures(spare_nodes=0))  # who waits for a repair does not restart
    assert found.restarts / (1 - found.waiting) == pytest.approx(1 - math.exp(-600 / float(job_mtbf(16_384))))


test_the_impossible_is_refused = refusals(SpecError, called, [
    (lambda: goodput(0, Checkpoints(100, 1)), "num_gpus = 0"),
    (lambda: Checkpoints(0, 1), "interval_s = 0"),
    (lambda: Checkpoints(100, -1), "blocking_s = -1"),
    (lambda: Checkpoints(100, 1, 200), "an interval of at least 199 s"),
    (lambda: Failures(hardware_share=1.5), "hardware_share = 1.5 must lie between 0 and 1"),
    (lambda: Failures(startup_s=float("nan")), "startup_s = nan"),
    (lambda: Failures(load_s=-1.0), "load_s = -1"),
    (lambda: Failures(spare_nodes=-1), "spare_nodes = -1"),
    (lambda: Failures(gpu_mtbf_s=float("inf")), "gpu_mtbf_s = inf"),
    (lambda: best_interval(-1.0, 100.0), "write_s = -1"),
])  # fmt: skip


Repair = Literal["fixed", "exponential"]
_BLOCK = 1024
"""Random numbers drawn at once."""


def simulate_goodput(
    num_gpus: float,
    checkpoints: Checkpoints,
    failures: Failures | None = None,
    num_failures: int = 20_000,
    seed: int = 0,
    repair: Repair = "fixed",
) -> Goodput:
    """Shares of wall-clock time over a run that sees `num_failures` failures.

    The error falls as one over the root of that number. `repair` says whether every repair takes `failures.repair_s`,
    or that on average.
    """
    failures = failures or Failures()
    played = int(num_failures)
    blocks = islice(_blocks(num_gpus, failures, seed, repair), -(-played // _BLOCK))
    uptimes, waits = (np.concatenate(each)[:played] for each in zip(*blocks, strict=True))
    restarts = np.full(played, failures.restart_s)
    restarts[0] = 0.0
    intervals = float(_saved_intervals(uptimes - restarts, checkpoints).sum())
    kept, saving = intervals * checkpoints.interval_s, intervals * checkpoints.blocking_s
    restarting, waiting = float(np.minimum(uptimes, restarts).sum()), float(waits.sum())
    end = float(uptimes.sum()) + waiting
    lost = end - kept - saving - restarting - waiting
    return Goodput(*(part / end for part in (kept, saving, lost, restarting, waiting)))


def _blocks(num_gpus: float, failures: Failures, seed: int, repair: Repair) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield the time until each failure strikes, and the wait for a repair after it.  [s]

    The job lives without end, and its failures come in blocks. What it computes meanwhile does not change them.
    """
    rng = np.random.default_rng(seed)
    mtbf = float(job_mtbf(num_gpus, failures.gpu_mtbf_s))
    now = 0.0
    away: list[float] = []  # when each node in repair comes back
    while True:
        uptimes = rng.exponential(mtbf, _BLOCK)
        broken = np.flatnonzero(rng.random(_BLOCK) < failures.hardware_share)
        repairs = rng.exponential(failures.repair_s, _BLOCK) if repair == "exponential" else None
        waits = np.zeros(_BLOCK)
        if failures.spare_nodes is not None:
            strikes, waited = now + np.cumsum(uptimes), 0.0
            for place, strike in zip(broken.tolist(), strikes[broken].tolist(), strict=True):
                struck = strike + waited
                while away and away[0] <= struck:
                    heappop(away)
                heappush(away, struck + (failures.repair_s if repairs is None else float(repairs[place])))
                if len(away) > failures.spare_nodes:
                    wait = heappop(away) - struck
                    waits[place], waited = wait, waited + wait
        yield uptimes, waits
        now += float(uptimes.sum() + waits.sum())


def _saved_intervals(running_s: Number, checkpoints: Checkpoints) -> FloatArray:
    """Intervals safely written of those computed between a restart and the next failure. Takes arrays.

    The checkpoint whose write was still going on in the background is lost.
    """
    period = checkpoints.interval_s + checkpoints.blocking_s
    begun = np.floor(np.maximum(running_s, 0.0) / period)
    since = running_s - begun * period
    saved: FloatArray = np.where(since >= checkpoints.drain_s, begun, np.maximum(begun - 1.0, 0.0))
    return saved


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [("2", 2.0, "USD"), (" 2.50 eur ", 2.5, "EUR"), ("€2.5", 2.5, "EUR"), ("3$", 3.0, "USD"), (".5 CHF", 0.5, "CHF")],
)
def test_prices_name_their_currency(text, amount, currency):
    assert Price.read(text) == Price(amount, currency)
    assert Price.read(str(Price(amount, currency))) == Price(amount, currency)


@pytest.mark.parametrize("text", ["", "two", "-1", "0", "nan", "€2 EUR", "2 euros", "1e3", "٣", "2 EUR a day"])
def test_what_is_no_price_is_refused(text):
    with pytest.raises(SpecError, match="price"):
        Price.read(text)


def test_every_listed_price_names_its_page_its_day_and_a_machine():
    for gpu, row in price_list().items():
        assert load_preset("nodes", row["node"])["gpu"] == gpu
        assert 0.1 < row["price"] < 20
        assert date(2025, 1, 1) < date.fromisoformat(row["date"])
        price = listed_price(load_preset("gpus", gpu)["name"])
        assert price.amount == row["price"]
        assert row["date"] in price.source
        assert row["page"] in price.source
