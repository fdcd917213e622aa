"""Every claim of papers holds, or says why it does not; none says so that does. What schedules gain is of the published size."""

import json
import re
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from rows import forms
from typer.testing import CliRunner

from flopcast_validation.claims import Claim, claims, out_of_order, report, zero_bubble_rows
from sim.cli import app


@pytest.fixture(scope="module")
def found():
    return list(claims())


@pytest.mark.thorough
def test_what_holds_says_nothing_and_what_does_not_says_why(found):
    wrong = [claim.title for claim in found if claim.holds == bool(claim.short)]
    assert not wrong


@pytest.mark.thorough
def test_the_guide_says_how_many(found):
    guide = " ".join((Path(__file__).parents[2] / "docs" / "validation.md").read_text().split())
    held, turned = (sum(getattr(claim, name) for claim in found) for name in ("holds", "turned"))
    assert f"{held} of {len(found)} claims hold, {turned} of the others come out the other way round" in guide
    ours = {claim.title: f"{claim.predicted:.0f}" for claim in found}
    zero3 = [ours[f"ZeRO-3, 175B on {gpus}"] for gpus in ("384 GPUs", "768", "1,536")]
    assert f"({zero3[0]}, {zero3[1]} and {zero3[2]} TFLOP/s for 144, 88 and 44)" in guide
    gains = [100 * claim.predicted - 100 for claim in found if claim.title.startswith("Fused")]
    assert f"({gains[0]:.0f} for 19 %, {gains[1]:.0f} for 11 %)" in guide


def test_how_far_off_a_claim_is():
    for published, predicted, off, holds, turned in (
        ((1.2, 1.2), 1.26, 0.05, True, False),
        ((1.05, 1.05), 0.98, 0.98 / 1.05 - 1, False, True),
        ((1.16, 2.34), 2.0, 0.0, True, False),
        ((1.16, 2.34), 0.9, 0.9 / 1.16 - 1, False, True),
        ((0.0, 0.0), 0.04, 0.04, True, False),
    ):
        claim = Claim("paper", "title", "table", "times" if published[0] else "%", published, predicted, 0.1)
        assert (claim.off, claim.holds, claim.turned) == (pytest.approx(off), holds, turned)


@pytest.mark.thorough
def test_the_page_and_the_data_say_the_same(found, monkeypatch):
    monkeypatch.setattr("flopcast_validation.claims.claims", lambda table: found)
    text = "\n".join(report(found))
    assert max(map(len, text.splitlines())) <= 80
    assert f"{sum(claim.holds for claim in found)} of {len(found)} claims hold" in text
    answer = CliRunner().invoke(app, ["validate", "seeds", "--json", "-"])
    assert answer.exit_code == 0
    data = json.loads(answer.stdout)["claims"]
    assert [item["title"] for item in data] == [claim.title for claim in found]
    assert all(item["holds"] != bool(item["short"]) for item in data)


@pytest.mark.thorough
def test_what_decides_which_plan_wins_is_as_measured_or_derived():
    wrong = [(claim.title, claim.predicted) for claim in claims("mechanisms") if not claim.holds]
    assert not wrong


@cache
def gains_of(number=None):
    """So many of the published gains, or all."""
    found = {}
    for gain in islice(claims("schedules"), number):
        what, _, setting = gain.title.partition(":")
        on_daint = "Piz Daint" in setting
        found[what + (":" + re.split(r",| 1\.3B", setting)[0] if on_daint else setting.rpartition(",")[2])] = gain
    return found


@forms("number", 2, None)
def test_gains_are_of_the_published_size_or_say_why_not(number):
    gains = gains_of(number)
    sizes = {
        "Interleaved over 1F1B batch 24": (1.05, 1.20), "Interleaved over 1F1B batch 60": (1.02, 1.10),
        "Breadth-first over interleaved batch 16": (1.05, 1.5), "Breadth-first over 1F1B batch 16": (1.2, 1.6),
        "PipeDream-2BW over GPipe batch 128": (2.0, 4.0), "PipeDream-2BW over 1F1B with flush batch 512": (1.15, 1.8),
        "Chimera over PipeDream: GPT-2": (1.16, 2.34), "Chimera over DAPPLE (1F1B): GPT-2": (1.16, 2.34),
        "Chimera over GPipe: GPT-2": (1.16, 2.34), "Chimera over DAPPLE (1F1B): BERT-48": (1.0, 2.34),
        "Chimera over GPipe: BERT-48": (1.0, 2.34), "Chimera over PipeDream-2BW: GPT-2": (0.85, 1.0),
        "Chimera over PipeDream-2BW: BERT-48": (0.85, 1.0), "Chimera over PipeDream: BERT-48": (3.0, 4.5),
    }  # fmt: skip
    assert gains.keys() == ({*gains} & {*sizes} if number else sizes.keys())
    wrong = {
        name: gain.predicted for name, gain in gains.items() if not sizes[name][0] <= gain.predicted <= sizes[name][1]
    }
    assert wrong == {}
    assert [name for name, gain in gains.items() if gain.holds == bool(gain.short)] == []


@pytest.mark.thorough
def test_the_zero_bubble_papers_table():
    rows = zero_bubble_rows()
    assert len(rows) >= 39
    assert {row.answers[0].scenario.plan.schedule for row in rows} == {"1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v"}
    assert sum(abs(row.off) for row in rows) / len(rows) < 0.065
    assert max(abs(row.off) for row in rows) < 0.11
    assert out_of_order(rows) == 0
    text = "\n".join(report(rows))
    assert text.count("zb_h2") == 9
