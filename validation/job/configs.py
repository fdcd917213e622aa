"""What is run: the model's shape, and how it is cut in each configuration."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GptShape:
    """A small GPT: learned positions, LayerNorm, GELU, no dropout, untied head.

    Large enough that multiplies take most of the time, small enough for steps of about a second on one core.
    """

    num_layers: int = 8
    hidden_size: int = 384
    num_heads: int = 6
    vocab_size: int = 512
    sequence_length: int = 256


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the model and a step's batch are cut over tp · pp · dp processes.

    microbatches : of each pipeline and step; the global batch is dp · microbatches · microbatch_size sequences.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    schedule: str = "gpipe"
    microbatches: int = 2
    microbatch_size: int = 1
    num_chunks: int = 1
    recompute: str = "none"

    @property
    def num_ranks(self) -> int:
        """Processes of the job."""
        return self.tp * self.pp * self.dp

    @property
    def global_batch_size(self) -> int:
        """Sequences a step."""
        return self.dp * self.microbatches * self.microbatch_size

    @property
    def name(self) -> str:
        """Short and unique: `tp2 pp2 dp1 1f1b 4x1`."""
        chunks = f" v{self.num_chunks}" if self.num_chunks > 1 else ""
        again = " recompute" if self.recompute == "full" else ""
        cut = f"tp{self.tp} pp{self.pp} dp{self.dp}"
        return f"{cut} {self.schedule}{chunks} {self.microbatches}x{self.microbatch_size}{again}"

    def to_dict(self) -> dict[str, Any]:
        """Fields as plain data, and the name."""
        return {"name": self.name, **asdict(self)}


#: From one process to eight; every schedule, both ends of the micro-batch count, with and without recomputation.
SUITE = (
    Configuration(1, 1, 1, "gpipe", 2),
    Configuration(1, 1, 1, "gpipe", 2, recompute="full"),
    Configuration(1, 1, 1, "gpipe", 2, microbatch_size=2),
    Configuration(2, 1, 1, "gpipe", 2),
    Configuration(2, 1, 1, "gpipe", 4),
    Configuration(1, 2, 1, "gpipe", 2),
    Configuration(1, 2, 1, "gpipe", 4),
    Configuration(1, 2, 1, "1f1b", 8),
    Configuration(1, 2, 1, "interleaved", 4, num_chunks=2),
    Configuration(1, 2, 1, "breadth_first", 4, num_chunks=2),
    Configuration(1, 2, 1, "zb_interleaved", 4, num_chunks=2),
    Configuration(1, 2, 1, "zb_v", 4, num_chunks=2),
    Configuration(1, 1, 2, "gpipe", 2),
    Configuration(1, 4, 1, "1f1b", 4),
    Configuration(1, 4, 1, "interleaved", 4, num_chunks=2, recompute="full"),
    Configuration(2, 2, 1, "1f1b", 4),
    Configuration(1, 2, 2, "1f1b", 4),
    Configuration(2, 1, 2, "gpipe", 2),
    Configuration(2, 2, 2, "gpipe", 2),
    Configuration(2, 2, 2, "1f1b", 4),
    Configuration(2, 2, 2, "interleaved", 2, num_chunks=2),
)
#: The three kinds of parallelism, one at a time, on two processes.
QUICK_SHAPE = GptShape(num_layers=4, hidden_size=256, num_heads=4, sequence_length=128)
QUICK_SUITE = (
    Configuration(1, 1, 1, "gpipe", 2),
    Configuration(1, 2, 1, "1f1b", 4),
    Configuration(2, 1, 1, "gpipe", 2),
)
