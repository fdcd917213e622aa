"""What is asked of the planner: its plan, a play of that, and what the house itself estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.errors import ScheduleError, SpecError
from sim.estimate import Estimate, estimate
from sim.planners.layers import LayerProfile
from sim.planners.pipedream import DEFAULT_SYNC, plan_pipeline
from sim.planners.pipeline_plan import Level, PipelinePlan, levels_of
from sim.planners.scenarios import PlayedPlan, covering, play_plan, profile_of, straight_scenario
from sim.specs import Scenario

Source = LayerProfile | Scenario
"""What is planned: measured layers, or a scenario's own."""
NEGLIGIBLE = 5e-4
"""Share of a period by which a play may be longer and is still called as planned."""


@dataclass(frozen=True, slots=True)
class PipeDreamAnswer:
    """PipeDream's plan and its play.

    played : None where the workers' turns repeat too late; `unplayed` says when.
    covered : its play with as many micro-batches in flight as keep the plan's pace, where PipeDream's own do not.
    estimate : the house's, of a scenario whose stages have as many workers each.
    """

    plan: PipelinePlan
    played: PlayedPlan | None
    covered: PlayedPlan | None
    estimate: Estimate | None
    unplayed: str = ""

    @property
    def layout(self) -> str:
        """The stages as `plan.pipeline_layout` takes them; empty where the house has no such plan."""
        return "" if self.estimate is None else self.estimate.scenario.plan.pipeline_layout

    def to_dict(self) -> dict[str, object]:
        """Plain data with stable keys, for JSON."""
        found: dict[str, object] = {"planner": "pipedream", **self.plan.to_dict()}
        found["played"] = None if self.played is None else self.played.to_dict()
        if self.covered is not None:
            found["covered"] = self.covered.to_dict()
        if self.estimate is not None:
            found["pipeline_layout"] = self.layout
            found["estimate"] = {"step_time_s": self.estimate.step_time_s, "fits": self.estimate.fits}
        return found


def ask_pipedream(
    source: Source,
    levels: Sequence[Level] | None = None,
    *,
    sync: str = DEFAULT_SYNC,
    replicated: bool = True,
    memory_bytes: float | None = None,
) -> PipeDreamAnswer:
    """PipeDream's plan of measured layers, or of a scenario's, and its play.

    levels : from the innermost out. Default: of a scenario its own.
    memory_bytes : of a worker. Default: of a scenario its GPU's, where the machine has one level. [bytes]
    """
    if isinstance(source, LayerProfile):
        profile = source
    else:
        profile = profile_of(source)
        levels = levels or levels_of(source)
        if memory_bytes is None and len(levels) == 1:
            memory_bytes = source.cluster.gpu.memory_bytes
    if levels is None:
        raise SpecError(
            "a profile of layers says nothing of the machine; give --workers and --bandwidths, such as --workers 4x4 "
            "--bandwidths '10 Gbit/s, 12 GB/s'"
        )
    plan = plan_pipeline(profile, levels, sync=sync, replicated=replicated, memory_bytes=memory_bytes)
    answer = None
    if isinstance(source, Scenario) and len({*plan.replicas}) == 1:
        answer = _estimate(source, plan)
    try:
        played = play_plan(plan)
    except ScheduleError as error:
        return PipeDreamAnswer(plan, None, None, answer, str(error))
    covered = play_plan(plan, in_flight=covering(plan)) if played.over_plan > 1 + NEGLIGIBLE else None
    return PipeDreamAnswer(plan, played, covered, answer)


def _estimate(scenario: Scenario, plan: PipelinePlan) -> Estimate | None:
    """The house's own, where the batch can be dealt to so many replicas."""
    ends = [stage.last for stage in plan.stages]
    schedule = "pipedream" if len(ends) > 1 else "1f1b"
    try:
        return estimate(straight_scenario(scenario, plan.profile, ends, plan.replicas[0], schedule=schedule))
    except SpecError:
        return None
