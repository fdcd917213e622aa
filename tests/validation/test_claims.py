"""Every claim of papers holds, or says why it does not; none says so that does."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flopcast_validation.claims import Claim, claims, report
from sim.cli import app
from sim.errors import SpecError


@pytest.fixture(scope="module")
def found():
    return list(claims())


@pytest.mark.thorough
def test_what_holds_says_nothing_and_what_does_not_says_why(found):
    wrong = [claim.title for claim in (*found, *claims("mechanisms")) if claim.holds == bool(claim.short)]
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
    layered = {claim.title: claim.predicted for claim in found if "Layered" in claim.paper}
    assert f"The time nearly halves ({next(iter(layered.values())):.1f} times)" in guide
    assert f"takes {layered['layered on 25 Gbit/s instead of InfiniBand: longer by']:.0f} % longer on RoCE" in guide


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
    monkeypatch.setattr("flopcast_validation.claims.claims", lambda table, only: found)
    text = "\n".join(report(found))
    assert max(map(len, text.splitlines())) <= 80
    assert f"{sum(claim.holds for claim in found)} of {len(found)} claims hold" in text
    answer = CliRunner().invoke(app, ["validate", "claims", "--json", "-"])
    assert answer.exit_code == 0
    data = json.loads(answer.stdout)["claims"]
    assert [item["title"] for item in data] == [claim.title for claim in found]
    assert all(item["holds"] != bool(item["short"]) for item in data)


def test_an_unknown_table_is_refused():
    found = CliRunner().invoke(app, ["validate", "claims", "paper"])
    assert isinstance(found.exception, SpecError)
    assert "did you mean 'papers'" in str(found.exception)
