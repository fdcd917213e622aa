"""The tables of runs that ship with flopcast: each with source and licence, all read, and predicted about as well as the README says."""

import re
from collections import Counter, defaultdict
from fnmatch import fnmatch
from io import StringIO
from math import log1p
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scored import shipped_runs

from flopcast_calibration.readers.cells import check_columns
from flopcast_calibration.readers.training_runs import read_rows, read_runs
from flopcast_validation.cli import Listing
from flopcast_validation.run import WILD, published_runs, runs_tables
from flopcast_validation.runs.intervals import left_out_coverage
from flopcast_validation.runs.listing import print_runs
from flopcast_validation.runs.score import HEADLINES, groups_of, in_the_wild, markdown_table
from flopcast_validation.runs.scored import score_all
from sim import estimate, load_scenario
from sim.pricing.layouts import expected_slowest, slowdown
from sim.specs.yaml12 import load_yaml

ROOT = Path(__file__).parents[2]
LICENCES = {"Apache-2.0", "BSD-3-Clause", "MIT", "figures of a published paper"}


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


ABOUT = {
    "id", "source", "inferred", "framework", "gpu", "model_name", "num_gpus", "cluster", "profile", "model", "measured_value",
    "measured_unit", "flops_convention", "peak_tflops", "unmodelled", "doubtful", "notes",
}  # fmt: skip


def test_rows_are_scenarios(tables):
    columns = {name for table in tables for row in table.rows for name in row}
    assert check_columns(name for name in columns if "." in name) == []
    assert {name for name in columns if "." not in name} <= ABOUT
    used = [{row["cluster"]["name"] for table in tables for row in table.rows if "cluster" in row},
            {row["model"]["name"] for table in tables for row in table.rows if "model" in row}]  # fmt: skip
    for names, what in zip(used, ("machines", "models"), strict=True):
        described = load_yaml(ROOT / "validation" / "published" / "described" / f"{what}.yaml").values()
        assert {each.get("cluster", each)["name"] for each in described} == names


def test_the_readme_lists_every_table(tables):
    text = (ROOT / "validation" / "published" / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(.+?)` \| .* \| (\d+) \| (\d+) \| (.+) \|$", text, re.MULTILINE)
    listed = {glob: [table for table in tables if fnmatch(table.name, glob)] for glob, *_ in lines}
    assert sorted(table.name for group in listed.values() for table in group) == sorted(table.name for table in tables)
    skipped = {run.id for run in shipped_runs() if not run.choices}
    for glob, runs, predicted, licence in lines:
        rows = [row for table in listed[glob] for row in table.rows]
        assert len(rows) == int(runs), glob
        assert sum(row["id"] not in skipped for row in rows) == int(predicted), glob
        assert {table.licence for table in listed[glob]} == {licence}, glob
    assert f"| all | | | {sum(int(line[1]) for line in lines)} | {sum(int(line[2]) for line in lines)} | |" in text


@pytest.mark.slow
def test_some_of_the_shipped_runs_are_predicted_well(scored_some):
    errors = [abs(item.error) for item in scored_some if item.error is not None]
    assert len(errors) > 40
    assert np.mean(errors) < 0.12
    assert np.median(errors) < 0.075


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_the_pages_have_the_table_that_validate_prints(scored_published):
    """The whole of it in docs/validation.md, its first rows in the README."""
    wild = score_all(published_runs(folder=WILD))
    assert all(item.error is not None for item in wild)
    groups = [in_the_wild(wild), *groups_of(scored_published)]
    table, page = markdown_table(groups), (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    assert table in page, f"flopcast validate --markdown prints another table than docs/validation.md has:\n{table}"
    rows, readme = markdown_table(groups, HEADLINES), (ROOT / "README.md").read_text(encoding="utf-8")
    assert rows in readme, f"the README has other rows than flopcast validate --markdown:\n{rows}"
    runs, modelled = len(scored_published), sum(item.error is not None for item in scored_published)
    text, coverage = " ".join(page.split()), f"{100 * left_out_coverage(scored_published):.0f} %"
    assert f"{runs} published runs ship" in text
    assert f"{modelled} of them are modelled" in text
    assert f"own lineage cover {coverage}" in text
    assert f"cover {coverage} of the runs that ship" in text
    for bits in (16, 8, 4):
        (group,) = (group for group in groups if group.name == f"experts, {bits} bits")
        inside = "all" if group.coverage == 1 else f"{100 * group.coverage:.0f} %"
        assert f"**Mixtures of experts in {bits} bits** ({100 * group.mean_error:.1f} %, {inside} inside)" in text
    # The terminal has the cells that the table has, and more of them.
    out = Console(file=StringIO(), width=140)
    print_runs(out, wild, Listing(), shipped=True, wild=wild)
    printed = [line.split() for line in out.file.getvalue().splitlines()]
    for line in markdown_table([in_the_wild(wild), *groups_of(wild)]).splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        words = [*name.split(), *(cell for cell in cells if cell)]
        assert any(Counter(words) <= Counter(row) for row in printed), line


def test_what_the_page_says_of_runs_written_from_their_papers():
    text = " ".join((ROOT / "docs" / "validation.md").read_text(encoding="utf-8").split())
    scenarios = ROOT / "scenarios"
    for name, measured in (
        ("mt-nlg-530b-2240-a100", 60.1),
        ("glm-130b-768-a100", 88.5),
        ("deepseek-v3-2048-h800", 19.9),
    ):
        answer = estimate(load_scenario(scenarios / "papers" / f"{name}.yaml"))
        low, high = answer.step_time_interval_s
        assert f"| {measured} s | {answer.step_time_s:.1f} s | {low:.1f} to {high:.1f} s |" in text, name
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


@pytest.mark.thorough
def test_series_that_differ_in_the_number_of_gpus_alone_show_the_spread_of_gpus(scored_published):
    """Measured over predicted, against the expected slowest of so many GPUs: with `cluster.gpu_spread` it hardly grows."""
    series = defaultdict(list)
    for item in scored_published:
        if item.error is not None:
            plan, training = item.scenario.plan, item.scenario.training.replace(global_batch_size=1)
            cut = plan.replace(dp=1, ep=1, sharding_group=None)
            rest = item.scenario.model, training, cut, plan.ep, item.scenario.num_microbatches, item.scenario.stack
            series[str((item.run.id.rpartition("-")[0], item.scenario.cluster.gpu.name, *rest))].append(item)
    found = [[], [], []]
    for same in series.values():
        gpus = [item.scenario.plan.num_gpus for item in same]
        if len(set(gpus)) > 1:
            slowest = [expected_slowest(each) for each in gpus]
            left = [-log1p(item.error) for item in same]
            more = [log1p(float(slowdown(np.array(each), 0.03, 64))) for each in gpus]
            for column, values in zip(found, (slowest, left, np.add(left, more)), strict=True):
                column.extend(np.subtract(values, np.mean(values)))
    slowest, left, without = map(np.array, found)
    assert len(slowest) > 100
    assert abs(slowest @ left / (slowest @ slowest)) < 0.015
    assert 0.02 < slowest @ without / (slowest @ slowest) < 0.045


# Cards that people own, by trainers whose code was read: beginning of the rows' names, GPU; what their tables leave to
# the notes, as fields; mean error that is not exceeded.
CARDS = {
    ("lq", "RTX 4090"): ({}, 0.10), ("lq", "RTX PRO 6000"): ({}, 0.09), ("lq", "RTX 5060 Ti"): ({}, 0.20),
    ("lq", "H100-SXM"): ({}, 0.08), ("m40", "L40S"): ({"training.adapter_rank": "16"}, 0.12),
}  # fmt: skip


def test_runs_on_cards_that_people_own(measurements):
    rows, wrong, inside = read_rows(measurements / "training_runs_3.csv", ()), {}, []
    for (prefix, gpu), (facts, most) in CARDS.items():
        asked = [{**row, **facts} for row in rows if row["id"].startswith(f"{prefix}-") and row["gpu"] == gpu]
        scored = score_all(read_runs(asked))
        assert not [item.run.skipped for item in scored if item.error is None]
        mean = sum(abs(item.error) for item in scored) / len(scored)
        inside += [item.interval[0] <= item.run.measured <= item.interval[1] for item in scored]
        if mean > most:
            wrong[prefix, gpu] = mean
    assert wrong == {}
    assert sum(inside) >= 0.95 * len(inside)
