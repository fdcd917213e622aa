"""What is asked of the planners: PipeDream's plan with its play, 2BW's plans beside the house's own times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sim.errors import ScheduleError, SpecError
from sim.estimate import Estimate, estimate
from sim.planners.layers import LayerProfile
from sim.planners.pipedream import DEFAULT_SYNC, plan_pipeline
from sim.planners.pipeline_plan import Level, PipelinePlan, levels_of
from sim.planners.scenarios import (
    PlayedPlan,
    confirm_two_buffered,
    covering,
    one_worker,
    play_plan,
    profile_of,
    straight_scenario,
)
from sim.planners.two_buffered import TwoBufferedPlans, plan_two_buffered
from sim.specs import Scenario

Source = LayerProfile | Scenario
"""What is planned: measured layers, or a scenario's own."""
NEGLIGIBLE = 5e-4
"""Share of a period by which a play may be longer and is still called as planned."""
MICROBATCHES = (1, 2, 4, 8, 16)
"""Micro-batches that 2BW's planner tries of a scenario."""


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
    plan = plan_pipeline(profile, _given(levels), sync=sync, replicated=replicated, memory_bytes=memory_bytes)
    answer = None
    if isinstance(source, Scenario) and len({*plan.replicas}) == 1:
        answer = _estimate(source, plan)
    try:
        played = play_plan(plan)
    except ScheduleError as error:
        return PipeDreamAnswer(plan, None, None, answer, str(error))
    covered = play_plan(plan, in_flight=covering(plan)) if played.over_plan > 1 + NEGLIGIBLE else None
    return PipeDreamAnswer(plan, played, covered, answer)


def _given(levels: Sequence[Level] | None) -> Sequence[Level]:
    if levels is None:
        raise SpecError(
            "a profile of layers says nothing of the machine; give --workers and --bandwidths, such as --workers 4x4 "
            "--bandwidths '10 Gbit/s, 12 GB/s'"
        )
    return levels


def _estimate(scenario: Scenario, plan: PipelinePlan) -> Estimate | None:
    """The house's own, where the batch can be dealt to so many replicas."""
    ends = [stage.last for stage in plan.stages]
    schedule = "pipedream" if len(ends) > 1 else "1f1b"
    try:
        return estimate(straight_scenario(scenario, plan.profile, ends, plan.replicas[0], schedule=schedule))
    except SpecError:
        return None


@dataclass(frozen=True, slots=True)
class TwoBufferedAnswer:
    """2BW's plans; and of a scenario, what the house's own model says of each.

    estimates : as `plans.plans`; None without a scenario.
    """

    plans: TwoBufferedPlans
    estimates: tuple[Estimate, ...] | None

    @property
    def own_best(self) -> int | None:
        """Place of the plan that is fastest by the house's own model, of those that fit by its memory."""
        if self.estimates is None:
            return None
        able = [(answer.step_time_s, place) for place, answer in enumerate(self.estimates) if answer.fits]
        return min(able)[1] if able else None

    @property
    def verdict(self) -> str:
        """Whether both models name the same plan, and why not."""
        place = self.own_best
        if self.estimates is None:
            return ""
        if place is None:
            return "by flopcast's own memory none of them fits"
        if place == 0:
            return "flopcast's own model has the same plan first"
        fitting = [answer.step_time_s for answer in self.estimates[:place] if answer.fits]
        if not fitting:
            return f"flopcast's own model has plan {place + 1} first: by its memory none before it fits"
        gain = min(fitting) / self.estimates[place].step_time_s - 1
        return f"flopcast's own model has plan {place + 1} first, {gain:.1%} faster than any before it that fits"

    def to_dict(self) -> dict[str, object]:
        """Plain data with stable keys, for JSON."""
        plans = [plan.to_dict() for plan in self.plans.plans]
        for plan, answer in zip(plans, self.estimates or (), strict=False):
            plan["estimate"] = {
                "step_time_s": answer.step_time_s,
                "fits": answer.fits,
                "memory_bytes": float(answer.largest.total),
            }
        return {"planner": "2bw", "tried": self.plans.tried, "plans": plans, "verdict": self.verdict}


def ask_two_buffered(
    source: Source,
    levels: Sequence[Level] | None = None,
    *,
    batch: int | None = None,
    microbatches: Sequence[int] | None = None,
    memory_bytes: float | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> TwoBufferedAnswer:
    """2BW's plans of measured layers, or of a scenario's with what the house's own model says of each.

    levels : from the innermost out. Default: of a scenario its own.
    batch : samples between two updates. Default: of a scenario its own.
    microbatches : to try, of a scenario; a profile has one. Default: MICROBATCHES that divide the batch.
    memory_bytes : of a worker. Default: of a scenario its GPU's. [bytes]
    progress : called with (estimates done, estimates in all).
    """
    if isinstance(source, LayerProfile):
        if batch is None or memory_bytes is None:
            raise SpecError(
                "2BW's planner needs the batch and a worker's memory, which a profile of layers does not say; give "
                "--batch and --memory"
            )
        if microbatches is not None and tuple(microbatches) != (source.microbatch_size,):
            raise SpecError(
                f"the profile was measured with micro-batches of {source.microbatch_size}; measure others to try them"
            )
        profiles = {source.microbatch_size: source}
        return TwoBufferedAnswer(plan_two_buffered(profiles, _given(levels), batch, memory_bytes), None)
    levels = levels or levels_of(source)
    batch = source.training.global_batch_size if batch is None else batch
    source = one_worker(source, microbatch_size=1)
    source = source.replace(training=source.training.replace(global_batch_size=batch))
    sizes = [size for size in (microbatches or MICROBATCHES) if batch % size == 0]
    profiles = {size: profile_of(source, microbatch_size=size, recompute="none") for size in sizes}
    memory = source.cluster.gpu.memory_bytes if memory_bytes is None else memory_bytes
    plans = plan_two_buffered(profiles, levels, batch, memory)
    estimates = []
    for number, plan in enumerate(plans.plans):
        estimates.append(confirm_two_buffered(source, profiles[plan.microbatch_size], plan))
        if progress is not None:
            progress(number + 1, len(plans.plans))
    return TwoBufferedAnswer(plans, tuple(estimates))
