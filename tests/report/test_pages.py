"""Pages and notebooks: self-contained, escaped, with the numbers of the answer; looked at by a real browser where there is one."""

import html
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from open_space import search

from sim import build_scenario, estimate, load_scenario
from sim.commands.estimate import report
from sim.errors import SpecError
from sim.report.facts import falls_of, memory_rows
from sim.report.html.page import report_page
from sim.specs.writing import whole_yaml
from sim.specs.yaml12 import parse_yaml
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


def test_what_fills_a_step_and_a_memory_sums_up(answer):
    left = [fall.begin for fall in falls_of(answer)]
    assert left == sorted(left, reverse=True)
    for _, parts in memory_rows(answer):
        assert sum(parts.values()) == pytest.approx(2 * parts["total"])


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


class Tags(HTMLParser):
    """Elements, attributes, and whether every element that was opened was closed."""

    VOID = ("meta", "link", "br", "rect", "path", "img", "hr", "input", "wbr")

    def __init__(self, text):
        super().__init__()
        self.seen, self.open, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def is_self_contained(text):
    """The page's text; nothing in it reaches out, and no script runs."""
    tags = Tags(text)
    assert tags.open == []
    assert not {tag for tag, _ in tags.seen} & {"iframe", "object", "embed", "base", "form"}
    for tag, attributes in tags.seen:
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "data:").startswith(("data:", "#"))
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        assert "src" not in attributes or (tag == "img" and attributes["alt"])
    assert "script" not in {tag for tag, _ in tags.seen}
    assert "@import" not in text
    assert not re.search(r"url\(", text)
    return " ".join(" ".join(tags.text).split())


def can_be_heard(text):
    """Landmarks, headings in order, ids once, every reference to one that is there, controls and tables with names."""
    tags = Tags(text)
    ids = [each["id"] for _, each in tags.seen if "id" in each]
    assert len(ids) == len(set(ids))
    for _, attributes in tags.seen:
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert set(attributes.get(name, "").split()) <= set(ids), attributes
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids
    names = [tag for tag, _ in tags.seen]
    for landmark in ("header", "nav", "main", "footer", "h1", "title"):
        assert names.count(landmark) == 1, landmark
    levels = [int(tag[1]) for tag in names if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for tag, attributes in tags.seen:
        if tag == "th":
            assert attributes.get("scope") in ("col", "row", "rowgroup")
        if tag == "section":
            assert "aria-labelledby" in attributes
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or (
                attributes.get("role") == "img" and "aria-label" in attributes
            )
        if attributes.get("tabindex") == "0":  # what is reached by keyboard says what it is
            assert attributes.get("aria-label") or attributes.get("aria-labelledby")
    assert dict(tags.seen[names.index("html")][1])["lang"] == "en"


def shown_scenarios(page):
    """The scenarios that a page holds, as YAML."""
    return [
        html.unescape(each)
        for each in re.findall(r"<summary>[^<]*lines\)</summary>\s*<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    ]


@pytest.fixture(scope="module")
def shown(answer):
    return {"estimate": answer, "search": search(answer.scenario, confirm=3, top=3)}


@pytest.mark.thorough
def test_numbers_are_those_of_the_answer(shown):
    answer, found = shown["estimate"], shown["search"]
    frame = answer.to_frame()
    assert frame["seconds"].sum() == pytest.approx(answer.step_time_s)
    assert frame["share"].sum() == pytest.approx(1.0)
    assert "30.9 s" in answer._repr_html_()
    plans = found.to_frame()
    assert 0 <= len(plans) - found.plans_priced <= found.plans_given_room  # those with room stand behind the others
    assert plans["fits"].sum() == found.plans_feasible
    assert plans["step_time_s"].iloc[0] == found.prices.step_time_s[found.best_places()[0]]
    first = plans.iloc[0]
    assert first["tp"] * first["cp"] * first["pp"] * first["dp"] == first["num_gpus"]
    scenario = found.scenario_at(int(found.best_places()[0]))
    assert (scenario.plan.schedule, scenario.plan.recompute) == (first["schedule"], first["recompute"])


def test_the_table_of_a_timeline_holds_its_tasks(scenarios):
    timeline = estimate(load_scenario(scenarios / SCENARIO, ["training.global_batch_size=128"])).timeline
    every = timeline.to_frame()
    once = every[every["stream"] == "once a step"]
    assert set(once["kind"]) == {"reduce", "tied", "update"}
    assert once["end_s"].max() <= timeline.step_time_s
    frame = every[every["stream"] == "compute"]
    assert len(frame) == 16 * 16 * 2
    assert set(frame["kind"]) == {"F", "B"}
    assert (frame["end_s"] > frame["start_s"]).all()
    assert frame[frame["rank"] == 3]["start_s"].is_monotonic_increasing
