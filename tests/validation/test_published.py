"""The tables of runs that ship with flopcast: each with source and licence, all read, and predicted about as well as the README says."""

import re
from collections import Counter, defaultdict
from contextlib import nullcontext
from fnmatch import fnmatch
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from flopcast_calibration.readers.field_columns import check_columns
from flopcast_calibration.readers.training_runs import read_run, read_training_runs
from flopcast_validation.run import published_runs, runs_tables, score
from flopcast_validation.runs.intervals import left_out_coverage
from flopcast_validation.runs.listing import Listing, print_runs
from flopcast_validation.runs.report import markdown_table
from flopcast_validation.runs.score import groups_of
from flopcast_validation.runs.transfer_report import (
    MEAN,
    coverage_markdown,
    coverages,
    rows_of,
    transfer,
    transfer_markdown,
)
from sim import estimate, load_scenario

ROOT = Path(__file__).parents[2]
LICENCES = {"Apache-2.0", "BSD-3-Clause", "MIT", "figures of a published paper"}
REASONS = (
    "a single layer, not a training step",
    "the parallel layout is not given",
    "seq_len is empty",
    "layers is empty, and .* is no model that ships",
    "plan: ep 64 must divide tp · cp · dp = 32",  # as the source prints it
)


@pytest.fixture(scope="module")
def tables():
    return runs_tables()


def test_every_table_says_where_it_is_from(tables):
    for table in tables:
        assert all((table.title, table.source, table.lineage, table.rows)), table.name
        assert table.licence in LICENCES, table.name
        assert (table.licence == "figures of a published paper") == table.source.startswith("arXiv:"), table.name
    assert max(Counter(table.lineage for table in tables).values()) == 1  # a source once
    identities = [row["id"] for table in tables for row in table.rows]
    assert len(identities) == len(set(identities))


def test_tables_hold_cells_only(tables):
    for table in tables:
        columns = {name for row in table.rows for name in row}
        assert check_columns(columns) == [], table.name
        assert "notes" not in columns, table.name


def test_the_readme_lists_every_table(tables):
    text = (ROOT / "validation" / "published" / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(.+?)` \| .* \| (\d+) \| (\d+) \| (.+) \|$", text, re.MULTILINE)
    listed = {glob: [table for table in tables if fnmatch(table.name, glob)] for glob, *_ in lines}
    assert sorted(table.name for group in listed.values() for table in group) == sorted(table.name for table in tables)
    skipped = {run.id for run in published_runs() if run.skipped}
    for glob, runs, predicted, licence in lines:
        rows = [row for table in listed[glob] for row in table.rows]
        assert len(rows) == int(runs), glob
        assert sum(row["id"] not in skipped for row in rows) == int(predicted), glob
        assert {table.licence for table in listed[glob]} == {licence}, glob
    assert f"| all | | | {sum(int(line[1]) for line in lines)} | {sum(int(line[2]) for line in lines)} | |" in text


def test_why_runs_are_not_predicted(scored_published):
    reasons = {item.skipped for item in scored_published if item.error is None}
    assert {reason for reason in reasons if not re.match("|".join(REASONS), reason)} == set()
    unmet = [pattern for pattern in REASONS if not any(re.match(pattern, reason) for reason in reasons)]
    assert unmet == []


@pytest.mark.slow
def test_the_shipped_runs_are_predicted_well(scored_published):
    by_table = defaultdict(list)
    for item in scored_published:
        if item.error is not None:
            by_table[item.run.id.rpartition("-")[0]].append(abs(item.error))
    errors = {name: float(np.mean(values)) for name, values in by_table.items()}
    limits = {
        "megatron-readme-2020-09": 0.07, "megatron-readme-2021-01": 0.08, "zero-bubble": 0.10, "megatron-core-h100": 0.14,
    }  # fmt: skip
    assert {name: errors[name] for name in limits if errors[name] > limits[name]} == {}
    every = [value for values in by_table.values() for value in values]
    assert len(every) > 850
    assert np.mean(every) < 0.135  # with cards of runs that nobody tuned, and experts in 4 bits
    assert np.median(every) < 0.075


def test_shipped_runs_are_the_collected_ones(tables, measurements):
    """Each shipped row is one of the collection: the same scenarios, measurement, family and sweep, or the same refusal."""
    collected = defaultdict(list)
    for name in ("training_runs.csv", "training_runs_2026.csv"):
        for run in read_training_runs(measurements / name):
            collected[run.source].append(run)
    known = {}
    strangers = []
    for table in tables:
        left = collected[table.lineage]
        for row in table.rows:
            run = read_run(row, row["id"], known=known)
            twin = next((other for other in left if _same(run, other)), None)
            if twin is None:
                strangers.append(run.id)
            else:
                left.remove(twin)
        assert left == [], table.name  # nor does a table leave out rows of its source
    assert strangers == []


def _same(run, other):
    return (
        (run.measured == pytest.approx(other.measured, rel=1e-9) and run.unit == other.unit)
        and (run.family, run.sweep, run.precision, run.skipped)
        == (other.family, other.sweep, other.precision, other.skipped)
        and (_fields(run), run.memory_savings) == (_fields(other), other.memory_savings)
        and all(run.step_time_s(each) == pytest.approx(other.step_time_s(each), rel=1e-9) for each in run.choices[:1])
    )


def _fields(run):
    """Scenarios without what was assumed, which a table of its own may say in cells."""
    return [each.replace(assumed=()) for each in run.choices]


@pytest.mark.slow
def test_the_readme_has_the_table_that_validate_prints(scored_published):
    groups = groups_of(scored_published)
    table, text = markdown_table(groups), (ROOT / "README.md").read_text(encoding="utf-8")
    assert table in text, f"flopcast validate --markdown prints another table than the README has:\n{table}"
    runs, modelled = len(scored_published), sum(item.error is not None for item in scored_published)
    assert f"predicts the {runs} published runs that ship" in text
    assert f"of which {modelled} are modelled" in text
    said = " ".join(text.split())
    assert f"errors alone give cover {left_out_coverage(scored_published):.0%}".replace("%", " %") in said
    # The terminal has the same cells, and more of them.
    out = Console(file=StringIO(), width=140)
    print_runs(out, scored_published, Listing(), shipped=True)
    printed = [line.split() for line in out.file.getvalue().splitlines()]
    for line in table.splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        words = [*name.split(), *(cell for cell in cells if cell)]
        assert any(iter_in(words, row) for row in printed), line


def iter_in(words, row):
    """Whether the words are in the row, in their order."""
    rest = iter(row)
    return all(word in rest for word in words)


def test_what_the_page_says_of_runs_written_from_their_papers():
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    for row in score("papers").rows:
        answer = estimate(load_scenario(ROOT / "scenarios" / f"{row.scenario}.yaml"))
        low, high = answer.step_time_interval_s
        says = f"| {row.measured:g} s | {row.predicted:.1f} s | {low:.1f} to {high:.1f} s{'' if row.inside else ': outside'} |"
        assert says in text, says
    scenarios = ROOT / "scenarios"
    llama = estimate(load_scenario(scenarios / "llama3-405b-16384-h100.yaml"))
    rate = llama.model_flop_per_s_per_gpu / 1e12
    low, high = (rate * llama.step_time_s / time for time in reversed(llama.step_time_interval_s))
    assert f"| 400 TFLOP/s | {rate:.0f} TFLOP/s | {low:.0f} to {high:.0f} TFLOP/s |" in text
    settings = [f"stack.fused_{name}=false" for name in ("softmax", "rotary", "bias_activation")]
    unfused = estimate(load_scenario(scenarios / "papers" / "glm-130b-768-a100.yaml", settings))
    high = unfused.step_time_interval_s[1]
    assert f"the step takes {unfused.step_time_s:.1f} s and the interval reaches {high:.0f} s" in text
    nemotron = estimate(load_scenario(scenarios / "papers" / "nemotron-4-340b-1536-h100.yaml"))
    low, high = nemotron.step_time_interval_s
    assert f"({nemotron.step_time_s:.1f} s, {low:.1f} to {high:.1f} s)" in text


def test_what_the_page_says_of_mixtures_of_experts(scored_published):
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    groups = {group.name: group for group in groups_of(scored_published)}
    for bits in (16, 8, 4):
        group = groups[f"experts, {bits} bits"]
        inside = "all" if group.coverage == 1 else f"{100 * group.coverage:.0f} %"
        assert f"**Mixtures of experts in {bits} bits** ({100 * group.mean_error:.1f} %, {inside} inside)" in text
    coverage = f"{100 * left_out_coverage(scored_published):.0f} %"
    assert f"cover {coverage} of the runs that ship" in text


@pytest.fixture(scope="module")
def transferred(scored_published):
    return transfer(scored_published, lambda what: nullcontext())


@pytest.mark.slow
def test_what_runs_of_ones_own_are_worth(transferred):
    """What an unknown framework is in for, with none, one and three of its runs, as the pages say it."""
    unknown = transferred.unknown
    assert len(unknown) == len(transferred.known)
    assert {item.scenario.stack.framework for item in unknown} <= {"pytorch", "alpa", "metaseq", "sagemaker"}
    rows = rows_of(transferred)
    means = {row.what: row for row in rows if row.lineage == MEAN}
    none, one, three = (means[what] for what in ("unknown", "after one run", "after three runs"))
    assert one.errors.mean_error < one.before - 0.05
    assert three.errors.mean_error < three.before - 0.05
    worse = [row.errors.mean_error - row.before for row in rows if row.what == "after one run"]
    assert sum(worse) / len(worse) < 0.01  # a run of one's own never makes the others worse by more than that
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    errors = [100 * row.errors.mean_error for row in (none, one, three)]
    assert (
        "{:.0f} % on average over lineages, {:.0f} % once one run is given, {:.0f} % after three".format(*errors)
        in said
    )
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    for table, heading in (
        (transfer_markdown(rows), "| lineage | framework |"),
        (coverage_markdown(coverages(transferred)), "| intervals from the other lineages alone |"),
    ):
        assert table in text, f"docs/validation.md lacks the table {heading} of flopcast validate --transfer --markdown"


@pytest.mark.slow
def test_intervals_hold_for_lineages_that_they_never_saw(transferred):
    for each in coverages(transferred):
        if each.lineages >= 5:
            assert 0.84 <= each.mean <= 0.97, each
        assert each.factor < 2.4, each


def test_errors_of_rates_and_times_have_one_sign():
    for name in ("single-runs", "papers"):
        for row in score(name).rows:
            slower = row.predicted < row.measured if row.is_rate else row.predicted > row.measured
            assert (row.error > 0) == slower
