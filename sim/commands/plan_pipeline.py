"""`flopcast plan-pipeline`: which layers each stage of a pipeline without flush holds, and on how many workers."""

from __future__ import annotations

from pathlib import Path

from sim.commands.options import AsJson, Overrides, ProfileOption, print_answer, read_numbers
from sim.commands.progress import progress_bar
from sim.errors import SpecError, nearest
from sim.files import here_or_shipped, read_text
from sim.planners import ask_pipedream, ask_two_buffered, read_levels
from sim.planners.answers import Source
from sim.planners.layers import holds_layers, profile_from_text
from sim.specs.loading import load_scenario
from sim.units import parse

PLANNERS = ("pipedream", "2bw")


def plan_pipeline(
    source: str,
    *,
    overrides: Overrides = None,
    planner: str = "pipedream",
    workers: str | None = None,
    bandwidths: str | None = None,
    straight: bool = False,
    sync: str = "ring",
    memory: str | None = None,
    batch: int | None = None,
    microbatches: str | None = None,
    top: int = 8,
    profile: ProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """Deal layers to the stages of a pipeline without flush as PipeDream's planner does, or PipeDream-2BW's.

    The plan is played in its own order, 1F1B round robin, and what it takes more than the planner promises is said.

    source : A profile of layers (CSV, YAML, a graph of PipeDream's profiler), or a scenario.
    planner : pipedream (stages replicated unequally) or 2bw (equal stages, two versions).
    workers : Workers, or servers × workers: 16, 4x4. A scenario has its own.
    bandwidths : Bandwidths, the outermost first: '10 Gbit/s, 12 GB/s'.
    straight : One worker a stage (pipedream).
    sync : Bytes of a reduction (pipedream): ring, sosp or arxiv.
    memory : Of a worker, such as '16 GB'.
    batch : Samples between two updates (2bw).
    microbatches : Micro-batches to try (2bw): 1,2,4.
    top : How many plans to show (2bw).
    """
    from sim.report.planners import pipedream_view, two_buffered_view

    if planner not in PLANNERS:
        raise SpecError(f"unknown planner {planner!r}{nearest(planner, PLANNERS)}")
    foreign = (
        {"--batch": batch, "--microbatches": microbatches}
        if planner == "pipedream"
        else {"--straight": straight or None, "--sync": None if sync == "ring" else sync}
    )
    wrong = [option for option, value in foreign.items() if value is not None]
    if wrong:
        raise SpecError(f"{' and '.join(wrong)} does not belong to planner {planner}; leave it out")
    if top < 1:
        raise SpecError(f"--top {top} must be one or more")
    if (workers is None) != (bandwidths is None):
        raise SpecError("give --workers and --bandwidths together, such as --workers 16 --bandwidths '10 Gbit/s'")
    levels = None if workers is None or bandwidths is None else read_levels(workers, bandwidths)
    limit = None if memory is None else parse(memory, "bytes")
    asked = _source(source, overrides or [], profile)
    if planner == "pipedream":
        plan = ask_pipedream(asked, levels, sync=sync, replicated=not straight, memory_bytes=limit)
        print_answer(as_json, plan.to_dict, lambda: pipedream_view(plan))
        return
    sizes = None
    if microbatches is not None:
        sizes = read_numbers(microbatches, "--microbatches", "numbers of samples", "1,2,4")
    with progress_bar("plans estimated") as progress:
        found = ask_two_buffered(asked, levels, batch=batch, microbatches=sizes, memory_bytes=limit, progress=progress)
    print_answer(as_json, found.to_dict, lambda: two_buffered_view(found, top))


def _source(path: str, overrides: list[str], profile: str | None) -> Source:
    """A scenario, or a profile of layers, told apart by what is in the file."""
    path = str(here_or_shipped(path))
    if Path(path).is_file():
        text = read_text(path)
        if holds_layers(text, path):
            if overrides or profile is not None:
                raise SpecError(f"{path} is a profile of layers; leave --set and --profile out, they change a scenario")
            return profile_from_text(text, path)
    return load_scenario(path, overrides, profile)
