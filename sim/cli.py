"""The command line: one verb a question.

Exit codes: 0 answered, 1 the answer cannot be written, 2 bad input, 3 the plan does not fit, 130 interrupted, 141 the
reader has gone.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sim.commands.exit_codes import run_to_the_end
from sim.commands.options import examples

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NARROW = 60
"""Columns below which help comes without frames, which would cut words off."""
_TABLE = (
    "estimate: How long a training step takes, where the time goes, and whether it fits.",
    " estimate scenarios/gpt-1t-3072-a100.yaml",
    " estimate scenarios/gpt3-175b-1024-a100.yaml --set plan.num_chunks=2 --set plan.schedule=interleaved",
    " estimate scenarios/llama3-405b-16384-h100.yaml --json",
    "check: Whether a run is normal: measured step times beside the estimate, and what to look at.",
    " check train.log scenarios/korthikanti-2022/22b-selective.yaml",
    " check train.log --cluster selene",
    " check scenarios/megatron-2021/39.1b.yaml --measured '16.9 s'",
    "plan: The best plan to pre-train a model on so many GPUs; days and cost of the run.",
    " plan llama3-70b --cluster superpod-h100 --gpus 512 --tokens 15T",
    " plan meta-llama/Llama-3.1-8B --gpu h100 --gpus 8 --seq 8k --export megatron-lm",
    " plan qwen3-4b --gpu a100-80gb --gpus 64 --tokens 300B --batch 2M -o best.yaml",
    "finetune: Whether a fine-tuning fits, what would make it fit, how long it takes, and its cost.",
    " finetune qwen2.5-7b --gpus 8 --gpu rtx4090 --samples 50k --epochs 3",
    " finetune qwen2.5-7b --samples 50k --lora",
    " finetune meta-llama/Llama-3.1-8B --gpu h100 --samples 10k --seq 4k --lora 16 --json",
    "shape: Which nearby vocabulary, heads and widths of a model train faster.",
    " shape gpt3-175b --gpu a100-80gb --tp 8",
    " shape config.json --gpu h100 --json",
    "compare: Two scenarios side by side: what differs, and what that does.",
    " compare scenarios/megatron-2021/145.6b.yaml scenarios/gpt3-175b-1024-a100.yaml",
    " compare scenarios/gpt3-175b-1024-a100.yaml scenarios/gpt3-175b-1024-a100.yaml@plan.zero_stage=1",
    "schedule: What each pipeline rank does, in order, as a text grid.",
    " schedule interleaved --ranks 4 --microbatches 8",
    " schedule zb_v --ranks 2 --microbatches 3 --times 1,1,1",
    "timeline: When each pipeline rank does what in a step: a Gantt chart, or a trace.",
    " timeline scenarios/gpt3-175b-1024-a100.yaml",
    " timeline scenarios/gpt3-175b-1024-a100.yaml -s plan.schedule=zb_h1 --png step.png --from 0 --to 5",
    " timeline scenarios/gpt3-175b-1024-a100.yaml --trace step.json",
    "compare-schedules: One scenario under every pipeline schedule: time, memory, communication.",
    " compare-schedules scenarios/gpt3-175b-1024-a100.yaml",
    " compare-schedules scenarios/gpt3-175b-1024-a100.yaml --schedules 1f1b,interleaved,dualpipe --json",
    "import: Turn a configuration of another tool into a scenario.",
    " import config.json --gpus 64 -o mine.yaml",
    " import train_gpt3_175b.sh --cluster selene -o gpt3.yaml",
    " import llama3_8b.toml | flopcast estimate -",
    "export: Write a scenario's plan as a framework's own options.",
    " export scenarios/gpt3-175b-1024-a100.yaml --to megatron-lm -o run.sh",
    " export scenarios/qwen3-235b-a22b-256-h100.yaml --to megatron-bridge",
    " export scenarios/gpt3-175b-1024-a100.yaml --to megatron-lm -s plan.tp=4 -s plan.pp=32 --json",
    "topology: Switches, cables and bisection bandwidth of a cluster's network.",
    " topology selene",
    " topology selene --nodes 384 --collectives 1GB --gpus 48 --json",
    "search: The best plan of all that fit, proven by the exact engine, and why not another.",
    " search scenarios/gpt-1t-3072-a100.yaml -o best.yaml",
    " search scenarios/gpt-1t-3072-a100.yaml --why own",
    " search scenarios/gpt-1t-3072-a100.yaml --schedules zb_v,v_half",
    " search scenarios/gpt-1t-3072-a100.yaml --why plan.tp=8 plan.pp=64",
    " search scenarios/gpt3-175b-1024-a100.yaml --sweep gpus=64..1024 --figure sweep.png",
    "layout: Which layers each pipeline stage should hold, and what that gains.",
    " layout scenarios/papers/deepseek-v3-2048-h800.yaml -s plan.schedule=1f1b",
    " layout scenarios/llama3-405b-16384-h100.yaml --json",
    "plan-pipeline: Stages and workers of a pipeline without flush, by PipeDream's planner.",
    " plan-pipeline scenarios/layers/vgg16-v100.csv --workers 16 --bandwidths '10 Gbit/s'",
    " plan-pipeline scenarios/megatron-2021/1.7b.yaml -s plan.zero_stage=0",
    "simulate: How long steps take if GPUs jitter or are slow, or links are shared, slow or lost.",
    " simulate scenarios/gpt-1t-3072-a100.yaml --jitter 0.02 --seeds 20 --straggler 1.2@rank17",
    " simulate scenarios/gpt-1t-3072-a100.yaml --links",
    " simulate scenarios/gpt-1t-3072-a100.yaml --link-down leaf4.cable7",
    "report: Write the answer and all that it rests on as one HTML file.",
    " report scenarios/gpt-1t-3072-a100.yaml -o report.html",
    " report scenarios/gpt3-175b-1024-a100.yaml -s plan.num_chunks=2 -s plan.schedule=interleaved --no-search",
    "train: How many days a whole run takes, with failures and checkpoints, and what it costs.",
    " train scenarios/gpt-1t-3072-a100.yaml",
    " train scenarios/gpt-1t-3072-a100.yaml --price 3",
    "shortest: The shortest possible training run on a kind of cluster, and what limits it.",
    " shortest llama3-70b --cluster superpod-h100 --tokens 15T --gpus 256..32768 --png frontier.png",
    " shortest gpt3-175b --cluster ethernet-25 --loss 2.0 --within '60 d'",
    "rl: How long a step of reinforcement learning takes, and what limits it.",
    " rl scenarios/qwen3-30b-a3b-rl-32-h100.yaml --rollout-gpus 32 --response 4k --longest 10k",
    " rl scenarios/qwen3-30b-a3b-rl-32-h100.yaml --gpus 64 --longest 10k --reference --updates 4",
    " rl scenarios/qwen3-30b-a3b-rl-32-h100.yaml --colocated --response 2k --longest 10k --json",
    "fields: What a scenario file may hold: each field's type, default and meaning.",
    " fields plan",
    " fields plan.zero_stage",
    " fields recompute",
    "schema: The JSON Schema of a scenario file, for editors.",
    " schema -o scenario.schema.json",
    "mcp: Serve the answers as tools for language models (Model Context Protocol).",
    " mcp",
    "presets: GPUs, nodes, clusters, models, frameworks, stacks and profiles, with their sources.",
    "scaling: Scaling laws side by side: loss, data, batch, failures and cost.",
)
"""The verbs in the order of the help: what each answers in a line, and below it what one types after `flopcast`."""
HOMES = {
    "check": "estimate:check",
    "compare": "estimate:compare",
    "layout": "estimate:layout",
    "schedule": "schedules:schedule",
    "timeline": "schedules:timeline",
    "compare-schedules": "schedules:compare_schedules",
    "import": "files:import_config",
    "export": "files:export",
    "finetune": "plan:finetune",
    "topology": "machine:topology",
    "simulate": "machine:simulate",
    "shape": "machine:shape",
    "plan-pipeline": "machine:plan_pipeline",
    "shortest": "train:shortest",
    "fields": "reference:fields",
    "schema": "reference:schema",
    "presets": "reference:app",
    "scaling": "scaling:app",
}
"""Where the code of a verb is, below `sim.commands`, if not in a function and a module of its own name."""


def _read(table: tuple[str, ...]) -> dict[str, tuple[str, list[str]]]:
    verbs: dict[str, tuple[str, list[str]]] = {}
    for line in table:
        if line.startswith(" "):
            verbs[next(reversed(verbs))][1].append(line.strip())
        else:
            name, _, summary = line.partition(": ")
            verbs[name] = (summary, [])
    return verbs


VERBS = _read(_TABLE)
"""Summary and examples of each verb, whose code is loaded when it is asked for."""


@cache
def _plugins() -> dict[str, EntryPoint]:
    """Verbs that other installed packages bring, such as `calibrate`."""
    from importlib.metadata import entry_points

    return {point.name: point for point in sorted(entry_points(group="flopcast.commands"), key=lambda each: each.name)}


class Verbs(TyperGroup):
    """The verbs as click commands, each made when it is asked for: an estimate need not load what a search does."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all verbs."""
        return [*VERBS, *_plugins()]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the verbs by their summaries: none of them is loaded for that."""
        self.commands = {name: TyperCommand(name, help=summary) for name, (summary, _) in VERBS.items()}
        super().format_help(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb of that name, or None."""
        if cmd_name not in self.commands:
            if cmd_name in VERBS or cmd_name in _plugins():
                self.commands[cmd_name] = self._load(cmd_name)
            else:  # typer names the nearest of the verbs that it has
                for name in self.list_commands(ctx):
                    self.get_command(ctx, name)
        return self.commands.get(cmd_name)

    def _load(self, name: str) -> Any:
        alone = typer.Typer(rich_markup_mode=self.rich_markup_mode, add_completion=False)
        alone.callback()(_options)  # a lone verb would become the whole command
        if name in VERBS:
            # Matrices of sim's verbs are small: starting BLAS's threads costs more than they could give.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            home, _, attribute = HOMES.get(name, f"{name}:{name}").partition(":")
            module, (summary, shown) = import_module(f"sim.commands.{home}"), VERBS[name]
            code, kind = getattr(module, attribute), getattr(module, f"{name.upper()}_COMMAND", None)
        else:
            code = _plugins()[name].load()
        if isinstance(code, typer.Typer):
            alone.add_typer(code, name=name)
        elif name in VERBS:
            from sim.commands.fills import with_records

            code = with_records(code)
            more = "\n\n".join((code.__doc__ or "").split("\n\n")[1:])
            alone.command(name, cls=kind, help=f"{summary}\n\n{more}", epilog=examples(*shown))(code)
        else:
            alone.command(name, epilog=examples(*code.examples))(code)
        return typer.main.get_command(alone).commands[name]  # type: ignore[attr-defined]


app = typer.Typer(
    name="flopcast",
    cls=Verbs,
    help="Predict how fast a large language model trains on a GPU cluster, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        from sim import __version__

        typer.echo(f"flopcast {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Predict how fast a large language model trains on a GPU cluster, and why."""


def main() -> None:
    """Run the command line; explain mistakes in one message and an exit code, never in a traceback."""
    code = run_to_the_end(_run)
    if code:
        sys.exit(code)


def _run() -> None:
    narrow: dict[str, Any] = {}
    columns = shutil.get_terminal_size().columns
    if columns < NARROW:
        app.rich_markup_mode, narrow = None, {"terminal_width": columns}
    app(prog_name="flopcast", **narrow)


if __name__ == "__main__":
    main()
