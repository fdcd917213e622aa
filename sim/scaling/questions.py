"""Questions in users' words: a model, GPUs and tokens become a scenario, and what nobody said becomes an assumption."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count, dropwhile, takewhile
from math import log
from typing import Any, ClassVar

from sim.errors import InfeasiblePlan, SpecError, require_positive
from sim.estimate import Estimate, estimate
from sim.scaling.loss_laws import published
from sim.scaling.run import Terms, Training, TrainingRun, train
from sim.search import SearchResult, search
from sim.search.assumed import memory_of, proof_of
from sim.search.candidate import facts_of
from sim.search.confirm import nothing_fits
from sim.search.fields import as_fixed
from sim.search.room import DEFAULT as ROOM
from sim.search.space import Progress
from sim.specs import ClusterSpec, GpuSpec, ModelSpec, Scenario, build_scenario
from sim.specs.frameworks import DEFAULT, find_framework
from sim.specs.loading import resolve
from sim.specs.machines import machine_of, nodes_for
from sim.specs.presets import preset_names
from sim.units import parse_count, parse_whole, show
from sim.work.sums import total_params

LONGEST = 8192
"""Tokens a sequence where nothing is said: most of Llama 3's pre-training (arXiv:2407.21783, section 3.4.1)."""
DOUBLINGS = 6
"""Doublings of the GPUs up to which others are tried where no plan fits."""
TOKENS = 1e12
"""Tokens of a run where machines are compared and nobody says how many."""


def length_of(model: ModelSpec, length: int | None, most: int = LONGEST) -> tuple[int, tuple[str, ...]]:
    """Tokens of a sequence, and what was assumed: as many as the model reads, but no more than `most`."""
    if length is not None:
        require_positive(sequence_length=length)
        return length, ()
    read = min(model.max_sequence_length, most)
    return read, (f"sequences have {read:,} tokens: the model's limit, or {most:,} if that is less (--seq)",)


def precision_of(gpu: GpuSpec, precision: str | None = None) -> tuple[str, tuple[str, ...]]:
    """Precision of training, and what was assumed: bf16, or fp16 where the GPU has no units for it."""
    if precision is not None:
        return precision, ()
    usual = "bf16" if "bf16" in gpu.peak_flop_per_s else "fp16"
    return usual, (f"training in {usual} (--precision)",)


def sequences_near(wanted: float, gpus: int) -> int:
    """A batch near so many sequences that so many GPUs can share: their odd part times a power of two."""
    odd = gpus // (gpus & -gpus)
    if odd > 1.5 * wanted:
        odd = 1
    doublings = max(0, round(log(wanted / odd, 2)))
    return odd << doublings


def described(model: str, cluster: Any) -> tuple[ModelSpec, ClusterSpec]:
    """The model and the machine of two sections of a scenario, on which other sections' defaults depend."""
    machine = ClusterSpec.read(resolve(cluster, "cluster"), f"cluster {cluster!r}")
    return ModelSpec.read(resolve(model, "model"), f"model {model!r}"), machine


def ask(
    model: str,
    cluster: Any,
    training: Mapping[str, Any],
    *,
    stack: Any = None,
    profile: Any = None,
    overrides: Sequence[str] = (),
    assumed: Sequence[str] = (),
) -> Scenario:
    """The scenario of a question, whose plan is still to be found.

    model, cluster, training, stack, profile : as sections of a scenario file.
    assumed : what was filled in.
    """
    data = {"model": model, "cluster": cluster, "plan": {}, "training": training}
    data |= {name: value for name, value in (("stack", stack), ("profile", profile)) if value is not None}
    scenario = build_scenario(data, overrides)
    name = scenario.model.name
    found = (note for note in scenario.assumed if not note.startswith("plan."))  # it is searched
    asked, priced = (re.sub(r"[\W_]", "", each.rpartition("/")[2].lower()) for each in (model, name))
    same = asked == priced or model.endswith((".json", ".yaml", ".yml", "/"))
    named = () if same else (f"{model} is priced as {name}, which has the same layers",)
    return scenario.replace(name=f"{name} on {scenario.cluster.name}", assumed=(*named, *assumed, *found))


def batch_of(text: str, length: int, gpus: int) -> tuple[int, tuple[str, ...]]:
    """Sequences of a batch as people write it, 512 of them or 4M tokens, and what was assumed of the latter."""
    if text.strip()[-1:].isdigit():
        return parse_whole(text, "batch"), ()
    if text.strip()[-1:] in ("k", "K"):
        raise SpecError(f"--batch {text!r} may be sequences or tokens; write 2048 for sequences, or 0.5M for tokens")
    return _batch_near(parse_count(text, "batch"), length, gpus, f"the nearest to {text} that the GPUs share evenly")


def _batch_near(tokens: float, length: int, gpus: int, why: str) -> tuple[int, tuple[str, ...]]:
    size = sequences_near(tokens / length, gpus)
    return size, (f"a batch of {size:,} sequences, {size * length / 1e6:.3g} million tokens: {why}",)


def section_of(machine: str, gpus: int) -> tuple[Any, tuple[str, ...]]:
    """The section `cluster` of so many GPUs of a kind of machine, and what was assumed of it.

    machine : A preset of a GPU, a node or a cluster, or a cluster's file; of a cluster the number of nodes is no limit.
    """
    if machine in preset_names("gpus"):
        return machine_of(machine, gpus), ()
    if machine in preset_names("nodes"):
        return nodes_for(machine, gpus), ()
    cluster = ClusterSpec.read(resolve(machine, "cluster"), f"cluster preset {machine!r}")
    if gpus <= cluster.num_gpus:
        return machine, ()
    nodes = -(-gpus // cluster.node.gpus_per_node)
    note = f"{machine} has {cluster.num_gpus:,} GPUs; a larger one of its kind is taken, of {nodes:,} nodes"
    return {"preset": machine, "num_nodes": nodes}, (note,)


def _network(scenario: Scenario) -> tuple[str, ...]:
    """Return what connects the nodes of a job, of which quotes often say only a number."""
    node = scenario.cluster.node
    if scenario.plan.num_gpus <= scenario.cluster.nvlink_domain_gpus:
        return ()
    card, each = (show(8 * rate, "bit/s") for rate in (node.nic_bandwidth_bytes_per_s, node.network_bytes_per_s))
    return (f"a node has {node.nics_per_node} network cards of {card}, {each} a GPU and direction",)


@dataclass(frozen=True, slots=True)
class Planned:
    """The best plan of a question, and the run that it makes.

    machine : the kind of machine that was asked about, as of `section_of`.
    training : the whole run; None where no tokens were asked for.
    """

    machine: str
    result: SearchResult
    answer: Estimate
    training: Training | None

    @property
    def ends(self) -> Training:
        """The run with both ends of its interval, of a question that has a number of tokens."""
        assert self.training is not None
        return self.training

    @property
    def run(self) -> TrainingRun:
        """The expected run."""
        return self.ends.run

    @property
    def rank(self) -> tuple[float, float]:
        """What machines are ranked by: price of the run in its currency, and its wall-clock time. [s]"""
        return self.run.cost, self.run.wall_s

    def offer(self) -> dict[str, Any]:
        """What machines are compared by, as plain data with stable keys."""
        found = {"gpu": self.machine, "gpus": self.answer.num_gpus, "fits": True, "hours": self.run.wall_s / 3600}
        facts = facts_of(self.result.best[0], "step_time_s", "mfu", "memory_bytes", "plan")
        return {**found, "cost": self.run.cost, "currency": self.run.currency, **facts}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the step takes for granted, then the run, and how sure the search is of its best plan."""
        of_run = self.answer.assumptions if self.training is None else self.training.assumptions
        of_search = (*memory_of(self.result), *proof_of(self.result))
        of_step = [note for note in self.answer.assumptions if note in of_run]
        return tuple(dict.fromkeys((*_network(self.answer.scenario), *of_step, *of_run, *of_search)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON: those of `estimate`, the run's under `training`."""
        found = self.result.to_dict()
        searched = ("plans_priced", "plans_feasible", "plans_in_space", "confirmed", "gap")
        return {
            **self.answer.to_dict(),
            "training": None if self.training is None else self.training.to_dict(),
            "search": {name: found[name] for name in searched},
            "assumptions": list(self.assumptions),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be trained, and how far the caller said how; the rest gets defaults.

    model : a preset, a model of the Hugging Face hub, or the path of a config.json.
    length : tokens per sequence, such as 8k.
    batch : sequences per step (512), or tokens (4M). As `batch_of` reads it.
    precision : bf16, fp16, fp8 or another; default: bf16 if the GPU has it.
    framework : training framework: megatron-lm, torchtitan, deepspeed, pytorch-fsdp or another.
    memory_limit_bytes : memory that a plan may use of a GPU, such as 72 GB; default: all that the driver gives. [bytes]
    profile : a profile's name or YAML file, instead of the GPU's own.
    overrides : other fields of the scenario, such as plan.tp=4; fields of the plan are kept by the search.
    assumed : what was filled in before.
    terms : price, failures, storage.
    export_to : a framework that must be able to run the plan.
    """

    model: str = field(kw_only=False)
    length: int | None = None
    batch: str | None = None
    precision: str | None = None
    framework: str | None = None
    memory_limit_bytes: float | None = None
    profile: str | None = None
    overrides: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    terms: Terms = field(default_factory=Terms)
    export_to: str | None = None

    usual: ClassVar[tuple[str, str]]
    """Framework where nobody names one, and what is said of it."""

    @property
    def room(self) -> tuple[str, ...]:
        """Ways to make room for plans that do not fit else, as `search` takes them."""
        return ROOM

    def fields(self, model: ModelSpec, gpu: GpuSpec, gpus: int) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Fields of the training section on so many GPUs, and what they take for granted."""
        raise NotImplementedError

    def scenario(self, machine: str, gpus: int) -> Scenario:
        """The question on so many GPUs of a kind of machine (`section_of`); its plan is not set yet."""
        stack, of_stack = self._stack()
        cluster, of_cluster = section_of(machine, gpus)
        model, built = described(self.model, cluster)
        training, of_training = self.fields(model, built.gpu, gpus)
        return ask(
            self.model,
            cluster,
            training,
            stack=stack,
            profile=self.profile,
            overrides=[each for each in self.overrides if not each.startswith("plan.")],
            assumed=(*self.assumed, *of_stack, *of_cluster, *of_training),
        )

    def _stack(self) -> tuple[str, tuple[str, ...]]:
        """The framework, and what is said of it where nobody named it or its name is another's."""
        if self.framework is None:
            return self.usual[0], (self.usual[1],)
        found = find_framework(self.framework)
        if found in (None, self.framework.strip().lower()):
            return self.framework, ()
        return found, (f"{self.framework} is another name for {found}; its latest version is taken",)

    def planned(self, machine: str, gpus: int, progress: Progress | None = None) -> Planned:
        """The best plan there, and its run where the question has a number of tokens.

        progress : called with (plans priced, plans in the space).
        """
        of_plan = [each for each in self.overrides if each.startswith("plan.")]
        scenario, fixed = as_fixed(self.scenario(machine, gpus), of_plan)
        result = search(
            scenario,
            gpus=(gpus, gpus),
            memory_limit_bytes=self.memory_limit_bytes,
            room=self.room,
            fixed=fixed,
            export_to=self.export_to,
            progress=progress,
            require_fit=False,
        )
        if not result.best:
            raise NothingFits(_nothing_fits(result))
        best = result.best[0]
        run = None if scenario.training.tokens is None else train(best.scenario, terms=self.terms)
        return Planned(machine, result, best.answer if run is None else run.answer, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining(Question):
    """A model that is to be pre-trained.

    tokens : tokens of the whole run, such as 15T. None: the question ends with the plan.
    """

    tokens: float | None = None
    usual: ClassVar[tuple[str, str]] = (DEFAULT, f"today's Megatron-LM (stack {DEFAULT}; --framework)")

    def fields(self, model: ModelSpec, gpu: GpuSpec, gpus: int) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Fields of the training section: a batch as published where none is given."""
        (read, of_length), (kind, of_precision) = length_of(model, self.length), precision_of(gpu, self.precision)
        row = next(each for each in published("pretraining") if total_params(model) <= each["up_to"])
        wanted, whose = row["tokens"], row["source"]
        usual = f"near the {wanted / 1e6:g} million of {whose}, and shared evenly by {gpus:,} GPUs (--batch)"
        own = None if self.batch is None else batch_of(self.batch, read, gpus)
        size, of_batch = own or _batch_near(wanted, read, gpus, usual)
        if self.tokens is not None and self.tokens < size * read:
            raise SpecError(
                f"--tokens {self.tokens:g} is less than the {size * read:,} of one step; write {self.tokens:g}T for "
                "trillions, or a smaller --batch"
            )
        said = {"global_batch_size": size, "sequence_length": read, "precision": kind, "tokens": self.tokens}
        return said, (*of_batch, *of_length, *of_precision)

    def answer(self, machine: str, gpus: int, progress: Progress | None = None) -> Planned:
        """Return the best plan; where none fits, raise an error that says how many GPUs are enough."""
        try:
            return self.planned(machine, gpus, progress)
        except NothingFits as error:
            raise NothingFits(f"{error}; {self._enough(machine, gpus)}") from None

    def _enough(self, machine: str, gpus: int) -> str:
        most = gpus << DOUBLINGS
        width = self.scenario(machine, gpus).cluster.node.gpus_per_node
        for size in takewhile(lambda size: size <= most, job_sizes(gpus + 1, width)):
            with suppress(InfeasiblePlan):
                self.planned(machine, size)
                return f"on {size:,} GPUs one does (--gpus {size})"
        return f"nor does one on up to {most:,} GPUs: name a --gpu with more memory"


def job_sizes(least: float, node_gpus: int) -> Iterator[int]:
    """Numbers of GPUs that jobs usually have, from `least` on: powers of two within a node, then whole nodes.

    Of nodes there are 1, 2, 3, and 4, 5, 6 or 7 times a power of two, which heads, layers and batches can share.
    """
    within = (1 << power for power in range(node_gpus.bit_length()) if 1 << power < node_gpus)
    quarters = (times << doublings for doublings in count() for times in (4, 5, 6, 7))
    nodes = (number * node_gpus for number in chain((1, 2, 3), quarters))
    return dropwhile(lambda size: size < least, chain(within, nodes))


class NothingFits(InfeasiblePlan):
    """Memory rules all plans out."""


def _nothing_fits(result: SearchResult) -> str:
    """What the leanest plan lacks."""
    leanest = result.leanest()
    if leanest is None:  # no plan has what is fixed
        raise InfeasiblePlan(nothing_fits(result))
    answer = estimate(result.scenario_at(leanest))
    plan, (most, nbytes) = answer.scenario.plan, answer.largest_part
    words = "optimizer states" if most == "optimizer" else most
    return (
        f"no plan fits in {show(result.memory_limit_bytes, 'B')} of one {answer.scenario.cluster.gpu.name}: with ZeRO "
        f"{plan.zero_stage}, recompute {plan.recompute} and a micro-batch of {plan.microbatch_size} it still needs "
        f"{show(answer.largest.total, 'B')} ({words} {show(nbytes, 'B')})"
    )
