"""`flopcast mcp`: the answers as tools for language models, by the Model Context Protocol (the extra `mcp`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, wraps
from typing import Annotated, Any

from sim.commands.fills import with_records
from sim.commands.options import finite
from sim.commands.plan import PRETRAINING, TUNING, ask_plan, ask_tuning, tuning_data
from sim.errors import FlopcastError, SpecError, nearest
from sim.scaling.finetuning import FineTuning
from sim.scaling.questions import Pretraining
from sim.specs import Scenario

INSTRUCTIONS = """flopcast predicts how fast a large language model trains on a GPU cluster, and why.
A scenario is YAML with the sections model, cluster, plan and training (and stack and profile if need be), or the name
of one that ships. A section may be a preset's name: `presets` lists them, `fields` says what can be set. `overrides`
are "plan.tp=4". Answers have the keys of `flopcast --json`; times are in seconds, and assumptions are listed."""


def mcp() -> None:
    """Serve the answers as tools of the Model Context Protocol, over standard input and output."""
    server().run("stdio")


def server() -> Any:
    """The server with its tools, if the SDK is installed."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise SpecError("flopcast mcp needs the MCP SDK: pip install 'flopcast[mcp]'") from None
    from sim import __version__

    made = MCPServer("flopcast", instructions=INSTRUCTIONS, version=__version__)
    for tool in (estimate, search, with_records(plan), with_records(finetune), train, check, presets, fields):

        @wraps(tool)
        def explained(*args: Any, tool: Any = tool, **given: Any) -> dict[str, Any]:
            try:
                return dict(finite(tool(*args, **given)))
            except FlopcastError as error:
                raise ToolError(str(error)) from None

        made.add_tool(explained)
    return made


def _scenario(text: str, overrides: Sequence[str]) -> Scenario:
    """A scenario of YAML, or by the name of one that ships."""
    from sim.files import shipped_scenarios
    from sim.specs import build_scenario, load_scenario
    from sim.specs.yaml12 import parse_yaml

    if ":" in text:
        return build_scenario(parse_yaml(text, "scenario"), overrides)
    shipped = shipped_scenarios()
    names = {path.stem: path for path in shipped.values()} | shipped
    if text.strip() not in names:
        raise SpecError(f"no scenario {text.strip()!r} ships, and it is no YAML{nearest(text.strip(), names)}")
    return load_scenario(names[text.strip()], overrides)


def estimate(scenario: str, overrides: list[str] | None = None) -> dict[str, Any]:
    """How long a training step takes, FLOP/s and MFU, where the time goes, and whether it fits in memory."""
    from sim import estimate

    return estimate(_scenario(scenario, overrides or ())).to_dict()


def search(scenario: str, overrides: list[str] | None = None, top: int = 3) -> dict[str, Any]:
    """The best plans that the scenario's framework can run, on the GPUs of its own plan or of its cluster; overrides of
    the plan ("plan.tp=8") are kept, and its other fields searched."""
    from sim import search
    from sim.search.plans.space import as_fixed

    of_plan = [each for each in overrides or () if each.startswith("plan.")]
    others = [each for each in overrides or () if each not in of_plan]
    given, fixed = as_fixed(_scenario(scenario, others), of_plan)
    return search(given, top=max(1, top), fixed=fixed).to_dict()


def plan(
    *,
    model: str,
    gpus: int | None = None,
    within: str | None = None,
    gpu: str | None = None,
    cluster: str | None = None,
    question: Annotated[partial[Pretraining], PRETRAINING],
    price: str | None = None,
) -> dict[str, Any]:
    """Without a scenario: the best plan to pre-train a model (a preset, a Hugging Face id, a config.json) on so many
    GPUs of a kind ("h100") or of a cluster preset, and what a run of so many tokens ("15T") takes; without gpu and
    cluster all kinds of GPUs with a list price side by side, the cheapest first. With within ("30d") the chance to end
    the run by then, or without gpus the fewest GPUs that do."""
    return ask_plan(model, gpus, within, gpu, cluster, question, price).to_dict()


def finetune(
    *,
    model: str,
    question: Annotated[partial[FineTuning], TUNING],
    gpus: int | None = None,
    gpu: str | None = None,
    price: str | None = None,
) -> dict[str, Any]:
    """Without a scenario: does fine-tuning a model on so many samples ("50k") fit, or what would make it fit; hours and
    cost. Without gpu or gpus, machines side by side, the cheapest first. lora is the rank of adapters."""
    return tuning_data(ask_tuning(model, gpus, gpu, question, price)[1])


def train(scenario: str, tokens: str, overrides: list[str] | None = None) -> dict[str, Any]:
    """Days, money and energy of a whole run of so many tokens ("15T"), with failures and checkpoints."""
    from sim.scaling.run import train
    from sim.units import parse_count

    return train(_scenario(scenario, overrides or ()), tokens=parse_count(tokens, "tokens")).to_dict()


def check(scenario: str, step_times_s: list[float], overrides: list[str] | None = None) -> dict[str, Any]:
    """Is a run normal? Its measured step times beside the estimate, and what to look at first if they differ."""
    from sim.check import check, measure

    if not all(0 < each < 1e9 for each in step_times_s) or not step_times_s:
        raise SpecError(f"step_times_s = {step_times_s!r:.80} must be times above zero, in seconds")
    changes = overrides or []
    return check(lambda more: _scenario(scenario, [*changes, *more]), measure(step_times_s)).to_dict()


def presets(kind: str) -> dict[str, Any]:
    """Names that ship of one kind: gpus, nodes, clusters, models, frameworks, stacks, profiles or scenarios."""
    from sim.files import shipped_scenarios
    from sim.specs.presets import KINDS, preset_names

    if kind not in (*KINDS, "scenarios"):
        raise SpecError(f"unknown kind of preset {kind!r}{nearest(kind, (*KINDS, 'scenarios'))}")
    return {kind: list(shipped_scenarios() if kind == "scenarios" else preset_names(kind))}


def fields(section: str) -> dict[str, Any]:
    """What can be set in a section of a scenario (model, cluster, plan, training, stack, ...), and what it means."""
    from sim.report.field_reference import scenario_sections

    sections = {each.path: each for each in scenario_sections()}
    if section not in sections:
        raise SpecError(f"unknown section {section!r}{nearest(section, sections)}")
    return {field.path: field.meaning for field in sections[section].fields}
