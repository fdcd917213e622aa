"""`flopcast plan`: which plan trains a model on a machine, how long the run takes and what it costs, without a file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.commands import completion as complete
from sim.commands.options import Json, PriceOption, RunOptions, with_records
from sim.commands.output import print_json, print_view
from sim.commands.progress import progress_bar, spinner
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


@dataclass(frozen=True, slots=True)
class HowOptions:
    """How a model is trained, all of which has a default."""

    batch: Annotated[str | None, typer.Option(help="Sequences a step (512), or tokens (4M).")] = None
    seq: Annotated[str | None, typer.Option(help="Tokens a sequence, such as 8k.")] = None
    framework: Annotated[
        str | None,
        typer.Option(
            help="megatron-lm, torchtitan, deepspeed, pytorch-fsdp, ...", autocompletion=complete.preset("frameworks")
        ),
    ] = None
    precision: Annotated[
        str | None, typer.Option(help="bf16, fp16, fp8, ...; bf16 where the GPU has it if not given.")
    ] = None
    price: PriceOption = None

    @property
    def length(self) -> int | None:
        """Tokens of a sequence."""
        from sim.units import parse_whole

        return None if self.seq is None else parse_whole(self.seq, "sequence_length")

    def terms(self, node_gpus: int = 8) -> Terms:
        """The terms of a run at the price given, or at the GPU's list price."""
        return RunOptions(price=self.price).terms(node_gpus)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What becomes of the best plan.

    Raises
    ------
    SpecError
        A file or a framework to which it could not be written: this is said before anything is computed.
    """

    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="YAML", help="Write the best plan as a scenario.")
    ] = None
    export_to: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="FRAMEWORK",
            help="Also the plan as a framework's options: megatron-lm, megatron-bridge, torchtitan or deepspeed.",
            autocompletion=complete.frameworks_to_export_to,
        ),
    ] = None
    as_json: Json = False

    def __post_init__(self) -> None:
        from sim.commands.search_options import check_files

        check_files({}, None, self.output)
        if self.export_to is not None:
            from sim.foreign.exporters import check_framework

            check_framework(self.export_to)

    def next_steps(self, framework: str) -> list[str]:
        """What to do with a plan of a framework, as far as it was not done: a sentence each."""
        from sim.foreign.exporters import FRAMEWORKS

        file = self.output or "best.yaml"
        words = framework if framework in FRAMEWORKS else "FRAMEWORK"
        exported = [f"Add --export {words} to print the plan as the options of a framework."]
        written = "" if self.output else f"Add -o {file} to write this plan as a scenario. "
        further = f"flopcast estimate {file} says where a step's time goes, flopcast search {file} looks further."
        return [*(exported if self.export_to is None else []), written + further]

    def show(self, scenario: Scenario, data: dict[str, Any], view: Any) -> None:
        """Print the answer, as JSON or for eyes, then write the best plan's scenario where it was asked for."""
        from sim.commands.search_files import write_scenario
        from sim.foreign.exporters import export_scenario

        if self.as_json:
            said = {} if self.export_to is None else {"export": export_scenario(scenario, self.export_to).to_dict()}
            print_json({**data, **said})
        else:
            print_view(view)
        if self.output is not None:
            write_scenario(self.output, scenario)
        if self.output is not None and not self.as_json:
            typer.echo(f"\nThe best plan is in {self.output}")
        if self.export_to is not None and not self.as_json:
            from sim.commands.export import print_exported

            typer.echo()
            print_exported(export_scenario(scenario, self.export_to))


@with_records
def plan(
    *,
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
    how: HowOptions,
    then: PlanOptions,
) -> None:
    """Which plan is the best for a model on so many GPUs, how long its run takes and what it costs."""
    from sim.commands.search_options import check_numbers
    from sim.report.questions import planned_view, sentence_of
    from sim.scaling.questions import NothingFits, ask, enlarged, plan_of, pretraining
    from sim.specs.frameworks import DEFAULT
    from sim.specs.machines import choice_among, gpu_named, machine_of
    from sim.units import parse_count

    if gpus is None:
        raise SpecError("on how many GPUs? Give --gpus 512; flopcast shortest answers for every number of them")
    if cluster is not None and gpu is not None:
        raise SpecError(f"--cluster {cluster!r} names the machine already; leave --gpu out")
    check_numbers(gpus=gpus)
    budget = None if tokens is None else parse_count(tokens, "tokens")
    assumed = []
    framework = how.framework or then.export_to
    if framework is None:
        assumed.append(f"Megatron-LM as it is today (stack {DEFAULT}); --framework says otherwise")
    if gpu is None and cluster is None:
        assumed.append(f"cluster {CLUSTER}; --cluster or --gpu says otherwise")
    if gpu is not None:
        assumed += filter(None, [choice_among(gpu)])

    def asked(size: int) -> Scenario:
        """The question on so many GPUs."""
        machine, notes = enlarged(cluster or CLUSTER, size) if gpu is None else (machine_of(gpu_named(gpu), size), ())
        fields = pretraining(size, budget, how.batch, how.length, how.precision)
        return ask(model, machine, stack=framework or DEFAULT, training=fields, assumed=[*assumed, *notes])

    first = asked(gpus)
    try:
        with progress_bar("plans priced") as progress:
            terms = how.terms(first.cluster.node.gpus_per_node)
            found = plan_of(first, gpus, terms, export_to=then.export_to, progress=progress)
    except NothingFits as error:
        with spinner("looking for how many GPUs are enough"):
            enough = _enough(asked, gpus)
        raise InfeasiblePlan(f"{error}; {enough}") from None
    steps = [] if budget else ["Add --tokens 15T for the days and the cost of a run of so many tokens."]
    steps += then.next_steps(framework or "megatron-lm")
    then.show(found.answer.scenario, found.to_dict(), planned_view(found, sentence_of(found), steps))
    if not found.result.finished:
        raise KeyboardInterrupt


def _enough(asked: Callable[[int], Scenario], gpus: int) -> str:
    """How many GPUs are enough for a question that does not fit."""
    from sim.scaling.questions import plan_of

    for size in (gpus << doublings for doublings in range(1, DOUBLINGS + 1)):
        with suppress(InfeasiblePlan):
            plan_of(asked(size), size)
            return f"on {size:,} GPUs one does (--gpus {size})"
    return f"nor does one on {gpus << DOUBLINGS:,} GPUs: name a --gpu with more memory"
