"""What papers claim, in figures or of one plan over another: published beside predicted, each a row in YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from sim import Estimate, Scenario, build_scenario, estimate, load_scenario, simulate
from sim.commands.options import finite
from sim.costs.collectives import all_reduce, reduce_scatter, send
from sim.files import SCENARIOS
from sim.network.placement import Group, hops_of, place_group, send_share
from sim.pricing.cells import plans_of, send_seconds, sent_bytes
from sim.pricing.deal import HELD, params_of
from sim.pricing.layouts import cost_model, cut_of
from sim.reliability.storing import storing_of
from sim.specs.yaml12 import load_yaml
from sim.traffic.exchanges import step_collectives
from sim.work.layers import deal_stages

TABLES = Path(__file__).parent / "published" / "claims"
NAMES = ("papers", "mechanisms")
WITHIN = 0.1
"""How far off an answer may be where neither a claim nor its table says."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says, and what flopcast answers.

    published : the least and the most that the paper states, in `unit`; the same number where it states one.
    predicted : in `unit`.
    within : how far off these the answer may be: relative, or absolute where what is published is zero.
    short : why it is further off all the same; empty where it is not.
    printed : as the paper prints it, where that is no number or range.
    """

    paper: str
    title: str
    where: str
    unit: str
    published: tuple[float, float]
    predicted: float
    within: float
    short: str = ""
    note: str = ""
    printed: str = ""

    @property
    def off(self) -> float:
        """Predicted over the nearest published value − 1; where that is zero, what is predicted."""
        nearest = min(max(self.predicted, self.published[0]), self.published[1])
        return self.predicted / nearest - 1.0 if nearest else self.predicted

    @property
    def holds(self) -> bool:
        """The answer lies within what the claim allows, and not the other way round."""
        return abs(self.off) <= self.within and not self.turned

    @property
    def turned(self) -> bool:
        """The paper says faster where flopcast says slower, or the other way round."""
        return self.unit == "times" and all((value - 1.0) * (self.predicted - 1.0) < 0.0 for value in self.published)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "printed"}
        found: dict[str, Any] = finite({**fields, "off": self.off, "holds": self.holds, "turned": self.turned})
        return found


def claims(table: str = "papers", only: str = "") -> Iterator[Claim]:
    """Every claim of a shipped table, asked: `papers` or `mechanisms`; of papers whose titles hold a word."""
    data = load_yaml(TABLES / f"{table}.yaml")
    for paper in (each for each in data["papers"] if only.lower() in each["title"].lower()):
        for entry in paper["claims"]:
            stated = entry["published"] if isinstance(entry["published"], list) else [entry["published"]] * 2
            yield Claim(
                paper["title"],
                entry["title"],
                entry["where"],
                entry["unit"],
                (float(stated[0]), float(stated[1])),
                _asked(**entry["asks"]),
                float(entry.get("within", data.get("within", WITHIN))),
                **{name: entry.get(name, "") for name in ("short", "note", "printed")},
            )


Fields = Mapping[str, Any]
Changes = Fields | Sequence[Any]
"""Fields of a scenario by path, or whole sections; or several such sets, a later one before an earlier one."""


def _asked(
    base: Fields,
    of: str,
    changes: Changes = (),
    over: Fields | None = None,
    over_changes: Changes = (),
    times: float = 1.0,
    plus: float = 0.0,
) -> float:
    """A value `of` a base with its changes, over that of another base where there is one."""
    value = _value(of, estimate(_scenario(base, changes)))
    divisor = 1.0 if over is None else _value(of, estimate(_scenario(over, over_changes)))
    return value / divisor * times + plus


def _scenario(base: Fields, changes: Changes) -> Scenario:
    """A base, or a shipped file, with its changes laid over it."""
    flat = _flat(changes)
    fields = [f"{path}={value}" for path, value in flat.items() if "." in path]
    if "file" in base:
        return load_scenario(SCENARIOS / base["file"], fields)
    sections = {name: value for name, value in flat.items() if "." not in name}
    return build_scenario({**base, **sections}, fields, "a claim's scenario")


def _flat(changes: Changes) -> dict[str, Any]:
    """Changes as one mapping."""
    if isinstance(changes, Mapping):
        return dict(changes)
    return {path: value for each in changes for path, value in _flat(each).items()}


def _value(of: str, answer: Estimate) -> float:
    """What is asked of an estimate: one of VALUES, or `seconds of` or `share of` a part of its breakdown."""
    if of in VALUES:
        return VALUES[of](answer)
    measure, _, cause = of.partition(" of ")
    parts = {"seconds": answer.breakdown.seconds, "share": answer.breakdown.shares()}[measure]
    return float(parts[cause])


def _gathered(answer: Estimate) -> float:
    """Weights that a GPU gathers in a step. [bytes]"""
    found = step_collectives(answer.scenario)
    return sum(each.count * each.nbytes for each in found if each.name == "gather weights")


def _bus_bandwidth(answer: Estimate) -> float:
    """Bus bandwidth of an all-reduce of 1 GiB over the 8 GPUs of a node. [bytes/s]"""
    return 2 * 7 / 8 * 2.0**30 / float(all_reduce(2.0**30, Group(8, 8), cost_model(answer.scenario).fabric))


VALUES: dict[str, Callable[[Estimate], float]] = {
    "petaflops": lambda answer: answer.hardware_flop_per_s_per_gpu * answer.num_gpus / 1e15,
    "tflops": lambda answer: answer.hardware_flop_per_s_per_gpu / 1e12,
    "speed": lambda answer: 1.0 / answer.step_time_s,
    "tokens_per_gpu": lambda answer: answer.tokens_per_s / answer.num_gpus,
    "days": lambda answer: answer.scenario.training.tokens / answer.tokens_per_s / 86400.0,
    "step_s": lambda answer: answer.step_time_s,
    "shared_step_s": lambda answer: simulate(answer.scenario, contention=True).mean_s,
    "gradients_gb": lambda answer: max(use.gradients for use in answer.memory) / 1e9,
    "gathered_gb": lambda answer: _gathered(answer) / 1e9,
    "bus_gb_per_s": lambda answer: _bus_bandwidth(answer) / 1e9,
    "pipeline_cut_gb_per_s": lambda answer: pipeline_cut(answer.scenario).bytes_per_s / 1e9,
    "data_cut_tb_per_s": lambda answer: data_parallel_cut(answer.scenario).bytes_per_s / 1e12,
    "checkpoint_tb": lambda answer: storing_of(answer.scenario).checkpoint_bytes / 1e12,
    "save_s": lambda answer: storing_of(answer.scenario).write_s,
    "read_s": lambda answer: storing_of(answer.scenario).loads["shares"].read_s,
}
"""What may be asked of an estimate."""


def report(found: Sequence[Claim], width: int = 80) -> Iterator[str]:
    """Claims as a table of text, and below it why some fall short."""
    paper, room = "", max(20, width - 45)
    reasons = list(dict.fromkeys(claim.short for claim in found if claim.short))
    for claim in found:
        if claim.paper != paper:
            paper = claim.paper
            yield from ("", *wrap(paper, width), f"  {'':{room}} {'published':>10}   ours   off")
        off = f"{claim.off:+.0%}" if claim.published[1] else ""
        mark = f"[{reasons.index(claim.short) + 1}]" if claim.short else ""
        title, *rest = wrap(claim.title, room)
        stated = claim.printed or "-".join(f"{value:.4g}" for value in dict.fromkeys(claim.published))
        numbers = f"{stated:>10} {claim.predicted:6.3g} {off:>5}"
        yield f"  {title:{room}} {numbers} {claim.unit:13} {mark}".rstrip()
        yield from (f"    {line}" for line in rest)
        yield from wrap(claim.note, width, initial_indent="    ", subsequent_indent="    ")
    yield ""
    for number, words in enumerate(reasons, 1):
        yield from wrap(f"[{number}] {words}", width, subsequent_indent="    ")
    held, turned = (sum(getattr(claim, name) for claim in found) for name in ("holds", "turned"))
    yield ""
    others = f"; of the others {turned} come out the other way round" if held < len(found) else ""
    yield f"{held} of {len(found)} claims hold{others}"


@dataclass(frozen=True, slots=True)
class CutTraffic:
    """What crosses the middle of all groups of one kind: an effective bisection bandwidth.

    Papers that quote such a figure seldom define it. Here every group that talks (the ranks of a pipeline, each ring
    that sums gradients) is cut into halves, and what crosses the cuts is divided by the time the traffic takes by the
    cost model. The traffic's own time counts, not the step's: compute in between is not the network's.

    senders : GPUs that send across, each direction counted.
    nbytes : that cross in one exchange, both directions together. [bytes]
    bytes_per_s : while they do, both directions together. [bytes/s]
    """

    senders: int
    nbytes: float
    bytes_per_s: float


def pipeline_cut(scenario: Scenario, *, gathered: bool = True) -> CutTraffic:
    """Activations and their gradients between the two halves of all pipelines.

    The GPUs of the two middle ranks send at once: an activation forward and a gradient back, as in the steady state of
    1F1B. With scatter/gather or sequence parallelism each tensor-parallel rank sends its share, else all of it. With
    `gathered` the time goes on until the receivers have gathered over NVLink what was scattered, as Megatron-LM's
    timers do (NVIDIA/Megatron-LM:megatron/p2p_communication.py, 2021, `_communicate`); else until it has left the
    network.
    """
    plan = scenario.plan
    if plan.pp == 1:
        return CutTraffic(0, 0.0, 0.0)
    costs, cut = cost_model(scenario), cut_of(scenario)
    share, shared = sent_bytes(costs, cut), send_share(plan, scenario.cluster)
    crosses = bool(hops_of(plan, scenario.cluster).cross(plan.pp // 2 - 1, plan.pp // 2))
    charged = send_seconds(costs, cut, place_group("tp", plan, scenario.cluster), shared)[crosses]
    seconds = float(charged if gathered else send(share, crosses, costs.fabric, shared))
    senders = 2 * plan.tp * plan.num_replicas
    return CutTraffic(senders, senders * share, senders * share / seconds)


def data_parallel_cut(scenario: Scenario) -> CutTraffic:
    """Gradients between the two halves of every data-parallel group.

    A ring crosses a cut twice, once each way, and carries 2 (n−1)/n of the gradients over every hop of an all-reduce,
    half of that in a reduce-scatter (ZeRO). Groups of different pipeline ranks reduce at once, each at its own rate.
    Experts' gradients, summed over fewer GPUs, are left out.
    """
    plan, model = scenario.plan, scenario.model
    n = plan.num_replicas
    if n == 1:
        return CutTraffic(0, 0.0, 0.0)
    plans = plans_of(scenario)
    group = place_group("shards", plan, scenario.cluster)
    collective, passes = (all_reduce, 2) if plan.zero_stage == 0 else (reduce_scatter, 1)
    stages = deal_stages(model, plan)
    nbytes, rate = 0.0, 0.0
    for rank in range(plan.pp):
        part = sum(each.part for each in stages if each.index % plan.pp == rank)
        grads = params_of(np.array([part]), plans.layouts)[HELD][0].item() * scenario.stack.gradient_bytes
        crossing = 2 * plan.tp * passes * (n - 1) / n * grads
        nbytes += crossing
        rate += crossing / float(collective(grads, group, plans.costs.fabric))
    return CutTraffic(2 * plan.tp * plan.pp, nbytes, rate)
