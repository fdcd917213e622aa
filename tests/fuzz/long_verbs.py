"""Verbs that run long or write files, as the tools that end them half way ask them.

A verb's words name files in the folder where it runs: those that it is given, and those that it writes.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "calibration" / "data"
SCENARIOS = ROOT / "scenarios"
FLOPCAST = (sys.executable, "-m", "sim")
SMALL_SUITE = """\
import sys
from flopcast_calibration.bench import kernels, run
run.kernel_cases = lambda *_: [kernels.gemm_case(64, 64, 16 * i, "float32", "nt") for i in range(1, 9)]
run.collective_shapes = lambda ranks, quick, largest, per_node, device: (
    {"operation": "all_reduce", "num_ranks": 2, "num_nodes": 1, "nbytes": 2**e} for e in range(10, 18)
)
run.interference_shapes = lambda *_: ()
run.TURNS = 1
from sim.cli import main
if __name__ == "__main__":
    main()
"""
"""`flopcast` whose `calibrate run` measures little."""


@dataclass(frozen=True)
class LongVerb:
    """A verb as it is tried.

    words : what stands behind `flopcast`.
    given : files that it reads, by the name that they have in the folder.
    written : files and folders that it writes.
    measures : its numbers are of this machine, and no two runs give the same.
    so_far : of those that it writes, what holds the best found so far where it is interrupted.
    script : runs it instead of `flopcast`.
    """

    name: str
    words: tuple[str, ...]
    given: dict[str, Path | str] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    measures: bool = False
    so_far: tuple[str, ...] = ()
    script: str = ""

    def lay_out(self, folder: Path) -> None:
        """Put what the verb reads into a folder."""
        for name, what in self.given.items():
            if isinstance(what, Path):
                shutil.copyfile(what, folder / name)
            else:
                (folder / name).write_text(what)
        if self.script:
            (folder / "small.py").write_text(self.script)

    @property
    def command(self) -> tuple[str, ...]:
        """What is run in the folder."""
        return (*((sys.executable, "small.py") if self.script else FLOPCAST), *self.words)


def _asked(verb: str, *words: str, scenario: str = "gpt3-175b-1024-a100", **more: tuple[str, ...]) -> LongVerb:
    """A verb of a shipped scenario."""
    return LongVerb(verb, (verb, "s.yaml", *words), {"s.yaml": SCENARIOS / f"{scenario}.yaml"}, **more)


LONG_VERBS = {
    each.name: each
    for each in (
        LongVerb(
            "search -o",
            ("search", "s.yaml", "--gpus", "256..512", "--overlaps", "-o", "best.yaml", "--top", "3"),
            {"s.yaml": SCENARIOS / "gpt3-175b-1024-a100.yaml"},
            ("best.yaml",),
            so_far=("best.yaml",),
        ),
        _asked(
            "search", "--sweep", "gpus=128..256", "--figure", "sweep.png", written=("sweep.png",)
        ),
        LongVerb(
            "calibrate fit",
            ("calibrate", "fit", "b.csv", "--node", "dgx-a100-80gb", "-o", "dgx.yaml", "--draws", "2"),
            {"b.csv": DATA / "dgx-a100-gemm.csv"},
            ("dgx.yaml", "dgx.jsonl"),
        ),
        LongVerb(
            "calibrate run",
            ("calibrate", "run", "--device", "cpu", "--ranks", "2", "-o", "mine.yaml"),
            written=("mine.yaml", "mine.jsonl"),
            measures=True,
            script=SMALL_SUITE,
        ),
        LongVerb(
            "calibrate from-runs",
            ("calibrate", "from-runs", "runs.csv", "-o", "runs.yaml"),
            {"runs.csv": Path(__file__).parent / "runs.csv"},
            ("runs.yaml",),
        ),
        LongVerb(
            "anchor",
            ("anchor", "s.yaml", "--measured", "16.9 s", "-o", "mine.yaml"),
            {"s.yaml": SCENARIOS / "megatron-2021" / "39.1b.yaml"},
            ("mine.yaml",),
        ),
        LongVerb(
            "validate",
            ("validate", "--runs", "runs.csv", "--json", "v.json", "--figure", "v.png", "--export", "runs"),
            {"runs.csv": Path(__file__).parent / "runs.csv"},
            ("v.json", "v.png", "runs"),
        ),
        LongVerb(
            "validate job",
            ("validate", "job", "--device", "cpu", "--size", "tiny", "--quick", "--steps", "1", "--keep", "kept", "--json", "job.json"),
            written=("job.json", "kept"),
            measures=True,
        ),
        _asked("report", "--no-search", "-o", "report.html", written=("report.html",)),
        _asked("export", "--to", "megatron-lm", "-o", "run.sh", written=("run.sh",)),
        LongVerb(
            "import",
            ("import", "job.sh", "--cluster", "selene", "-o", "mine.yaml"),
            {"job.sh": ROOT / "tests" / "foreign" / "files" / "gpt3_175b_slurm.sh"},
            ("mine.yaml",),
        ),
        _asked(
            "timeline", "--trace", "step.json", "--png", "step.png", "--svg", "step.svg", written=("step.json", "step.png", "step.svg")
        ),
        _asked("simulate", "--jitter", "0.02", "--seeds", "20", "--png", "noise.png", written=("noise.png",)),
        _asked("compare-schedules", "--schedules", "1f1b,zb_h1", "--png", "schedules.png", written=("schedules.png",)),
        _asked("train", "--png", "run.png", scenario="gpt-1t-3072-a100", written=("run.png",)),
        LongVerb(
            "shortest",
            ("shortest", "llama3-8b", "--cluster", "superpod-h100", "--tokens", "1T", "--gpus", "64", "--batches", "256", "--png", "f.png"),
            written=("f.png",),
        ),
        LongVerb(
            "rl",
            ("rl", "s.yaml", "--rollout-gpus", "32", "--response", "4k", "--longest", "10k", "--png", "rl.png"),
            {"s.yaml": SCENARIOS / "qwen3-30b-a3b-rl-32-h100.yaml"},
            ("rl.png",),
        ),
        LongVerb(
            "plan-pipeline",
            ("plan-pipeline", "layers.csv", "--workers", "16", "--bandwidths", "10 Gbit/s"),
            {"layers.csv": SCENARIOS / "layers" / "vgg16-v100.csv"},
        ),
        LongVerb(
            "scaling fit", ("scaling", "fit", "losses.csv", "--png", "fit.png"), {"losses.csv": Path(__file__).parent / "losses.csv"}, ("fit.png",)
        ),
        LongVerb("schema", ("schema", "-o", "schema.json"), written=("schema.json",)),
    )
}  # fmt: skip
SHORT = ("import", "export")
"""Those tried in a test."""

_PASSING = (
    (re.compile(r"(?m)(?<=priced)[^\n]*$"), ""),  # how many exactly, and in which time
    (re.compile(r"<dc:date>.*?</dc:date>"), ""),
    (re.compile(r"\b[a-z]{1,2}[0-9a-f]{10}\b"), "id"),  # what an SVG calls its parts
)


def without_time(text: str) -> str:
    """A text without what is another each time: how long it took, when it was."""
    for pattern, instead in _PASSING:
        text = pattern.sub(instead, text)
    return text


ENDS: dict[str, Callable[[bytes], bool]] = {
    ".png": lambda data: data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82"),
    ".svg": lambda data: data.rstrip().endswith(b"</svg>"),
    ".html": lambda data: data.rstrip().endswith(b"</html>"),
    ".parquet": lambda data: data.startswith(b"PAR1") and data.endswith(b"PAR1"),
}
"""Whether a file of that ending is whole."""
