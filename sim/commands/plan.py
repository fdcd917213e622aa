"""`flopcast plan`: which plan trains a model on a machine, how long the run takes and what it costs, without a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.commands import completion as complete
from sim.commands.options import Json, PriceOption
from sim.commands.output import print_json, print_view
from sim.commands.progress import progress_bar
from sim.errors import InfeasiblePlan, SpecError

if TYPE_CHECKING:
    from sim.scaling.run import Terms
    from sim.specs import Scenario

CLUSTER = "superpod-h100"
"""Where nobody names a machine."""
DOUBLINGS = 6
"""Of the GPUs, up to which it is tried how many are enough."""
Model = Annotated[
    str,
    typer.Argument(
        help="A preset, a model of the Hugging Face hub, or a config.json.",
        show_default=False,
        autocompletion=complete.preset("models"),
    ),
]
Batch = Annotated[str | None, typer.Option(help="Sequences a step (512), or tokens with a letter (4M).")]
Sequence = Annotated[str | None, typer.Option("--seq", help="Tokens a sequence, such as 8k.")]
Framework = Annotated[
    str | None,
    typer.Option(
        help="megatron-lm, torchtitan, deepspeed, pytorch-fsdp, ...", autocompletion=complete.preset("frameworks")
    ),
]
Precision = Annotated[str | None, typer.Option(help="bf16, fp16, fp8, ...; bf16 where the GPU has it if not given.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="YAML", help="Write the best plan as a scenario.")
]
Export = Annotated[
    str | None,
    typer.Option(
        "--export",
        metavar="FRAMEWORK",
        help="Also the plan as a framework's options: megatron-lm, megatron-bridge, torchtitan or deepspeed.",
        autocompletion=complete.frameworks_to_export_to,
    ),
]


def plan(
    model: Model,
    gpus: Annotated[int | None, typer.Option(help="How many GPUs.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="A cluster preset, of any size.", autocompletion=complete.preset("clusters")),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Or the kind of GPU: h100, a100-80gb, 4090.", autocompletion=complete.preset("gpus")),
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens of the whole run, such as 15T.")] = None,
    batch: Batch = None,
    seq: Sequence = None,
    framework: Framework = None,
    precision: Precision = None,
    price: PriceOption = None,
    output: OutputFile = None,
    export_to: Export = None,
    as_json: Json = False,
) -> None:
    """Which plan is the best for a model on so many GPUs, how long its run takes and what it costs."""
    from sim.scaling.questions import Planned, ask, enlarged, lacking_of, plan_of, pretraining
    from sim.specs.frameworks import DEFAULT
    from sim.specs.machines import gpu_named, machine_of
    from sim.units import parse_count

    check_files(output, export_to)
    if gpus is None:
        raise SpecError("on how many GPUs? Give --gpus 512; flopcast shortest answers for every number of them")
    if gpus < 1:
        raise SpecError(f"--gpus {gpus} must be one or more")
    if cluster is not None and gpu is not None:
        raise SpecError(f"--cluster {cluster!r} names the machine already; leave --gpu out")
    budget = None if tokens is None else parse_count(tokens, "tokens")

    def asked(size: int) -> Scenario:
        """The question on so many GPUs."""
        assumed = []
        if framework is None:
            assumed.append(f"Megatron-LM as it is today (stack {DEFAULT}); --framework says otherwise")
        if gpu is None and cluster is None:
            assumed.append(f"cluster {CLUSTER}; --cluster or --gpu says otherwise")
        machine, notes = enlarged(cluster or CLUSTER, size) if gpu is None else (machine_of(gpu_named(gpu), size), ())
        fields = pretraining(size, budget, batch, length_named(seq), precision)
        return ask(model, machine, stack=framework or DEFAULT, training=fields, assumed=[*assumed, *notes])

    terms = terms_of(price, asked(gpus).cluster.node.gpus_per_node)
    with progress_bar("plans priced") as progress:
        found = plan_of(asked(gpus), gpus, terms, progress=progress)
    if not isinstance(found, Planned):
        sizes = (gpus << doublings for doublings in range(1, DOUBLINGS + 1))
        enough = next((size for size in sizes if isinstance(plan_of(asked(size), size), Planned)), None)
        more = f"{enough:,} GPUs are enough (--gpus {enough})" if enough else f"nor on {gpus << DOUBLINGS:,} GPUs"
        raise InfeasiblePlan(f"{lacking_of(found)}; {more}, or name a --gpu with more memory")
    scenario = found.answer.scenario
    if as_json:
        print_json({**found.to_dict(), **exported_as_json(scenario, export_to)})
    else:
        from sim.report.questions import planned_view, sentence_of

        then = [] if budget else ["Add --tokens 15T for the days and the cost of a run of so many tokens."]
        then += next_steps(output, export_to, framework or "megatron-lm")
        print_view(planned_view(found, sentence_of(found), then))
    write_files(scenario, output, export_to, as_json)


def length_named(text: str | None) -> int | None:
    """Tokens of `--seq 4k`."""
    from sim.units import parse_whole

    return None if text is None else parse_whole(text, "sequence_length")


def terms_of(price: str | None, node_gpus: int = 8) -> Terms:
    """The terms of a run at a price, or at the GPU's list price."""
    from sim.commands.options import RunOptions

    return RunOptions(price=price).terms(node_gpus)


def check_files(output: Path | None, export_to: str | None) -> None:
    """Refuse files and frameworks that cannot be written, before any work is done."""
    from sim.commands.search_options import check_files as check_output

    check_output({}, None, output)
    if export_to is not None:
        from sim.foreign.exporters import check_framework

        check_framework(export_to)


def next_steps(output: Path | None, export_to: str | None, framework: str) -> list[str]:
    """What to do with a plan, as far as it was not done: a sentence each."""
    from sim.foreign.exporters import FRAMEWORKS

    file = output or "best.yaml"
    written = "" if output else f"Add -o {file} to write this plan as a scenario. "
    words = framework if framework in FRAMEWORKS else "FRAMEWORK"
    exported = [] if export_to else [f"Add --export {words} to print the plan as the options of a framework."]
    further = f"flopcast estimate {file} says where a step's time goes, flopcast search {file} looks further."
    return [*exported, written + further]


def exported_as_json(scenario: Scenario, export_to: str | None) -> dict[str, Any]:
    """The plan in a framework's words, where one was named."""
    from sim.commands.search_files import exported

    return {} if export_to is None else {"export": exported(scenario, export_to)}


def write_files(scenario: Scenario, output: Path | None, export_to: str | None, as_json: bool) -> None:
    """Write the plan's scenario, and print it in a framework's words, where asked for."""
    from sim.commands.search_files import write_scenario

    if output is not None:
        write_scenario(output, scenario)
        if not as_json:
            typer.echo(f"\nThe best plan is in {output}")
    if export_to is not None and not as_json:
        from sim.commands.export import print_exported
        from sim.foreign.exporters import export_scenario

        typer.echo()
        print_exported(export_scenario(scenario, export_to))
