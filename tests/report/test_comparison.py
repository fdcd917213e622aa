"""Several scenarios side by side: every number is its estimate's, differences by cause sum, what fails is on the page."""

import math
import re
from pathlib import Path

import pytest

from sim import estimate, load_scenario
from sim.breakdown import CAUSES
from sim.commands.options import scenarios_with_overrides
from sim.commands.report import report, split_scenario
from sim.errors import InfeasiblePlan, SpecError
from sim.report.facts import headline
from sim.report.html.comparison import (
    Asked,
    assumptions_of,
    cause_rows,
    comparison_page,
    fact_rows,
    is_clear,
)
from sim.report.text import field_rows, field_words
from sim.specs.yaml12 import parse_yaml
from sim.uncertainty import interval_factors, least_told_apart
from tests.report.pages import can_be_heard, is_self_contained, shown_scenarios
from tests.rows import rows
from tests.typed import typed

ROOT = Path(__file__).parents[2]
SCENARIO = "scenarios/gpt3-175b-1024-a100.yaml"
EVIL = "</style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}"


def ask(*settings, label="asked"):
    return Asked(label, estimate(load_scenario(ROOT / SCENARIO, settings)))


@pytest.fixture(scope="module")
def asked():
    return [
        ask(label="one"),
        ask("plan.num_chunks=2", "plan.schedule=interleaved", label="two"),
        ask("plan.pp=4", "plan.dp=32", label="large"),
        Asked("broken", None, SpecError("plan.tp = 7 must divide everything")),
    ]


@pytest.fixture(scope="module")
def page(asked):
    return comparison_page(asked)


def test_the_page_needs_nothing_else_and_can_be_heard(page):
    is_self_contained(page)
    can_be_heard(page)


def test_every_headline_is_on_the_page(page, asked):
    text = is_self_contained(page)
    for each in asked[:3]:
        for fact in headline(each.answer):
            assert fact.value in text
    rows = dict(fact_rows(asked))
    assert [cell and cell.value for cell in rows["GPUs"]] == ["1,024", "1,024", "1,024", None]
    change = asked[1].answer.step_time_s / asked[0].answer.step_time_s - 1
    assert rows["Step time"][1].change.startswith(f"{change:+.1%}".replace("-", "−"))
    assert rows["Step time"][0].change == ""


def test_rows_stand_in_one_order_and_have_a_number_each(asked):
    light = ask("plan.recompute=none", "training.tokens=null", label="light")
    rows = dict(fact_rows([light, asked[0]]))
    assert list(rows)[1:] == [*(fact.name for fact in headline(asked[0].answer))]
    assert rows["Per GPU, hardware"][0].note == "nothing computed again"
    assert rows["Training"][0].value == "–"
    assert rows["Training"][1].change == ""


def test_what_has_no_answer_or_does_not_fit_says_why_in_its_column(page):
    text = is_self_contained(page)
    assert "no answer: plan.tp = 7 must divide everything" in text
    assert "C does not fit: pipeline rank" in text
    assert "What would help" in text
    assert re.search(r'<td class="small lines" rowspan="\d+"><b class="wrong">no answer', page)


def test_causes_sum_to_steps_and_differences_to_their_difference(asked):
    answers = [each.answer for each in asked[:3]]
    for answer in answers:
        assert sum(answer.breakdown.seconds.values()) == pytest.approx(answer.step_time_s, rel=1e-9)
    *rows, total = cause_rows(answers)

    def number(text):
        return float(text.replace("−", "-").replace(",", ""))

    for place, answer in enumerate(answers):
        shown = [number(row.seconds[place]) for row in rows]
        assert sum(shown) == pytest.approx(number(total.seconds[place]), abs=0.005 * len(rows))
        assert number(total.seconds[place]) == pytest.approx(answer.step_time_s, abs=0.005)
        for row in rows:
            seconds = answer.breakdown.seconds[row.name.replace(" ", "_")]
            assert number(row.seconds[place]) == pytest.approx(seconds, abs=0.005)
    for place, answer in enumerate(answers[1:]):
        apart = answer.step_time_s - answers[0].step_time_s
        assert sum(number(row.apart[place]) for row in rows) == pytest.approx(apart, abs=0.005 * len(rows))
        assert number(total.apart[place]) == pytest.approx(apart, abs=0.005)
        exact = {cause: answer.breakdown.seconds[cause] - answers[0].breakdown.seconds[cause] for cause in CAUSES}
        assert sum(exact.values()) == pytest.approx(apart, rel=1e-9, abs=1e-9)


def test_bars_of_differences_share_one_axis(asked):
    *rows, _ = cause_rows([each.answer for each in asked[:3]])
    widths = [width for row in rows for _, _, width in row.bars]
    assert max(widths) == pytest.approx(50.0)
    for row in rows:
        for _, begin, width in row.bars:
            assert begin == pytest.approx(50.0) or begin + width == pytest.approx(50.0)


def test_a_difference_is_clear_beyond_both_intervals(asked):
    one, two = asked[0].answer, asked[1].answer
    factors = [interval_factors(each.scenario, each.breakdown.shares()) for each in (one, two)]
    least = least_told_apart(*factors)
    assert math.log(least) == pytest.approx(math.hypot(*(math.log(high / low) / 2 for low, high in factors)))
    assert is_clear(1.01 * least, one, two)
    assert is_clear(1 / (1.01 * least), one, two)
    assert not is_clear(0.99 * least, one, two)


def test_only_inputs_that_differ_are_listed(page):
    table = page.partition('id="inputs"')[2].partition("</section>")[0]
    fields = [each.replace("<wbr>", "") for each in re.findall(r"<code>(.*?)</code>", table)]
    assert set(fields) == {"plan.pp", "plan.dp", "plan.schedule", "plan.num_chunks"}
    assert field_words("cluster.inter_node_bandwidth_bytes_per_s", 25e9) == "200 Gbit/s"
    assert field_words("stack.overlap_p2p", True) == "true"
    assert field_words("training.tokens", 3e11) == "300,000,000,000"
    assert field_words("stack.fragmentation", 0.03) == "0.03"
    assert field_words("plan.recompute_modules", []) == field_words("plan.x", None) == "–"


def test_fields_of_another_model_are_folded_behind_its_name():
    fields = {"model.name": ("a", "b"), "plan.tp": (1, 2), **{f"model.field{number}": (0, 1) for number in range(9)}}
    shown, folded = field_rows(fields)
    assert list(shown) == ["plan.tp", "model.name"]
    assert len(folded["model"]) == 9
    few = {"model.name": ("a", "b"), "model.num_layers": (1, 2)}
    assert field_rows(few) == ({"model.name": ["a", "b"], "model.num_layers": ["1", "2"]}, {})


def test_assumptions_are_shared_or_own(asked):
    answers = [each.answer for each in asked[:3]]
    shared, own = assumptions_of(answers)
    assert shared
    for answer, lines in zip(answers, own, strict=True):
        assert sorted([*shared, *lines]) == sorted(answer.assumptions)


def test_the_scenarios_on_the_page_are_those_that_were_asked(page, asked):
    found = [parse_yaml(text, "") for text in shown_scenarios(page)]
    assert [each["plan"]["pp"] for each in found] == [each.answer.scenario.plan.pp for each in asked[:3]]


def test_steps_of_other_sizes_say_so(page):
    other = comparison_page([ask(label="a"), ask("training.global_batch_size=3072", label="b")])
    assert "compare tokens/s" in other
    assert "compare tokens/s" not in page


def test_names_cannot_leave_their_place():
    answer = estimate(load_scenario(ROOT / SCENARIO).replace(name=EVIL, description=EVIL))
    text = comparison_page([Asked(EVIL, answer), Asked(EVIL, None, SpecError(EVIL))])
    is_self_contained(text)
    assert "&lt;script&gt;" in text


def test_files_with_overrides_of_their_own(tmp_path, monkeypatch):
    assert split_scenario("a.yaml") == ("a.yaml", [])
    assert split_scenario("a.yaml@plan.tp=4@plan.dp=2") == ("a.yaml", ["plan.tp=4", "plan.dp=2"])
    assert split_scenario("me@home/a.yaml") == ("me@home/a.yaml", [])
    assert split_scenario("-@name=x") == ("-", ["name=x"])
    monkeypatch.chdir(tmp_path)
    Path("a.yaml@b=c").write_text("name: odd")
    assert split_scenario("a.yaml@b=c") == ("a.yaml@b=c", [])


def test_tab_completes_fields_behind_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").touch()
    assert scenarios_with_overrides("mi") == ["mine.yaml"]
    assert "mine.yaml@plan.tp=" in scenarios_with_overrides("mine.yaml@plan.t")
    assert scenarios_with_overrides("mine.yaml@plan.tp=4@plan.dp") == ["mine.yaml@plan.tp=4@plan.dp="]


def test_all_is_written_before_what_is_wrong_is_said(tmp_path):
    file = tmp_path / "<b>.html"
    name = str(ROOT / SCENARIO)
    with pytest.raises(SpecError, match="must divide"):
        report([name, f"{name}@plan.tp=7", f"{name}@plan.pp=4@plan.dp=32"], output=file)
    text = is_self_contained(file.read_text())
    assert "3 scenarios side by side" in text
    with pytest.raises(InfeasiblePlan, match="with pp=4, dp=32: the plan does not fit"):
        report([name, f"{name}@plan.pp=4@plan.dp=32"], output=file)
    with pytest.raises(SpecError, match="no scenario file"):
        report(["nowhere.yaml", "neither.yaml"], output=tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


@rows(
    ("options", "says"),
    [({"with_search": True}, "--search is for"), ({"with_sliders": True}, "--sliders is for"), ({"slider": ["plan.tp=1,2"]}, "--slider is for")],
)  # fmt: skip
def test_what_several_do_not_have(tmp_path, options, says):
    with pytest.raises(SpecError, match=says):
        report([str(ROOT / SCENARIO)] * 2, output=tmp_path / "r.html", **options)


def test_the_command_compares_the_same_file_twice(tmp_path):
    file = tmp_path / "report.html"
    words = (
        SCENARIO,
        f"{SCENARIO}@plan.num_chunks=2@plan.schedule=interleaved",
        SCENARIO,
        "-s",
        "plan.microbatch_size=2",
    )
    done = typed("report", *words, "-o", file)
    assert (done.returncode, done.stderr) == (0, "")
    text = is_self_contained(file.read_text())
    assert "gpt3-175b-1024-a100 with num_chunks=2, schedule=interleaved" in text
    assert "gpt3-175b-1024-a100 (2)" in text
    assert "micro-batches of 2" in text
