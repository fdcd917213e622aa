"""What a foreign file does not say: cluster, number of GPUs, batch, sequences. Filled in openly, never in silence."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.specs.base import FORMATS
from sim.specs.hardware import ClusterSpec
from sim.specs.loading import resolve
from sim.specs.model import ModelSpec
from sim.work.sums import total_params

CLUSTER = "superpod-h100"
CLUSTER_OF_FOUR_BITS = "superpod-b200"
"""The machine taken where multiplies are in 4 bits, which the usual cluster lacks."""
TOKENS_A_STEP = 4e6
"""Tokens of a step in large pre-training runs (Llama 3's first stage, arXiv:2407.21783, section 3.4.1)."""
LONGEST = 4096
"""Tokens a sequence where nothing is said; models are pre-trained on shorter ones than they can read."""
STATE_BYTES = 18
"""A parameter in mixed precision: weight, fp32 gradient, master weight and Adam's two moments. [bytes]"""


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller says besides the file.

    gpus : how many.
    cluster : a preset's name.
    model : a preset's name, or a path of a `config.json`.
    recipe : of a Python file, the function or name that is meant, with arguments if need be: "pretrain(nodes=4)".
    args : what a script is called with, `$1` first.
    env : variables of the environment that a script runs in.
    """

    gpus: int | None = None
    cluster: str | None = None
    model: str | None = None
    recipe: str | None = None
    args: Sequence[Any] = ()
    env: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Foreign:
    """A foreign file, and what the caller says of its run.

    text, data : what stands in it; data of JSON or TOML, None for a script or Python.
    model : the section `model` that the caller gave, if any.
    folder : where a DeepSpeed file's `config.json` may lie.
    started : of a script, GPUs that its launcher starts, and where it says so.
    """

    text: str
    data: Any
    ledger: Ledger
    given: Given
    model: Any = None
    folder: Path | None = None
    started: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The cluster of an import: the preset's name, what it describes, and whether the caller chose it."""

    name: str
    cluster: ClusterSpec
    chosen: bool
    ledger: Ledger

    @classmethod
    def of(cls, file: Foreign, asked: Sequence[str] = ()) -> Self:
        """The caller's, the one of the GPU that the file names, or the usual one. Raises SpecError: no such preset.

        asked : options of a scheduler that may name a kind of GPU: "--constraint=a100", "--gres=gpu:h100:8".
        """
        given, ledger = file.given, file.ledger
        known = table("launchers")["clusters"] if asked else {}
        named = ((word, gpu) for word in asked for gpu in known if gpu in re.split(r"[^a-z0-9]+", word.lower()))
        if given.cluster is None:
            word, gpu = next(named, ("", ""))
            why = f"{short(word)} names the GPU, not the machine" if gpu else "the file names none"
            name = ledger.assume("cluster", known.get(gpu, CLUSTER), f"{why}; --cluster NAME")
        else:
            name = ledger.took("cluster", given.cluster, "--cluster")
        return cls(name, ClusterSpec.read(resolve(name, "cluster"), "cluster"), given.cluster is not None, ledger)

    def section(self, gpus: int) -> Any:
        """The section `cluster`: the preset, enlarged where nobody chose it and the plan needs more GPUs."""
        if gpus <= self.cluster.num_gpus or self.chosen:
            return self.name
        nodes = -(-gpus // self.cluster.node.gpus_per_node)
        why = f"for {gpus:,} GPUs; the preset has {self.cluster.num_nodes:,} nodes"
        return {"preset": self.name, "num_nodes": self.ledger.assume("cluster.num_nodes", nodes, why)}

    def fewest_gpus(self, model: Mapping[str, Any], unit: int = 1, *, frozen: bool = False) -> int:
        """GPUs where nobody says how many: the smallest multiple of a node and of `unit`, a power of two of them, whose
        memory the states fill by half. Of a frozen model those are its 16-bit weights."""
        gpus, node = unit, self.cluster.node.gpus_per_node
        while gpus % node and gpus < node:
            gpus *= 2
        states = (2 if frozen else STATE_BYTES) * total_params(ModelSpec.read(dict(model), "model"))
        while gpus * self.cluster.gpu.usable_bytes < 2 * states and gpus < 2**24:
            gpus *= 2
        return int(self.ledger.assume("GPUs", gpus, "as many as hold the model's states; --gpus N"))

    def deal_experts(self, plan: Section, model: Mapping[str, Any], gpus: int) -> None:
        """Expert parallelism of a plan whose GPUs are all replicas: over a node as far as the experts go."""
        experts = ModelSpec.read(dict(model), "model").num_experts
        if experts:
            ep = math.gcd(experts, self.cluster.node.gpus_per_node, gpus)
            plan.assume("ep", ep, f"a node's GPUs share the {experts} experts")


NOT_SAID = (None, "the file does not say")


def told_gpus(file: Foreign, *said: tuple[int | None, str]) -> int | None:
    """GPUs that the caller asks for, or of which the first of these (number, source) tells; None where none does."""
    told = ((number, source) for number, source in ((file.given.gpus, "--gpus"), *said) if number is not None)
    number, source = next(told, (None, ""))
    return None if number is None else int(file.ledger.took("GPUs", number, source))


def with_units_of(cluster: Any, precision: str, given: Given, ledger: Ledger) -> Any:
    """The section `cluster`; where nobody chose one, a cluster whose GPUs multiply in that precision."""
    if given.cluster is not None or precision not in FORMATS or FORMATS[precision].peak != "fp4":
        return cluster
    taken = cluster if isinstance(cluster, str) else cluster["preset"]
    if "fp4" in ClusterSpec.read(resolve(taken, "cluster"), "cluster").gpu.peak_flop_per_s:
        return cluster
    name = ledger.assume("cluster", CLUSTER_OF_FOUR_BITS, f"{taken} has no units for {precision}; --cluster NAME")
    return name if isinstance(cluster, str) else {**cluster, "preset": name}


def assume_batch(training: Section, replica: int) -> None:
    """A global batch of about TOKENS_A_STEP, a multiple of what the replicas take at once. [sequences]"""
    batch = max(1, round(TOKENS_A_STEP / training["sequence_length"] / replica)) * replica
    training.assume("global_batch_size", batch, "about four million tokens a step")


def assume_sequence(training: Section, model: dict[str, Any]) -> None:
    """A sequence length the model can take. [tokens]"""
    longest = int(model.get("max_sequence_length", ModelSpec.model_fields["max_sequence_length"].default))
    training.assume("sequence_length", min(longest, LONGEST), f"the model's limit, but at most {LONGEST:,}")


def replicas(gpus: int, unit: int, ledger: Ledger, what: str) -> int:
    """How many model replicas so many GPUs hold. Raises SpecError: a number of GPUs that they do not divide."""
    if gpus % unit:
        near = max(1, round(gpus / unit)) * unit
        raise ledger.error(f"{gpus:,} GPUs are no multiple of {what} = {unit:,}; nearest: --gpus {near:,}")
    return gpus // unit


def take_optimizer(training: Section, name: str | None, source: str) -> None:
    """Fields of training for an optimizer by the name that a framework gives it; unknown ones are priced as Adam."""
    if name is None:
        return
    plain = name.lower().replace("_", "").replace("-", "")
    known = {each: fields for group in table("optimizers").values() for each, fields in group.items()}
    if plain not in known:
        training.ledger.ignore(source, name, "priced as Adam", matters=True)
    for field, value in known.get(plain, {}).items():
        training.took(field, value, source)
