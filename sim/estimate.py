"""The one-page story of the program: how long does one training step take, and why?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sim.assumptions import OpenFact, memory_remedies, open_facts, padding_advice, stated_assumptions
from sim.breakdown import CAUSES, Breakdown, break_down
from sim.engines import Timeline, run
from sim.engines.order_facts import facts_of
from sim.engines.program import price_order, program_of
from sim.errors import InfeasiblePlan, SpecError
from sim.notebook import NotebookDisplay
from sim.pricing.cells import Plans, plans_of
from sim.pricing.deal import Deal
from sim.pricing.layouts import switch_shares
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import params_of_ranks
from sim.schedules import Order
from sim.specs import Scenario, framework_plans
from sim.specs.loading import as_scenario
from sim.uncertainty import Interval, grade_of, interval_of
from sim.units import show, show_time
from sim.work.memory import MemoryUse, by_rank
from sim.work.sums import active_params, causal_flop, hardware_flop, model_flop, total_params

VISIBLE = 5e-4
"""Share of a step from which on what switches cost is told."""
_SIZES = ("engine", "num_gpus", "params", "active_params", "num_microbatches", "step_time_s")
_RATES = ("tokens_per_s", "model_flop_per_s_per_gpu", "hardware_flop_per_s_per_gpu", "total_flop_per_s")
_SHARES = ("mfu", "mfu_causal", "hfu", "bubble_fraction")
"""Numbers of an estimate that its plain data have under their own names."""


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(NotebookDisplay):
    """How fast a scenario trains, and why.

    step_time_s : one optimizer step. [s]
    params : of the model.
    memory : peak use of one GPU of each pipeline rank. [bytes]
    memory_available_bytes : of the GPU. [bytes]
    stated : what was guessed, allowed for or extrapolated.
    """

    scenario: Scenario
    engine: str
    step_time_s: float
    params: int
    num_microbatches: int
    breakdown: Breakdown
    memory: tuple[MemoryUse, ...]
    memory_available_bytes: float
    timeline: Timeline
    stated: tuple[str, ...]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was guessed, allowed for or extrapolated, after what the framework cannot run of the plan."""
        return (*framework_plans.assumed(self.scenario), *self._of_switches(), *self.stated)

    def _of_switches(self) -> tuple[str, ...]:
        """What switches leave of the network cards where it is not all, and what that adds to the step."""
        cluster = self.scenario.cluster
        if cluster.network is None:
            return ()
        if not (shares := switch_shares(plans_of(self.scenario).layouts)):
            tight = any(level.oversubscription > 1.0 for level in cluster.network.levels.values())
            return ("oversubscribed switches cost this plan nothing: few cards send through them at once",) * tight
        said = f"when all groups communicate at once, switches leave this share of each network card: {shares}"
        try:
            free = self.scenario.replace(cluster=cluster.replace(network=cluster.network.unblocked))
            more = self.step_time_s - _step_time(free, self.engine)
        except SpecError:  # their ports do not suffice for as many cables up as down
            return (said,)
        if more < VISIBLE * self.step_time_s:
            return (f"{said}. It costs nothing visible, as compute hides these messages",)
        return (f"{said}. Without that a step would take {show_time(more)} ({more / self.step_time_s:.1%}) less",)

    def __repr__(self) -> str:
        """Show the estimate in one line, as the fields hold every action of the step."""
        return (
            f"<Estimate {self.scenario.name}: {show_time(self.step_time_s)} a step, "
            f"{show(self.total_flop_per_s, 'FLOP/s')}, {self.hfu:.1%} of peak{'' if self.fits else ', does not fit'}>"
        )

    @property
    def num_gpus(self) -> int:
        """GPUs the plan uses."""
        return self.scenario.plan.num_gpus

    @property
    def active_params(self) -> int:
        """Parameters used per token (active parameters): all but the experts that it is not sent to."""
        return active_params(self.scenario.model)

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second over the whole job."""
        return self.scenario.training.tokens_per_step / self.step_time_s

    @property
    def interval(self) -> Interval:
        """The 90 % interval of the step time as factors, from how far the parts of steps were off in published runs."""
        return interval_of(self.scenario, self.breakdown.shares())

    @property
    def interval_basis(self) -> str:
        """What the interval rests on, and what would narrow it."""
        return self._basis(self.open_facts)

    def _basis(self, facts: tuple[OpenFact, ...]) -> str:
        words = "".join(f" {str(fact)[0].upper()}{str(fact)[1:]}." for fact in facts[:1])
        return self.interval.basis + words

    @property
    def open_facts(self) -> tuple[OpenFact, ...]:
        """What the description leaves open of an unknown framework, those facts first that move the step most."""
        return open_facts(self.scenario, self.step_time_s, partial(_step_time, engine=self.engine))

    @property
    def grade(self) -> str:
        """How well the step time is known, in a word of `sim.uncertainty.GRADES`."""
        return grade_of(self.scenario, self.extrapolated)[0]

    @property
    def would_raise(self) -> str:
        """The one fact that would raise the grade; empty where it is the best."""
        return grade_of(self.scenario, self.extrapolated)[1]

    @property
    def extrapolated(self) -> bool:
        """Whether something lies outside what its profile was fitted on."""
        return any("extrapolated" in note for note in self.stated)

    @property
    def step_time_interval_s(self) -> tuple[float, float]:
        """90 % interval of the step time. [s]"""
        low, high = self.interval.factors
        return self.step_time_s * low, self.step_time_s * high

    @property
    def model_flop_per_s_per_gpu(self) -> float:
        """Model FLOPs (recomputation not counted, attention in full) a second and GPU. [FLOP/s]"""
        return model_flop(self.scenario.model, self.scenario.training) / self.step_time_s / self.num_gpus

    @property
    def hardware_flop_per_s_per_gpu(self) -> float:
        """Model FLOPs and recomputed ones a second and GPU: what Megatron-LM's papers print. [FLOP/s]"""
        scenario = self.scenario
        return hardware_flop(scenario.model, scenario.training, scenario.plan) / self.step_time_s / self.num_gpus

    @property
    def total_flop_per_s(self) -> float:
        """Hardware FLOPs a second over all GPUs. [FLOP/s]"""
        return self.hardware_flop_per_s_per_gpu * self.num_gpus

    @property
    def peak_flop_per_s(self) -> float:
        """Dense peak of one GPU at the training precision. [FLOP/s]"""
        return self.scenario.cluster.gpu.peak(self.scenario.training.peak_precision)

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation: model FLOP/s over peak."""
        return self.model_flop_per_s_per_gpu / self.peak_flop_per_s

    @property
    def mfu_causal(self) -> float:
        """MFU with half of the scores and values, which causal attention needs: what newer frameworks print."""
        flop = causal_flop(self.scenario.model, self.scenario.training)
        return flop / self.step_time_s / self.num_gpus / self.peak_flop_per_s

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilisation: with recomputed FLOPs."""
        return self.hardware_flop_per_s_per_gpu / self.peak_flop_per_s

    @property
    def bubble_fraction(self) -> float:
        """Share of the step that the average GPU waits for the pipeline, for fill and drain and for slower ranks."""
        seconds = self.breakdown.seconds
        return (seconds["pipeline_bubble"] + seconds["stage_imbalance"]) / self.step_time_s

    @property
    def fits(self) -> bool:
        """Whether every rank fits in memory."""
        return bool(self.largest.total <= self.memory_available_bytes)

    @property
    def largest(self) -> MemoryUse:
        """The fullest rank's memory."""
        return max(self.memory, key=lambda use: use.total)

    @property
    def largest_part(self) -> tuple[str, float]:
        """What the fullest rank's memory holds most of, and how much. [bytes]"""
        use = self.largest.to_dict()
        del use["total"]
        return max(use.items(), key=lambda item: item[1])

    @property
    def need(self) -> str:
        """Memory that the fullest rank needs, of how much there is, and its largest part, in words."""
        rank, (part, amount) = self.memory.index(self.largest), self.largest_part
        return (
            f"pipeline rank {rank} needs {show(self.largest.total, 'B')} of the "
            f"{show(self.memory_available_bytes, 'B')} of one {self.scenario.cluster.gpu.name}; the largest part is "
            f"{part.replace('_', ' ')} ({show(amount, 'B')})"
        )

    @property
    def training_time_s(self) -> float | None:
        """Time for the token budget, without failures or checkpoints; None without a budget. [s]"""
        tokens = self.scenario.training.tokens
        return None if tokens is None else tokens / self.tokens_per_s

    def require_fit(self) -> Estimate:
        """Return the estimate itself if it fits in memory."""
        if self.fits:
            return self
        remedies = memory_remedies(self.scenario, self.largest_part[0], self.largest.total, estimate)
        raise InfeasiblePlan(f"the plan does not fit: {self.need}. What would help: {', or '.join(remedies)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON; the keys are in docs/answers.md."""
        scenario, facts = self.scenario, self.open_facts
        days = None if self.training_time_s is None else self.training_time_s / 86400
        return {
            "scenario": scenario.name,
            **{name: getattr(self, name) for name in _SIZES},
            "step_time_interval_s": list(self.step_time_interval_s),
            **{name: getattr(self, name) for name in _RATES},
            "peak_flop_per_s_per_gpu": self.peak_flop_per_s,
            **{name: getattr(self, name) for name in _SHARES},
            "training_days": days,
            "fits": self.fits,
            "memory": {
                "available_bytes": self.memory_available_bytes,
                "largest_bytes": self.largest.total,
                "ranks": [use.to_dict() for use in self.memory],
            },
            "breakdown": dict(self.breakdown.seconds),
            "profile": scenario.profile.name,
            "stack": scenario.stack.name,
            "framework": scenario.stack.framework or None,
            "framework_version": scenario.stack.version or None,
            "plan": scenario.plan.model_dump(mode="json"),
            "grade": self.grade,
            "would_raise": self.would_raise or None,
            "interval_basis": self._basis(facts),
            "interval_parts": self.interval.parts,
            "open_facts": [fact._asdict() for fact in facts],
            "assumptions": list(self.assumptions),
        }

    def to_frame(self) -> Any:
        """The step by cause as a pandas table: seconds, share, and what the cause means."""
        import pandas as pd

        shares = self.breakdown.shares()
        rows = {cause: (seconds, shares[cause], CAUSES[cause]) for cause, seconds in self.breakdown.seconds.items()}
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=["seconds", "share", "meaning"])
        return frame.rename_axis("cause")


def estimate(scenario: Scenario | Path | str, engine: str = "dag") -> Estimate:
    """Predict one training step, whether or not it fits in memory; `require_fit` insists.

    scenario : model, cluster, plan, training, stack and profile; or the file that has them.
    engine : "dag" (exact longest path) or "des" (discrete events).

    Raises ScheduleError: the schedule does not exist or cannot take these sizes. SpecError: no plan, or unknown engine.
    """
    scenario = as_scenario(scenario)
    scenario.require_plan()
    plans = plans_of(scenario)
    order, costs, deal = price_order(scenario, plans)
    program = program_of(scenario, order, costs)
    timeline = run(program, engine)
    unaligned = tuple(padding_advice(scenario, timeline.step_time_s, partial(_step_time, engine=engine)))
    return Estimate(
        scenario=scenario,
        engine=engine,
        step_time_s=timeline.step_time_s,
        params=total_params(scenario.model),
        num_microbatches=scenario.num_microbatches,
        breakdown=break_down(timeline),
        memory=_memory(plans, order, deal),
        memory_available_bytes=scenario.cluster.gpu.usable_bytes,
        timeline=timeline,
        stated=(*unaligned, *stated_assumptions(plans, scenario, costs.notes)),
    )


def _step_time(scenario: Scenario, engine: str) -> float:
    """Time of one training step, without anything that explains it.  [s]"""
    order, costs, _ = price_order(scenario, plans_of(scenario))
    return run(program_of(scenario, order, costs), engine).step_time_s


def _memory(plans: Plans, order: Order, deal: Deal) -> tuple[MemoryUse, ...]:
    """Peak memory of every rank: activations as they come and go in the schedule's order."""
    facts = facts_of(order, deal.kind_of_stage)
    peaks = (facts.in_flight @ stage_bytes(plans, deal.stage_kinds)[:, 0]).max(axis=1)
    held = params_of_ranks(plans, deal)
    return by_rank(peak_memory(plans, held, peaks, facts.logits, facts.versions), order.num_ranks)
