"""Pages: self-contained, escaped, with the numbers of the answer in them; looked at by a real browser where there is one."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from open_space import search

from sim import build_scenario, estimate, load_scenario
from sim.commands.report import report
from sim.errors import SpecError
from sim.report.facts import falls_of
from sim.report.html.page import report_page
from sim.specs.writing import whole_yaml
from sim.specs.yaml12 import parse_yaml
from tests.report.pages import can_be_heard, is_self_contained, shown_scenarios
from tests.rows import rows
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


def test_the_waterfall_leads_from_peak_to_what_is_left(answer):
    rows = falls_of(answer)
    shares = answer.breakdown.shares()
    left = 1.0
    for row in rows[:-1]:
        assert row.begin + row.width == pytest.approx(left, abs=2e-3)  # causes too small for a row leave a hair
        left = row.begin
    assert rows[-1].width == pytest.approx(left, abs=2e-3) == pytest.approx(shares["flop_at_peak"])


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


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OWN = re.compile(r"^https?://[\w.-]*\.(google|googleapis|gstatic|chromium)\.(com|org)[:/]")
"""What the browser asks of its maker by itself."""
REACHES_OUT = "<img src='http://example.invalid/pixel.png'><script>console.error('oh no')</script>"


def looked_at(folder):
    """(lines of the console, addresses that were asked for, requests to the server) when a browser opens the page."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    log = folder / "net.json"
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'user'}", "--enable-logging=stderr",
        f"--log-net-log={log}", "--dump-dom", f"{address}/page.html",
    ]  # fmt: skip
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        server.shutdown()
    assert "</html>" in shown.stdout
    urls = {str((event.get("params") or {}).get("url", "")) for event in json.loads(log.read_text())["events"]}
    abroad = {url for url in urls if url.startswith("http") and not url.startswith(address) and not OWN.match(url)}
    return [line for line in shown.stderr.splitlines() if "CONSOLE" in line], abroad, asked


@pytest.mark.skipif(BROWSER is None, reason="no Chromium to look with")
@rows("content", ["report", "control"])
def test_a_browser_finds_no_error_and_asks_for_nothing(content, page, tmp_path):
    (tmp_path / "page.html").write_text(page if content == "report" else f"<html><body>{REACHES_OUT}</body></html>")
    console, abroad, asked = looked_at(tmp_path)
    if content == "report":
        assert (console, abroad, asked) == ([], set(), ["/page.html"])
    else:  # a page that does both is found out
        assert any("oh no" in line for line in console)
        assert any("example.invalid" in url for url in abroad)
