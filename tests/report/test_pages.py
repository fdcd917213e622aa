"""Pages: self-contained, escaped, with the numbers of the answer in them; looked at by a real browser where there is one."""

from pathlib import Path

import pytest
from open_space import search

from sim import build_scenario, estimate, load_scenario
from sim.commands.estimate import report
from sim.errors import SpecError
from sim.report.html.page import report_page
from sim.specs.writing import whole_yaml
from sim.specs.yaml12 import parse_yaml
from tests.report.pages import can_be_heard, is_self_contained, shown_scenarios
from tests.typed import typed

ROOT = Path(__file__).parents[2]
SCENARIO = ROOT / "scenarios" / "gpt3-175b-1024-a100.yaml"


@pytest.fixture(scope="module")
def answer():
    return estimate(load_scenario(SCENARIO))


@pytest.fixture(scope="module")
def found(answer):
    return search(answer.scenario, confirm=3, top=3)


@pytest.fixture(scope="module")
def page(answer, found):
    return report_page(answer, found)


def test_the_report_holds_the_answer_and_what_it_rests_on(page, answer, found):
    text = is_self_contained(page)
    for part in (
        "30.9 s", "From peak to what is achieved", "Memory by pipeline rank", "Timeline of a step", "Other plans on 1,024 GPUs",
        "Assumptions", "published runs", "How to reproduce it", f"of {found.plans_priced:,} plans fit in memory",
    ):  # fmt: skip
        assert part in text
    assert all(" ".join(line.split()) in text for line in answer.assumptions)
    assert "Content-Security-Policy" in page
    can_be_heard(page)


def test_the_scenario_in_the_report_is_the_one_that_was_asked(page, answer):
    (shown,) = shown_scenarios(page)
    again = build_scenario(parse_yaml(shown, ""))
    assert again.model_copy(update={"assumed": answer.scenario.assumed}) == answer.scenario
    assert whole_yaml(again) == shown


EVIL = "</style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}"


def test_names_cannot_leave_their_place(answer):
    scenario = answer.scenario
    named = scenario.replace(
        name=EVIL, description=EVIL, model=scenario.model.replace(name=EVIL),
        cluster=scenario.cluster.replace(name=EVIL), stack=scenario.stack.replace(name=EVIL),
        profile=scenario.profile.replace(name=EVIL),
    )  # fmt: skip
    evil = estimate(named)
    for text in (
        report_page(evil),
        evil._repr_html_(),
        search(named, confirm=1, top=1)._repr_html_(),
    ):
        is_self_contained(text)
        assert "&lt;script&gt;" in text


def test_a_plan_that_does_not_fit_says_what_would_help():
    answer = estimate(load_scenario(SCENARIO, ["plan.pp=4", "plan.dp=2"]))
    text = is_self_contained(report_page(answer))
    assert "does not fit" in text
    assert "What would help" in text


def test_the_command_writes_a_report(tmp_path):
    file = tmp_path / "report.html"
    done = typed("report", SCENARIO, "--no-search", "-o", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(file) in done.stdout
    assert "Other plans" not in is_self_contained(file.read_text())
    for wrong, says in (("report.txt", "must end in .html"), ("nowhere/report.html", "there is no folder")):
        with pytest.raises(SpecError, match=says):
            report(SCENARIO, output=tmp_path / wrong)


def test_an_answer_draws_itself_as_asked(answer):
    assert answer.plot("timeline").axes[0].get_ylabel() == "pipeline rank"
    with pytest.raises(SpecError, match="did you mean 'timeline'"):
        answer.plot("timelin")
