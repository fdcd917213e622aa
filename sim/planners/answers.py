"""What is asked of PipeDream's planner: its plan of measured layers, and a play of that.

The planner says what the slowest stage or send allows. The play adds the order: how far each worker may run ahead, and
how long activations and gradients are on their way. It has no rule of its own; every way of a micro-batch through the
workers is a straight pipeline, and they take turns (`sim.planners.pipeline_plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from sim.arrays import RankFloats
from sim.engines import Program, Timeline, run
from sim.errors import ScheduleError
from sim.planners.layers import LayerProfile
from sim.planners.pipedream import plan_pipeline
from sim.planners.pipeline_plan import Level, PipelinePlan, build_replicated, noam
from sim.pricing.stages import StageSeconds
from sim.schedules import Order
from sim.schedules.passes import peak_in_flight, weight_versions
from sim.work.layers import Stage


@dataclass(frozen=True, slots=True)
class PlayedPlan:
    """A plan's steady state.

    period_s : from micro-batch to micro-batch. [s]
    busy : share of its time that each worker computes.
    versions, staleness, in_flight : of each worker: versions of its weights that it keeps, updates by which its
        gradients are late, micro-batches begun and not finished.
    """

    plan: PipelinePlan
    order: Order
    timeline: Timeline
    period_s: float
    busy: RankFloats
    versions: tuple[int, ...]
    staleness: tuple[int, ...]
    in_flight: tuple[int, ...]

    @property
    def over_plan(self) -> float:
        """Its period over the one that the planner promised."""
        return self.period_s / self.plan.period_s

    def to_dict(self) -> dict[str, object]:
        """Plain data with stable keys, for JSON."""
        return {
            "period_s": self.period_s,
            "over_plan": self.over_plan,
            "samples_per_s": self.plan.profile.microbatch_size / self.period_s,
            "busy": [float(share) for share in self.busy],
            "weight_versions": list(self.versions),
            "staleness": list(self.staleness),
            "in_flight": list(self.in_flight),
        }


def covering(plan: PipelinePlan) -> tuple[int, ...]:
    """Micro-batches in flight on a worker of each stage with which the slowest stage never waits.

    One more than cover all that is in flight on the next stage, and on the way there and back, at the plan's pace (own
    derivation): NOAM where numbers of workers divide each other and nothing is on the way, else more.
    """
    in_flight = [1]
    for stage, after in zip(plan.stages[-2::-1], plan.stages[:0:-1], strict=True):
        behind = in_flight[0] * after.replicas + 2.0 * stage.send_s / plan.period_s
        in_flight.insert(0, 1 + ceil(behind / stage.replicas - 1e-9))
    return tuple(in_flight)


def play_plan(plan: PipelinePlan, engine: str = "dag", in_flight: Sequence[int] | None = None) -> PlayedPlan:
    """Play a plan until it repeats.

    A send takes as long as its bytes at the level's bandwidth and keeps no worker busy; that sends over a cut also take
    turns on its link, the planner's own period says, which the play's is never below. What a stage's reduction takes
    longer than the compute it runs beside, its workers wait for at each update.

    in_flight : micro-batches in flight on a worker of each stage, at most. Default: PipeDream's.
    """
    order = build_replicated(plan.replicas, in_flight, fold=True)
    program = _program(plan, order)
    timeline = run(program, engine)
    period = max(timeline.step_time_s / order.copies, max(stage.send_period_s for stage in plan.stages))
    computed = [(stage.forward_s + stage.backward_s) / stage.replicas for stage in plan.stages]
    shown = build_replicated(plan.replicas, in_flight, rounds=2 * max(in_flight or noam(plan.replicas)))
    versions, staleness = weight_versions(shown)
    return PlayedPlan(
        plan,
        order,
        timeline,
        period,
        np.repeat(computed, plan.replicas) / period,
        tuple(versions.tolist()),
        tuple(staleness.tolist()),
        tuple(int(most) for most in peak_in_flight(shown)),
    )


def _program(plan: PipelinePlan, order: Order) -> Program:
    """The order with the plan's seconds: those of its stages on every way through the workers."""
    ways, stages = order.copies, plan.stages
    forward, backward = (
        np.tile([getattr(stage, name) for stage in stages], ways) for name in ("forward_s", "backward_s")
    )
    ahead = np.array([stage.send_s for stage in stages])
    back = np.concatenate([[0.0], ahead[:-1]])
    waits = [max(0.0, stage.replicas * stage.period_s - stage.forward_s - stage.backward_s) for stage in stages]
    costs = StageSeconds.of_compute(
        tuple(Stage(number, (), False, False) for number in range(len(forward))),
        order.num_ranks,
        forward,
        backward,
        send_forward_s=np.tile(ahead, ways),
        send_backward_s=np.tile(back, ways),
        reduce_s=np.repeat(waits, plan.replicas),
    )
    return Program(order, costs)


NEGLIGIBLE = 5e-4
"""Share of a period by which a play may be longer and is still called as planned."""


@dataclass(frozen=True, slots=True)
class PipeDreamAnswer:
    """PipeDream's plan and its play.

    played : None where the workers' turns repeat too late; `unplayed` says when.
    covered : its play with as many micro-batches in flight as keep the plan's pace, where PipeDream's own do not.
    """

    plan: PipelinePlan
    played: PlayedPlan | None
    covered: PlayedPlan | None
    unplayed: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain data with stable keys, for JSON."""
        found: dict[str, object] = {"planner": "pipedream", **self.plan.to_dict()}
        found["played"] = None if self.played is None else self.played.to_dict()
        if self.covered is not None:
            found["covered"] = self.covered.to_dict()
        return found


def ask_pipedream(
    profile: LayerProfile, levels: Sequence[Level], *, memory_bytes: float | None = None
) -> PipeDreamAnswer:
    """PipeDream's plan of measured layers, and its play.

    levels : from the innermost out.
    memory_bytes : of a worker. [bytes]
    """
    plan = plan_pipeline(profile, levels, memory_bytes=memory_bytes)
    try:
        played = play_plan(plan)
    except ScheduleError as error:
        return PipeDreamAnswer(plan, None, None, str(error))
    covered = play_plan(plan, in_flight=covering(plan)) if played.over_plan > 1 + NEGLIGIBLE else None
    return PipeDreamAnswer(plan, played, covered)
