"""Whether a measured run is as fast as its scenario should be, and if not, where to look first.

What may be behind a difference is tried, one change of the scenario at a time, each estimated anew; nothing is fitted.
How likely each is follows from how far published runs were off (`sim.uncertainty`). Stalls show themselves in the run's
own step times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.errors import FlopcastError, SpecError
from sim.estimate import Estimate, estimate
from sim.specs import Scenario
from sim.specs.framework_plans import value_of
from sim.specs.yaml12 import load_yaml
from sim.uncertainty import log_likelihood
from sim.units import show, show_time
from sim.work.sums import model_flop

TABLE = Path(__file__).parent / "presets" / "suspects.yaml"
WARM_UP = 1.2
"""Times the median from which values at the beginning are warm-up; the first of several always is."""
INTERRUPTED = 2.0
"""Times the median from which a value holds more than a step: an evaluation, a checkpoint, a restart."""
FEW = 0.1
"""Share of values up to which such are left out; where there are more, the steps themselves stall."""
UNEVEN = 1.1
"""Times the median that a tenth of the values exceed where steps stall."""
LEAST = 0.05
"""Share of a difference that a cause explains at least."""
CAUSES_SHOWN = 3


class Measured(NamedTuple):
    """Step times of a log, in short.

    seconds : their median. [s]
    fast_s, slow_s : which a tenth of them do not exceed, and which a tenth do. [s]
    values : how many these are of.
    warm_up, interrupted : how many more were left out, at the beginning and elsewhere.
    every : distance of slow values that come again and again, in logged values; 0 where none do.
    """

    seconds: float
    fast_s: float
    slow_s: float
    values: int
    warm_up: int
    interrupted: int
    every: int

    @property
    def stalls(self) -> bool:
        """Whether the steps are so uneven that something holds up some of them."""
        return self.slow_s > UNEVEN * self.seconds or self.seconds > UNEVEN * self.fast_s


def measure(seconds: Sequence[float]) -> Measured:
    """The typical step of a run.

    seconds : Step times in the order of the log. [s]
    """
    times = np.asarray(seconds, dtype=float)
    warm_up, half = int(len(times) > 2), len(times) // 2
    while warm_up < half and times[warm_up] > WARM_UP * np.median(times[warm_up + 1 :]):
        warm_up += 1
    times = times[warm_up:]
    typical = float(np.median(times))
    long = times > INTERRUPTED * typical
    kept = times[~long] if long.mean() <= FEW else times
    fast, middle, slow = (float(each) for each in np.quantile(kept, (0.1, 0.5, 0.9)))
    gaps = np.diff(np.flatnonzero(times > (1 + UNEVEN) / 2 * typical))
    every = int(np.median(gaps)) if len(gaps) > 1 else 0
    regular = every > 1 and np.mean(gaps == every) > 0.8
    return Measured(middle, fast, slow, len(kept), warm_up, len(times) - len(kept), every if regular else 0)


class Explanation(NamedTuple):
    """What may be behind measured step times, and how likely it is once they are known.

    name : what it is, in a few words; empty where everything is as stated.
    look : where to look for it.
    changes : "field=value" of the scenarios under which they were estimated; none of stalls, which the log shows.
    step_times_s : of each scenario under the changes; of stalls, of the log's fast steps. [s]
    """

    name: str
    look: str
    changes: tuple[str, ...]
    step_times_s: tuple[float, ...]
    probability: float


@dataclass(frozen=True, slots=True, repr=False)
class Check:
    """A measured run beside its estimate.

    causes : of a run outside the interval, what may be behind it, the likeliest first.
    as_stated : probability that nothing is, and the run differs from the estimate as such runs do.
    """

    measured: Measured
    answer: Estimate
    causes: tuple[Explanation, ...]
    as_stated: float = 1.0

    def __repr__(self) -> str:
        return f"<Check {self.answer.scenario.name}: {self.verdict}, {show_time(self.measured.seconds)} a step>"

    @property
    def verdict(self) -> str:
        """normal, slow or fast: where the run lies by `normal_s`."""
        low, high = self.normal_s
        return "slow" if self.measured.seconds > high else "fast" if self.measured.seconds < low else "normal"

    @property
    def normal_s(self) -> tuple[float, float]:
        """Step times that are normal: the 90 % interval, no further up than it reaches down. What other people's
        runs lose beyond that is what to look for. [s]
        """
        low, high = self.answer.step_time_interval_s
        return low, min(high, self.answer.step_time_s**2 / low)

    def explained(self, cause: Explanation) -> float:
        """Share of the difference between the run and the estimate that a cause accounts for."""
        (step_time_s,), expected = cause.step_times_s, self.answer.step_time_s
        if not cause.changes:  # stalls take away what the log's fast steps lack
            return (self.measured.seconds - step_time_s) / (self.measured.seconds - expected)
        return (step_time_s - expected) / (self.measured.seconds - expected)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.answer.scenario.name,
            "verdict": self.verdict,
            "measured_s": self.measured.seconds,
            "expected_s": self.answer.step_time_s,
            "interval_s": list(self.answer.step_time_interval_s),
            "ratio": self.measured.seconds / self.answer.step_time_s,
            "log": self.measured._asdict(),
            "causes": [
                {
                    "cause": each.name,
                    "look": each.look,
                    "set": list(each.changes),
                    "step_time_s": each.step_times_s[0],
                    "explained": self.explained(each),
                    "probability": each.probability,
                }
                for each in self.causes
            ],
            "as_stated": self.as_stated,
            "interval_basis": self.answer.interval_basis,
            "assumptions": list(self.answer.assumptions),
        }


def check(build: Callable[[Sequence[str]], Scenario], measured: Measured) -> Check:
    """Lay a measured run beside its estimate.

    build : the scenario under changes, "field=value".

    Raises SpecError: the GPUs would have computed more than they can.
    """
    scenario = build(())
    check_possible(scenario, measured.seconds)
    found = Check(measured, estimate(scenario), ())
    if found.verdict == "normal":
        return found
    behind = explanations([build], [measured.seconds], measured if found.verdict == "slow" else None)
    causes = [each for each in behind if each.name and found.explained(each) >= LEAST]
    as_stated = sum(each.probability for each in behind if not each.name)
    return Check(measured, found.answer, tuple(causes[:CAUSES_SHOWN]), as_stated)


AS_STATED = 0.6
"""How likely scenarios are to be as they are stated before anything was measured; the suspects share the
rest. This is judged: no table of runs says it."""


def explanations(
    builds: Sequence[Callable[[Sequence[str]], Scenario]], seconds: Sequence[float], logged: Measured | None = None
) -> list[Explanation]:
    """What may be behind the measured step times of some scenarios together, the likeliest first.

    Each suspect is one change of all scenarios, estimated anew. Its likelihood is that of the errors which it leaves
    (`sim.uncertainty.log_likelihood`), so that a change which explains all runs alike wins over one that explains one.

    builds : Each scenario under changes, "field=value".
    seconds : Their measured step times. [s]
    logged : Of the log of a single scenario that is slow: where its steps are uneven, stalls are as likely as nothing
        else.
    """
    stated = [estimate(build(())) for build in builds]
    slower = sum(log(time / answer.step_time_s) for time, answer in zip(seconds, stated, strict=True)) > 0.0
    table = load_yaml(TABLE)
    suspects = table["slower" if slower else "faster"]
    found = [_weighed("", "", (), stated, seconds, AS_STATED)]
    for suspect in suspects:
        tried = []
        for changes in _alternatives(suspect, table["switches"], stated[0].scenario):
            try:
                answers = [estimate(build(changes)) for build in builds]
            except FlopcastError:  # the framework, the GPU or the plan has no such thing
                continue
            if any(old.fits and not new.fits for new, old in zip(answers, stated, strict=True)):
                continue  # the run did fit
            moved = [log(new.step_time_s / old.step_time_s) for new, old in zip(answers, stated, strict=True)]
            if (sum(moved) if slower else -sum(moved)) > TOLD:
                prior = (1.0 - AS_STATED) / len(suspects)
                tried.append(_weighed(suspect["name"], suspect["look"], changes, answers, seconds, prior))
        found += [max(tried, key=lambda each: each.probability)] if tried else []
    if logged is not None and logged.stalls:
        fast = _weighed("stalls", table["stalls"], (), stated, [logged.fast_s], AS_STATED)
        found.append(fast._replace(step_times_s=(logged.fast_s,)))
    whole = sum(each.probability for each in found)
    return sorted((e._replace(probability=e.probability / whole) for e in found), key=lambda e: -e.probability)


TOLD = 0.01
"""Change of the step times' logarithms, summed, below which a suspect cannot be told from scenarios as stated."""


def _weighed(
    name: str, look: str, changes: tuple[str, ...], answers: Sequence[Estimate], seconds: Sequence[float], prior: float
) -> Explanation:
    """An explanation with its prior times its likelihood, not yet a probability."""
    measured = [
        answer.interval.doubt._replace(log_error=log(time / answer.step_time_s))
        for time, answer in zip(seconds, answers, strict=True)
    ]
    times = tuple(answer.step_time_s for answer in answers)
    return Explanation(name, look, changes, times, prior * exp(log_likelihood(measured)))


def check_possible(scenario: Scenario, seconds: float) -> None:
    """Refuse what is no step time, and one in which the GPUs would have computed more than they can."""
    if not 1e-6 <= seconds <= 1e7:
        raise SpecError(f"{seconds:g} s is no step time: give 1 us to 1e7 s, such as '12.3 s'")
    gpus, training = scenario.plan.num_gpus, scenario.training
    rate = model_flop(scenario.model, training) / seconds / gpus
    peak = scenario.cluster.gpu.peak(training.peak_precision)
    if rate > peak:
        raise SpecError(
            f"{show_time(seconds)} a step cannot be: {training.tokens_per_step:,} tokens of {scenario.model.name} on "
            f"{gpus:,} GPUs would be {show(rate, 'FLOP/s')} a GPU, and the peak of one {scenario.cluster.gpu.name} is "
            f"{show(peak, 'FLOP/s')} in {training.peak_precision}. Either the log counts micro-batches as steps, or "
            "tokens or GPUs are stated wrongly: look at training.global_batch_size, training.sequence_length, "
            "training.precision and the plan's degrees"
        )


def _alternatives(
    suspect: Mapping[str, Any], of_stack: Mapping[str, Mapping[str, str]], scenario: Scenario
) -> list[tuple[str, ...]]:
    """List the changes to try one at a time: those of the table, or of the scenario's own values.

    of_stack : by kind the switches of the stack, each with the condition under which it can matter.
    """
    whole = scenario.cluster.inter_node_bandwidth_bytes_per_s * 8e-9
    found = [tuple(changes) for changes in suspect.get("changes", ())]
    found += [(f"cluster.inter_node_bandwidth={whole * share:g}Gbit/s",) for share in suspect.get("network", ())]
    for kind, switches in of_stack.items():
        if kind in suspect:
            there = [name for name, condition in switches.items() if value_of(condition, {"always": True}, scenario)]
            changed = [name for name in there if getattr(scenario.stack, name) != suspect[kind]]
            found.append(tuple(f"stack.{name}={str(suspect[kind]).lower()}" for name in changed))
    return found
