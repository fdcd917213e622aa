"""Searches on several processes, on a cluster, killed half-way: always the same table."""

import errno
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sim.cli import app
from sim.errors import FlopcastError, SpecError
from sim.files import put
from sim.search import SearchResult, Space, build_space, price_all, search
from sim.search.plans.columns import SCHEDULES
from sim.search.prices.pool import PLANS_PER_WORKER, processes_for, run_units
from sim.search.prices.units import price_unit
from sim.specs import load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
MAIN = SCENARIOS / "gpt3-175b-4096-a100.yaml"
SMALL = SCENARIOS / "korthikanti-2022" / "22b-selective.yaml"
UNIT = 1500
"""Plans a unit, so that a small space has some twenty."""
FAST = {"top": 2, "confirm": 2, "plans_per_unit": UNIT}
PROVEN = {"top": 1, "plans_per_unit": UNIT}


SMALLER = {"top": 1, "confirm": 1, "plans_per_unit": 200}


def columns(result):
    return result.category, result.row, result.step_time_s, result.memory_bytes


def same(one, other):
    return all(np.array_equal(left, right) for left, right in zip(columns(one), columns(other), strict=True))


@pytest.fixture(scope="module")
def scenario():
    return load_scenario(MAIN)


@pytest.fixture(scope="module")
def alone(scenario):
    return search(scenario, **FAST)


@pytest.fixture(scope="module")
def small():
    return load_scenario(SMALL)


@pytest.fixture(scope="module")
def small_alone(small):
    return search(small, **SMALLER)


def test_any_cut_into_units_has_the_same_plans(scenario, alone):
    whole = search(scenario, top=2, confirm=2)
    assert len(list(whole.space.parts(UNIT))) > 10
    assert len(list(whole.space.parts(10**9))) == 1
    order = [np.lexsort((each.row, each.category)) for each in (whole, alone)]
    for left, right in zip(columns(whole), columns(alone), strict=True):
        np.testing.assert_allclose(left[order[0]], right[order[1]], rtol=1e-12)
    assert [each.scenario.plan for each in whole.best] == [each.scenario.plan for each in alone.best]
    for objective in ("cost", "memory_headroom"):
        few, all_of_them = search(scenario, objective=objective, **PROVEN), search(scenario, objective=objective, top=1)
        assert few.best[0].scenario.plan == all_of_them.best[0].scenario.plan
        assert few.ranking().tolist()[:50] == few.ranking(50).tolist()
        assert few.rank_of(few.scenario_at(int(few.ranking()[7]))) == 8
    pareto = [{tuple(each.step_time_s[each.pareto()]), *each.memory_bytes[each.pareto()]} for each in (whole, alone)]
    assert pareto[0] == pareto[1]


def test_units_travel_light_and_know_everything(scenario, alone):
    """What a worker gets is all it needs: it answers in a fresh process as here."""
    for part in list(alone.space.parts(UNIT))[:3]:
        assert len(pickle.dumps(part)) < 40_000
        there = pickle.loads(pickle.dumps(part))
        assert np.array_equal(np.array(price_unit(there)), np.array(price_unit(part)))


def test_processes_give_the_same_table(scenario, alone):
    assert same(alone, search(scenario, jobs=2, **FAST))
    with ThreadPoolExecutor(3) as pool:
        assert same(alone, search(scenario, executor=pool, **FAST))
    assert processes_for(PLANS_PER_WORKER - 1) == processes_for(1) == 1
    assert 1 <= processes_for(10**12) <= os.cpu_count()
    for wrong in ("jobs", "plans_per_unit", "top", "confirm"):
        with pytest.raises(SpecError, match=f"{wrong} = 0 must be at least 1"):
            search(scenario, **{wrong: 0})


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_gives_the_same_table(scenario, alone, tmp_path):
    """Worker processes of a real cluster, each of which prices something."""
    from distributed import Client, LocalCluster

    def layouts_met():
        from sim.search.plans.layouts import shapes

        return shapes.cache_info().misses

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster,
        Client(cluster) as client,
    ):
        result = search(scenario, executor=client.get_executor(), **FAST)
        pids = client.run(os.getpid)
        busy = client.run(layouts_met)
    assert same(alone, result)
    assert len({os.getpid(), *pids.values()}) == 3
    assert all(met > 0 for met in busy.values())


def test_memory_stays_flat(scenario, tmp_path):
    """Saved, a plan more costs less than the 22 bytes of its prices: only layouts are kept, and what is known of them."""
    pytest.importorskip("pyarrow.parquet")

    def peak(context):
        tracemalloc.start()
        folder = tmp_path / str(len(context))
        result = search(scenario, context=context, top=1, confirm=1, plans_per_unit=8000, save=folder)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return result.plans_priced, most

    search(scenario, top=1, confirm=1, save=tmp_path / "warm")
    few, many = peak((1, 2, 4)), peak((1, 2, 4, 8, 16, 32))
    assert many[0] > 2 * few[0]
    assert many[1] - few[1] < 12 * (many[0] - few[0])


def die(part):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_told(scenario, monkeypatch):
    if multiprocessing.get_start_method() != "fork":
        pytest.skip("the replaced function reaches forked workers only")
    monkeypatch.setattr(sys.modules["sim.search.prices.pool"], "price_unit", die)
    with pytest.raises(FlopcastError, match=r"a worker process died.*--jobs"):
        search(scenario, jobs=2, **FAST)


def test_killed_half_way_it_goes_on_to_the_same_table(scenario, alone, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "plans"
    code = (
        "import time; from sim.search import search; from sim.specs import load_scenario; "
        f"search(load_scenario({str(MAIN)!r}), top=2, confirm=2, plans_per_unit={UNIT}, save={str(folder)!r}, "
        "jobs=2, progress=lambda done, size: time.sleep(0.05))"
    )
    killed = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 60
    while len(list(folder.glob("part-*.parquet"))) < 3:
        assert killed.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end, "it saved nothing"
        time.sleep(0.01)
    workers = Path(f"/proc/{killed.pid}/task/{killed.pid}/children")
    left = [Path(f"/proc/{pid}") for pid in workers.read_text().split()] if workers.exists() else []
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    while any(each.exists() for each in left):  # its processes do not outlive it
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.01)
    (folder / "_unfinished-1-part-00019.parquet").write_bytes(b"PAR1 half a file")
    resumed = search(scenario, save=folder, jobs=2, **FAST)
    assert 3 * UNIT * 0.5 < resumed.plans_restored < resumed.plans_priced == alone.plans_priced
    assert same(alone, resumed)
    assert resumed.plans_feasible == alone.plans_feasible
    assert [each.scenario for each in resumed.best] == [each.scenario for each in alone.best]
    # The folder is one table to any reader of Parquet, with the plans in words.
    whole = pq.read_table(folder).to_pydict()
    assert len(whole["tp"]) == alone.plans_priced
    for place in np.random.default_rng(5).integers(alone.plans_priced, size=20).tolist():
        plan = alone.scenario_at(place).plan
        for name in ("tp", "cp", "pp", "dp", "ep", "num_chunks", "microbatch_size", "schedule", "recompute",
                     "sequence_parallel", "zero_stage", "num_gpus"):  # fmt: skip
            assert whole[name][place] == getattr(plan, name)
    # Nothing is left to price; other questions are answered from the table.
    again = search(scenario, save=folder, objective="cost", **PROVEN)
    assert again.plans_restored == again.plans_priced
    assert again.best[0].scenario.plan == search(scenario, objective="cost", top=1).best[0].scenario.plan


def test_interrupted_it_keeps_what_was_priced(scenario, alone, tmp_path):
    pytest.importorskip("pyarrow")

    def stop(done, size):
        if done > size / 2:
            raise KeyboardInterrupt

    for options in ({}, {"jobs": 2}):
        part = search(scenario, save=tmp_path / f"plans{len(options)}", progress=stop, **FAST, **options)
        assert not part.finished
        assert alone.plans_priced / 2 < part.plans_priced < alone.plans_priced
        rest = search(scenario, save=tmp_path / f"plans{len(options)}", **FAST)
        assert rest.plans_restored == part.plans_priced
        assert same(alone, rest)


def test_what_is_not_this_search_is_left_alone(scenario, tmp_path):
    pytest.importorskip("pyarrow")
    small = load_scenario(SMALL)

    def refused(message, folder, given=small, **options):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(SpecError, match=message):
            search(given, save=folder, top=1, confirm=1, **options)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before

    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    refused(r"notes\.txt is a file; it is left as it is", notes)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mine.parquet").write_text("mine")
    refused("holds files but no search", foreign)
    folder = tmp_path / "plans"
    search(small, save=folder, top=1, confirm=1)
    refused(r"another search: it differs in scenario\.model\.name", folder, given=scenario)
    refused(r"another search: it differs in gpus \(\[1, 8\], there \[8, 8\]\)", folder, gpus=(1, 8))
    refused(r"differs in scenario\.training\.tokens \(1000000\.0, there null\)", folder,
            given=small.replace(training=small.training.replace(tokens=1_000_000)))  # fmt: skip
    refused(r"plans_per_unit \(100, there 400000\)", folder, plans_per_unit=100)
    renamed = small.replace(name="again", plan=small.plan.replace(microbatch_size=1))
    assert search(renamed, save=folder, top=1, confirm=1).plans_restored > 0
    part = folder / "part-00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    refused(r"part-00000\.parquet is not a whole part of this search.*delete it to have it priced anew", folder)
    part.write_bytes(whole)
    (folder / "more.parquet").write_bytes(whole)
    refused(r"holds more\.parquet, which is no part of this search", folder)
    (folder / "more.parquet").unlink()
    note = json.loads((folder / "_search.json").read_text())
    assert note["experts"] == [1]
    (folder / "_search.json").write_text(json.dumps({**note, "format": 1}))
    refused(r"saved by another version of flopcast \(format 1, this one writes 3\); it is left as it is", folder)
    (folder / "_search.json").write_text("{")
    refused(r"_search\.json cannot be read as the note of a search", folder)


def test_prices_of_another_version_are_not_mixed(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    small = load_scenario(SMALL)
    search(small, save=tmp_path / "plans", top=1, confirm=1)
    monkeypatch.setattr(
        sys.modules["sim.search.saved"], "price_unit", lambda part: [1.001 * each for each in price_unit(part)]
    )
    with pytest.raises(SpecError, match=r"priced by another version of flopcast: step_time_s is up to 0\.001 off"):
        search(small, save=tmp_path / "plans", top=1, confirm=1)


def test_a_full_disk_is_told_and_what_is_saved_stays(small, small_alone, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    write, written = parquet.write_table, []

    def full(table, path, **options):
        written.append(path)
        if len(written) == 4:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "at length")
        write(table, path, **options)

    monkeypatch.setattr(parquet, "write_table", full)
    folder = tmp_path / "plans"
    with pytest.raises(FlopcastError, match="No space left on device; 3 parts of the table are in it: make room"):
        search(small, save=folder, **SMALLER)
    assert sorted(path.name for path in folder.iterdir()) == [
        "_search.json",
        *(f"part-0000{n}.parquet" for n in range(3)),
    ]
    assert same(small_alone, search(small, save=folder, **SMALLER))


def test_searches_that_share_a_folder_make_the_same_table(small, small_alone, tmp_path):
    pytest.importorskip("pyarrow")
    others = iter(range(1))

    def begin_another(done, size):
        if next(others, None) is not None:  # takes what is half written for a killed search's
            (tmp_path / "plans" / "_unfinished-1-part-00003.parquet").write_bytes(b"half")
            search(small, save=tmp_path / "plans", **SMALLER)

    assert same(small_alone, search(small, save=tmp_path / "plans", progress=begin_another, **SMALLER))
    assert not list((tmp_path / "plans").glob("_unfinished*"))


def test_a_file_that_another_search_cleared_away_is_written_again(tmp_path):
    def write(path):
        path.write_text("whole")
        if len(asked) < 2:
            asked.append(path)
            path.unlink()

    asked = []
    put(tmp_path / "part", write)
    assert (tmp_path / "part").read_text() == "whole"


def test_no_more_processes_than_work(small, small_alone, monkeypatch):
    asked = []

    def note(units, jobs, executor):
        asked.append(jobs)
        return run_units(units, 1, executor)

    monkeypatch.setattr(sys.modules["sim.search.search"], "run_units", note)
    assert same(small_alone, search(small, jobs=10_000, **SMALLER))
    assert asked == [len(list(small_alone.space.parts(200)))]


def test_folders_that_cannot_be_written_are_told(scenario, tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="Not a directory; name a folder"):
        search(scenario, save=tmp_path / "file" / "plans", **FAST)


def test_command_saves_and_says_so(tmp_path):
    pytest.importorskip("pyarrow")
    words = ["search", str(SMALL), "--json", "--top", "1", "--jobs", "1", "--save", str(tmp_path / "plans")]
    first, second = (json.loads(CliRunner().invoke(app, words).output) for _ in range(2))
    assert first["plans_restored"] == 0
    assert first["plans_per_s"] * first["elapsed_s"] == pytest.approx(first["plans_priced"] + first["plans_given_room"])
    assert second["plans_restored"] == second["plans_priced"] == first["plans_priced"]
    assert second["best"] == first["best"]
    shown = CliRunner().invoke(app, [word for word in words if word != "--json"]).output
    assert "memory-checked" not in shown
    assert f"{first['plans_priced']:,} plans read from" in " ".join(shown.split())


def test_a_space_counts_and_cuts_itself(scenario):
    space = build_space(scenario, (64, 4096), context=(1, 3, 4))
    parts = list(space.parts(5000))
    assert sum(part.num_plans for part in parts) == space.num_plans
    assert np.array_equal(np.concatenate([part.layouts for part in parts]), space.layouts)
    assert [part.first_row for part in parts] == [0, *np.cumsum([len(part.columns) for part in parts])[:-1]]
    some = Space(scenario, space.layouts[:9], space.categories[5::7])
    whole = {space.categories[number]: (rows, seconds) for number, rows, seconds, _ in
             price_all(Space(scenario, space.layouts[:9], space.categories))}  # fmt: skip
    for number, rows, seconds, _ in price_all(some):
        assert np.array_equal(rows, whole[some.categories[number]][0])
        np.testing.assert_allclose(seconds, whole[some.categories[number]][1], rtol=1e-14)
    rows = np.array([0, 17, len(space.columns) - 1])
    assert np.array_equal(space.gpus_of(rows), space.columns.num_gpus[rows])


def test_plans_with_some_fields_are_the_same_in_parts_as_in_whole(scenario, alone, tmp_path):
    """Counts, ranks and the best few, against the arrays of all plans."""
    pytest.importorskip("pyarrow")
    saved = search(scenario, save=tmp_path / "plans", **FAST)
    ranking, columns, categories = alone.ranking(), alone.space.columns, alone.categories
    fields = {name: getattr(columns, name)[alone.row] for name in ("tp", "cp", "pp")}
    fields["schedule"] = np.array(SCHEDULES)[columns.schedule[alone.row]]
    for name in ("recompute", "zero_stage"):
        fields[name] = np.array([getattr(each, name) for each in categories])[alone.category]
    for named in (
        {"cp": 1},  # all of them
        {"tp": 8},
        {"recompute": "full", "zero_stage": 1},
        {"schedule": "interleaved", "pp": 8},
        {"tp": 7},
    ):
        which = np.all([fields[name] == value for name, value in named.items()], axis=0)
        mine = ranking[which[ranking]]
        place = int(mine[len(mine) // 2]) if len(mine) else 0
        (part,) = saved.select([named], few=5, than=float(alone.score()[place]))
        assert (part.priced, part.fit) == (np.count_nonzero(which), len(mine))
        assert np.array_equal(part.best, mine[:5])
        assert not len(mine) or part.better == np.count_nonzero(alone.score()[mine] < alone.score()[place])
        assert part.leanest is None or part.leanest == np.argmin(np.where(which, alone.memory_bytes, np.inf))
    assert saved.places_of([each.scenario for each in alone.best]) == [
        alone.place_of(each.scenario) for each in alone.best
    ]
    assert "_all" not in vars(saved)


def test_what_the_command_always_says_needs_no_plans_in_memory(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(SearchResult, "_all", property(lambda self: pytest.fail("all plans are in memory")))
    words = ["search", str(SMALL), "--save", str(tmp_path / "plans"), "--why", "plan.tp=4", "--pareto", "--objective"]
    for objective in ("cost", "memory_headroom"):
        outcome = CliRunner().invoke(app, [*words, objective])
        assert outcome.exit_code == 0, outcome.exception
        assert "The scenario's own plan" in outcome.output
