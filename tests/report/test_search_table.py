"""What the table of the best plans of schedules says."""

from dataclasses import replace
from pathlib import Path

from open_space import search

from sim.report.search import schedules_view
from sim.report.terminal import console
from sim.search.by_schedule import search_schedules
from sim.specs import load_scenario
from sim.units import significant
from tests.rows import rows

SMALL = Path(__file__).parents[2] / "scenarios" / "korthikanti-2022" / "22b-selective.yaml"


@rows("objective", ["cost", "step_time"])
def test_sizes_and_cost_stand_beside_the_time_where_they_count(objective):
    """A plan of fewer GPUs may be slower and better; without GPUs and cost its row would contradict itself."""
    scenario = load_scenario(SMALL)
    few, many = (search(scenario, objective=objective, gpus=(size, size), top=1) for size in (8, 16))
    found, larger = search_schedules(few, "zb_v"), search_schedules(many, "gpipe")
    for result in (found, replace(found, schedules=(*found.schedules, *larger.schedules))):
        out = console()
        out.width = 100
        with out.capture() as caught:
            out.print(schedules_view(result))
        told = caught.get()
        sizes = {each.best.answer.num_gpus for each in result.schedules}
        assert ("GPUs" in told) == (len(sizes) > 1)
        assert ("GPU-s" in told) == (objective == "cost")
        rows = {line.split()[0]: line.split()[1:] for line in told.splitlines() if line.startswith(("zb_v", "gpipe"))}
        for each in result.schedules:
            answer, row = each.best.answer, rows[each.schedule]
            assert (row[0] == str(answer.num_gpus)) == (len(sizes) > 1)
            spent = significant(answer.step_time_s * answer.num_gpus)
            assert (spent in row) == (objective == "cost")
