"""What is run: the model's shape, and how it is cut in each configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sim.errors import SpecError
from sim.specs.yaml12 import load_yaml


@dataclass(frozen=True, slots=True)
class GptShape:
    """A GPT: learned positions, LayerNorm, GELU, no dropout, untied head.

    The default is large enough that multiplies take most of the time, small enough for steps of about a second on one
    core.

    precision : of weights, activations and gradients. Beside bf16 ones the optimizer keeps fp32 masters.
    """

    num_layers: int = 8
    hidden_size: int = 384
    num_heads: int = 6
    vocab_size: int = 512
    sequence_length: int = 256
    precision: Literal["fp32", "bf16"] = "fp32"


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the model and a step's batch are cut over tp · cp · pp · dp processes.

    microbatches : of each pipeline and step; the global batch is dp · microbatches · microbatch_size sequences.
    zero_stage : where there are replicas, 1 gathers the weights and scatters the gradients once a step, 3 layer by
        layer, in the forward and again in the backward of every micro-batch.
    cp : ranks that share each sequence and gather each other's keys and values.
    num_experts : of every layer; 0 has one MLP for all tokens. Each token goes through two.
    ep : ranks over which the experts are dealt: all replicas, or 1.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    schedule: str = "gpipe"
    microbatches: int = 2
    microbatch_size: int = 1
    num_chunks: int = 1
    recompute: str = "none"
    zero_stage: int = 1
    cp: int = 1
    num_experts: int = 0
    ep: int = 1

    def __post_init__(self) -> None:
        if self.zero_stage == 3 and (self.pp > 1 or self.num_experts or self.schedule != "1f1b"):
            raise SpecError("zero_stage 3 gathers layer by layer: set pp to 1, schedule to 1f1b and num_experts to 0")
        if self.ep not in (1, self.dp) or (self.ep > 1 and (self.tp > 1 or self.cp > 1)):
            raise SpecError(f"ep {self.ep} deals experts over all replicas: set it to dp = {self.dp}, and tp, cp to 1")
        if self.num_experts % self.ep or (self.ep > 1 and not self.num_experts):
            raise SpecError(f"num_experts {self.num_experts} must be a multiple of ep {self.ep}")

    @property
    def num_ranks(self) -> int:
        """Processes of the job."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def num_replicas(self) -> int:
        """Processes that hold the same part of the model."""
        return self.dp * self.cp

    @property
    def global_batch_size(self) -> int:
        """Sequences a step."""
        return self.dp * self.microbatches * self.microbatch_size

    @property
    def experts_per_token(self) -> int:
        """Experts that each token goes through."""
        return min(2, self.num_experts)

    @property
    def name(self) -> str:
        """Short and unique: `tp2 pp2 dp1 1f1b 4x1`."""
        cut = f"tp{self.tp} pp{self.pp} dp{self.dp}" + (f" cp{self.cp}" if self.cp > 1 else "")
        words = [cut, self.schedule, *([f"v{self.num_chunks}"] if self.num_chunks > 1 else [])]
        words += [f"{self.microbatches}x{self.microbatch_size}", *(["recompute"] if self.recompute == "full" else [])]
        words += ["zero3"] if self.zero_stage == 3 else []
        words += [f"ep{self.ep} of {self.num_experts}"] if self.num_experts else []
        return " ".join(words)

    def passes_block(self) -> Configuration:
        """The smallest cut whose layers give the host as much to do, forward and backward.

        Of replicas that gather once a step, FSDP's part in a visit is a few hooks.
        """
        if self.ep > 1:
            return Configuration(dp=2, ep=2, num_experts=2 * self.num_experts // self.ep)
        if self.zero_stage == 3 and self.num_replicas > 1:
            return Configuration(dp=2, zero_stage=3, schedule="1f1b")
        if self.tp > 1:
            return Configuration(tp=2)
        return Configuration(cp=min(2, self.cp), num_experts=self.num_experts)

    def update_block(self) -> Configuration:
        """The smallest cut whose optimizer has as much to do: cut or sharded, parameters are DTensors."""
        if self.tp == 1 and self.num_replicas > 1 and self.ep == self.cp == 1 and self.zero_stage < 3:
            return Configuration(dp=2, num_experts=self.num_experts)
        return self.passes_block()


_FACTS: dict[str, Any] = load_yaml(Path(__file__).parent / "suites.yaml")
_SHAPES = {name: GptShape(**fields) for name, fields in _FACTS["shapes"].items()}
SIZES: dict[str, tuple[GptShape, int]] = {name: (_SHAPES[name], count) for name, count in _FACTS["at_once"].items()}
"""Shape by name, and sequences of a micro-batch."""
QUICK_SHAPE = _SHAPES["quick"]
QUICK_SUITE, SUITE = (tuple(Configuration(**cut) for cut in _FACTS[name]) for name in ("quick", "full"))
_NODE = 8


def gpu_suite(ranks: int, microbatch_size: int) -> tuple[Configuration, ...]:
    """Configurations of one to `ranks` GPUs for models that fill them: kinds of parallelism one by one, then mixed."""
    cuts: list[dict[str, Any]] = list(_FACTS["gpu"])
    if ranks > _NODE and ranks % (2 * _NODE) == 0:
        cuts += [{"tp": _NODE, "dp": ranks // _NODE}, {"tp": _NODE, "pp": 2, "dp": ranks // (2 * _NODE)}]
        cuts += [{"pp": 2, "dp": ranks // 2}, {"dp": ranks}, {"dp": ranks, "zero_stage": 3}]
    usual = {"schedule": "1f1b", "microbatches": 4, "microbatch_size": microbatch_size}
    every = dict.fromkeys(Configuration(**usual | cut) for cut in cuts)
    return tuple(cut for cut in every if cut.num_ranks <= ranks)
