"""`flopcast plan-pipeline`: which layers each stage of a pipeline without flush holds, and on how many workers."""

from __future__ import annotations

from pathlib import Path

from sim.commands.options import AsJson, Overrides, ProfileOption, print_answer
from sim.errors import SpecError
from sim.files import here_or_shipped, read_text
from sim.planners.answers import Source, ask_pipedream
from sim.planners.layers import profile_from_text
from sim.planners.pipeline_plan import read_levels
from sim.specs.loading import load_scenario
from sim.units import parse


def plan_pipeline(
    source: str,
    *,
    overrides: Overrides = None,
    workers: str | None = None,
    bandwidths: str | None = None,
    straight: bool = False,
    sync: str = "ring",
    memory: str | None = None,
    profile: ProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """Deal layers to the stages of a pipeline without flush as PipeDream's planner does.

    The plan is played in its own order, 1F1B round robin, and what it takes more than the planner promises is said.

    source : A profile of layers (CSV, YAML), or a scenario.
    workers : Workers, or servers × workers: 16, 4x4. A scenario has its own.
    bandwidths : Bandwidths, the outermost first: '10 Gbit/s, 12 GB/s'.
    straight : One worker a stage.
    sync : Bytes of a reduction: ring, sosp or arxiv.
    memory : Of a worker, such as '16 GB'.
    """
    from sim.report.planners import pipedream_view

    if (workers is None) != (bandwidths is None):
        raise SpecError("give --workers and --bandwidths together, such as --workers 16 --bandwidths '10 Gbit/s'")
    levels = None if workers is None or bandwidths is None else read_levels(workers, bandwidths)
    limit = None if memory is None else parse(memory, "bytes")
    asked = _source(source, overrides or [], profile)
    plan = ask_pipedream(asked, levels, sync=sync, replicated=not straight, memory_bytes=limit)
    print_answer(as_json, plan.to_dict, lambda: pipedream_view(plan))


def _source(path: str, overrides: list[str], profile: str | None) -> Source:
    """A scenario, or a profile of layers, told apart by what is in the file."""
    path = str(here_or_shipped(path))
    if Path(path).is_file():
        found = profile_from_text(read_text(path), path)
        if found is not None:
            if overrides or profile is not None:
                raise SpecError(f"{path} is a profile of layers; leave --set and --profile out, they change a scenario")
            return found
    return load_scenario(path, overrides, profile)
