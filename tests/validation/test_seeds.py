"""Every claim holds, or says why it does not; none says so that does."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flopcast_validation.seeds import Claim, claims, report
from sim.cli import app


@pytest.fixture(scope="module")
def found():
    return list(claims())


def test_what_holds_says_nothing_and_what_does_not_says_why(found):
    wrong = [claim.title for claim in found if claim.holds == bool(claim.short)]
    assert not wrong


def test_most_of_them_hold(found):
    held = sum(claim.holds for claim in found)
    assert held >= 0.6 * len(found)
    assert sum(claim.turned for claim in found) <= 4


def test_the_guide_says_how_many(found):
    guide = " ".join((Path(__file__).parents[2] / "docs" / "validation.md").read_text().split())
    held, turned = (sum(getattr(claim, name) for claim in found) for name in ("holds", "turned"))
    assert f"{held} of {len(found)} claims hold, {turned} of the others come out the other way round" in guide
    ours = {claim.title: f"{claim.predicted:.0f}" for claim in found}
    zero3 = [ours[f"ZeRO-3, 175B on {gpus}"] for gpus in ("384 GPUs", "768", "1,536")]
    assert f"({zero3[0]}, {zero3[1]} and {zero3[2]} TFLOP/s for 144, 88 and 44)" in guide
    gains = [100 * claim.predicted - 100 for claim in found if claim.title.startswith("Fused")]
    assert f"({gains[0]:.0f} for 19 %, {gains[1]:.0f} for 11 %)" in guide


@pytest.mark.parametrize(
    ("published", "predicted", "off", "holds", "turned"),
    [
        ((1.2, 1.2), 1.26, 0.05, True, False),
        ((1.05, 1.05), 0.98, 0.98 / 1.05 - 1, False, True),
        ((1.16, 2.34), 2.0, 0.0, True, False),
        ((1.16, 2.34), 0.9, 0.9 / 1.16 - 1, False, True),
        ((0.0, 0.0), 0.04, 0.04, True, False),
    ],
)
def test_how_far_off_a_claim_is(published, predicted, off, holds, turned):
    claim = Claim("paper", "title", "table", "times" if published[0] else "%", published, predicted, 0.1)
    assert (claim.off, claim.holds, claim.turned) == (pytest.approx(off), holds, turned)


def test_the_page_and_the_data_say_the_same(found):
    text = "\n".join(report(found))
    assert max(map(len, text.splitlines())) <= 80
    assert f"{sum(claim.holds for claim in found)} of {len(found)} claims hold" in text
    answer = CliRunner().invoke(app, ["validate", "seeds", "--json", "-"])
    assert answer.exit_code == 0
    data = json.loads(answer.stdout)["claims"]
    assert [item["title"] for item in data] == [claim.title for claim in found]
    assert all(item["holds"] != bool(item["short"]) for item in data)
