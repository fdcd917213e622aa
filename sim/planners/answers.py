"""What is asked of PipeDream's planner: its plan of measured layers or of a scenario's own, and a play of that.

The planner says what the slowest stage or send allows. The play adds the order: how far each worker may run ahead, and
how long activations and gradients are on their way. It has no rule of its own; every way of a micro-batch through the
workers is a straight pipeline, and they take turns (`sim.planners.pipeline_plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from sim.arrays import RankFloats
from sim.engines import Program, Timeline, run
from sim.errors import ScheduleError, SpecError
from sim.planners.layers import LayerProfile
from sim.planners.pipedream import plan_pipeline
from sim.planners.pipeline_plan import Level, PipelinePlan, build_replicated, levels_of, noam
from sim.pricing.cells import plans_of, sent_bytes
from sim.pricing.deal import HELD, MOMENTS, TRAINED, block_params
from sim.pricing.layouts import cut_of
from sim.pricing.stages import StageSeconds
from sim.schedules import Order
from sim.schedules.passes import peak_in_flight, weight_versions
from sim.specs import Scenario
from sim.work.layers import EMBEDDING, FIRST_KIND, HEAD, Stage
from sim.work.optimizer import GRADIENT_WIDTH, state_bytes


def one_worker(scenario: Scenario, **changes: Any) -> Scenario:
    """The scenario on one worker, which holds all layers: a GPU, or a tensor- and context-parallel group of them.

    **changes : other fields of its plan.
    """
    plan = scenario.plan
    if plan.ep > 1:
        raise SpecError(
            f"plan.ep = {plan.ep} deals experts over replicas, of which each stage may have another number; set "
            "plan.ep to 1, or give a profile of the layers"
        )
    if plan.zero_stage:
        raise SpecError(
            f"plan.zero_stage = {plan.zero_stage} shards state over replicas, and PipeDream's are whole; set it to 0"
        )
    alone = {"pp": 1, "dp": 1, "num_chunks": 1, "schedule": "1f1b", "pipeline_layout": "", "uneven_layers": False}
    return scenario.replace(plan=plan.replace(**alone, **changes))


def profile_of(scenario: Scenario, **changes: Any) -> LayerProfile:
    """What a scenario's blocks (embedding, layers, multi-token prediction, head) take and keep of one micro-plans.

    Seconds and bytes are those that an estimate puts together, of one GPU of a worker.

    **changes : of its plan: the micro-batch, recomputation.
    """
    scenario = one_worker(scenario, **changes)
    plans, model, training = plans_of(scenario), scenario.model, scenario.training
    forward, backward = (table[:, 0, 0, 0] for table in plans.prices.total_s[:2])
    kept = plans.prices.activation_bytes[:, 0, 0]
    held = block_params(*plans.layouts.holds)[..., 0]
    of_blocks = np.stack([held[HELD].sum(axis=0), held[TRAINED].sum(axis=0), held[MOMENTS]], axis=1).tolist()
    width = GRADIENT_WIDTH[scenario.stack.gradient_precision]
    output = float(np.asarray(sent_bytes(plans.costs, cut_of(scenario))))
    logits = float(plans.prices.logits_bytes[0, 0])
    kinds = [FIRST_KIND + model.layer_kinds.index(kind) for kind in model.kind_of_layer]
    blocks = [("embedding", EMBEDDING)]
    blocks += [(f"layer {number}", kind) for number, kind in enumerate(kinds)]
    blocks += [(f"prediction {number}", len(forward) - 1) for number in range(model.num_mtp_layers)]
    blocks.append(("head", HEAD))
    layers = []
    for name, block in blocks:
        total, trained, moments = of_blocks[block]
        state = float(state_bytes(trained, moments, training, scenario.stack, scenario.plan.optimizer_offload))
        layers.append(
            {
                "name": name,
                "forward_s": float(forward[block]),
                "backward_s": float(backward[block]),
                "output_bytes": output,
                "weights_bytes": total * training.activation_bytes,
                "gradients_bytes": trained * width,
                "state_bytes": state + trained * width,
                "kept_bytes": float(kept[block]) + (logits if block == HEAD else 0.0),
            }
        )
    return LayerProfile.read(
        {
            "name": scenario.name,
            "source": f"priced with profile {scenario.profile.name}",
            "microbatch_size": scenario.plan.microbatch_size,
            "layers": layers,
        },
        "profile",
    )


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


Source = LayerProfile | Scenario
"""What is planned: measured layers, or a scenario's own."""
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
    source: Source,
    levels: Sequence[Level] | None = None,
    *,
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
    plan = plan_pipeline(profile, levels, memory_bytes=memory_bytes)
    try:
        played = play_plan(plan)
    except ScheduleError as error:
        return PipeDreamAnswer(plan, None, None, str(error))
    covered = play_plan(plan, in_flight=covering(plan)) if played.over_plan > 1 + NEGLIGIBLE else None
    return PipeDreamAnswer(plan, played, covered)
