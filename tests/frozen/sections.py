"""What is frozen, section by section: names of answers, and jobs that find them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import asdict
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import typer
import yaml

from flopcast_calibration.from_runs import predict
from flopcast_calibration.readers.training_runs import Run, read_training_runs
from flopcast_validation.claims import claims
from flopcast_validation.rl_runs import published_rates, published_steps
from flopcast_validation.run import published_runs
from flopcast_validation.runs.memory import score_memory
from sim import build_scenario, estimate, load_scenario, preset_names, simulate
from sim.cli import app
from sim.engines import ENGINES
from sim.specs import load_preset
from tests.frozen.asking import ROOT, ask, ask_json, counted, described, fields, folder
from tests.frozen.plans import random_plans
from tests.grammars.writing import KINDS, write
from tests.trees import CASES, TREES, on_tree

Jobs = dict[str, Callable[[], Any]]
SCENARIOS = ROOT / "scenarios"
TINY, SMALL = SCENARIOS / "megatron-2021/1.7b.yaml", SCENARIOS / "megatron-2021/39.1b.yaml"
FRAMEWORKS = ("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed")


def rows() -> Jobs:
    """Return the published rows that ship, as `flopcast validate` models them."""
    return _runs(published_runs())


def _runs(runs: Iterable[Run]) -> Jobs:
    """Return a job for every layout; rows of one layout share its answer."""
    layouts: dict[int, list[Run]] = {}
    skipped: dict[str, str] = {}
    for run in runs:
        if run.choices:
            layouts.setdefault(id(run.choices), []).append(run)
        else:
            skipped[run.id] = run.skipped or ""
    jobs: Jobs = {f"{len(skipped)} rows that are not modelled": lambda: skipped}
    for alike in layouts.values():
        jobs[", ".join(run.id for run in alike)] = partial(_row, alike[0])
    return jobs


def _row(run: Run) -> dict[str, Any]:
    return described(predict(run))


def scenarios() -> Jobs:
    """Return the scenarios that ship, by the engines, and with links shared."""
    jobs: Jobs = {}
    for path in sorted(SCENARIOS.rglob("*.yaml")):
        scenario = load_scenario(path)
        actions = scenario.plan.pp * scenario.plan.num_chunks * scenario.num_microbatches
        for engine in sorted(ENGINES):
            if actions < MOST_ACTIONS or engine == "dag":
                jobs[f"{path.relative_to(SCENARIOS)} {engine}"] = partial(_scenario, path, engine)
    return jobs


MOST_ACTIONS = 4000
"""Forwards of a step that engines which play every event are asked for."""


def _scenario(path: Path, engine: str) -> dict[str, Any]:
    answer = estimate(load_scenario(path), engine)
    return described(answer) | counted(answer)


def models() -> Jobs:
    """Return the model presets: counts, and the weights of every layer as those of a pipeline rank of its own."""
    return {name: partial(_model, name) for name in sorted(preset_names("models"))}


def _model(name: str) -> dict[str, Any]:
    length = min(4096, load_preset("models", name).get("max_sequence_length", 4096))
    training = {"global_batch_size": 4, "sequence_length": length, "precision": "bf16"}
    data = {"model": name, "cluster": "superpod-h100", "plan": {"tp": 1}, "training": training}
    whole = estimate(build_scenario(data))
    layers = whole.scenario.model.num_layers
    cut = estimate(build_scenario({**data, "plan": {"pp": layers, "recompute": "selective"}}))
    return {"whole": described(whole), "cut": described(cut), "counts": counted(cut)}


SEARCHES = {
    "GPT-3 175B": ["gpt3-175b-1024-a100", "--why", "own"],
    "one trillion": ["gpt-1t-3072-a100"],
    "Llama 3 405B": ["llama3-405b-16384-h100"],
    "experts": ["qwen3-235b-a22b-256-h100"],
    "experts, latent attention, 8 bits": ["papers/deepseek-v3-2048-h800"],
    "ZeRO stage 3": ["megatron-2021/7.5b", "-s", "stack={framework: torchtitan}",
                               "-s", "cluster=superpod-h100", "-s", "profile=h100"],
    "every schedule": ["megatron-2021/1.7b", "--gpus", "16", "--schedules", "all", "--pareto"],
    "layered": ["x160-38640-a100", "--schedules", "modular"],
    "several numbers of GPUs": ["megatron-2021/3.6b", "--gpus", "32..128", "--objective", "cost"],
    "32 GB, sensitivity": ["megatron-2019-8.3b-512-v100", "--sensitivity"],
    "layouts": ["megatron-2021/39.1b", "--layouts"],
    "sweep": ["megatron-2021/1.7b", "--sweep", "gpus=16,32", "--sweep", "training.global_batch_size=256,512"],
    "room": ["papers/glm-130b-768-a100", "--room", "modules,block,offload", "--memory-limit", "36GB"],
    "adapters": ["megatron-2021/39.1b", "--gpus", "8..16", "-s", "training.adapter_rank=16"],
    "Blackwell, 4 bits": ["papers/nemotron-4-340b-1536-h100", "-s", "cluster=superpod-b200", "-s", "profile=b200",
                          "-s", "training.precision=nvfp4", "--gpus", "512"],
    "AMD": ["megatron-2021/7.5b", "-s", "cluster={preset: generic-infiniband, node: mi300x-8}", "-s", "profile=datasheet", "--gpus", "64"],
}  # fmt: skip
"""Words after `search` by name."""


def searches() -> Jobs:
    """Return the best plans of searches, how they compare, and what is proven of them."""
    return {name: partial(ask_json, "search", SCENARIOS / f"{words[0]}.yaml", *words[1:])
            for name, words in SEARCHES.items()}  # fmt: skip


def imports() -> Jobs:
    """Return the scenarios of files of other tools: those of the tests, and ones written by the tests' grammars."""
    jobs: Jobs = {path.name: partial(_imported, path) for path in sorted((ROOT / "tests/foreign/files").iterdir())}
    return jobs | {f"{kind} {seed}": partial(_written, kind, seed) for seed in range(10) for kind in KINDS}


def _written(kind: str, seed: int) -> dict[str, Any]:
    name, text, _, options = write(kind, random.Random(seed))
    with folder() as path:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")
        return _imported(Path(name), options)


def _imported(path: Path, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a file says, and the step of the scenario that it makes."""
    given = dict(options or {})
    lists = {
        "arg": given.pop("args", ()),
        "env": [f"{name}={value}" for name, value in (given.pop("env", None) or {}).items()],
        "set": given.pop("set", ()),
    }
    words = [f"--{name}={value}" for name, value in given.items()]
    words += [f"--{name}={value}" for name, values in lists.items() for value in values]
    with chdir(path.resolve().parent):  # a long path would be cut in the description
        read = ask_json("import", path.name, *words)
    scenario = build_scenario(read["scenario"], where=path.name)
    answer = estimate(scenario)
    return {"read": read, "fields": fields(scenario), "step_time_s": answer.step_time_s, "bytes": answer.largest.total}


def exports() -> Jobs:
    """Return scenarios in every framework's words, those of shipped files and random ones, and read back."""
    jobs: Jobs = {f"{path.stem} {framework}": partial(_exported, path, framework)
                  for path in sorted(SCENARIOS.rglob("*.yaml")) for framework in FRAMEWORKS}  # fmt: skip
    return jobs | {f"random {seed} {name}": partial(_random, seed, name) for seed in range(12) for name in FRAMEWORKS}


def _exported(path: Path, framework: str) -> dict[str, Any]:
    told = ask_json("export", path, "--to", framework)
    scenario = load_scenario(path)
    endings = {"torchtitan": "toml", "deepspeed": "json"}
    options = {"gpus": scenario.plan.num_gpus} | ({"model": "llama3-8b"} if framework == "deepspeed" else {})
    with folder() as here:
        back = here / f"back.{endings.get(framework, 'sh')}"
        back.write_text(told["text"], encoding="utf-8")
        return {"exported": told, "read back": tried(partial(_imported, Path(back.name), options))}


def _random(seed: int, framework: str) -> dict[str, Any]:
    from random_scenarios import scenario_of

    scenario = scenario_of(framework, seed)
    with folder() as path:
        file = path / "random.yaml"
        file.write_text(yaml.safe_dump(scenario.model_dump(mode="json", exclude={"assumed"}, exclude_none=True)))
        return {"answer": described(estimate(scenario)), **_exported(file, framework)}


EXAMPLES: dict[str, Sequence[str | Path]] = {
    "estimate": [TINY], "compare": [TINY, SCENARIOS / "megatron-2021/3.6b.yaml"], "schedule": ["zb_v", "--ranks", "4"],
    "compare-schedules": [TINY, "-s", "plan.pp=2", "-s", "plan.dp=16"], "import": [ROOT / "tests/foreign/files/gpt3_175b.sh"],
    "export": [TINY, "--to", "megatron-lm"], "topology": ["selene"], "search": [TINY, "--gpus", "8"],
    "layout": [SMALL],
    "plan-pipeline": [SCENARIOS / "layers/vgg16-v100.csv", "--workers", "4", "--bandwidths", "10 Gbit/s"],
    "simulate": [SMALL, "--jitter", "0.02", "--seeds", "2", "--contention"], "train": [TINY, "--tokens", "10B"],
    "shortest": ["gpt-1.7b", "--cluster", "selene", "--tokens", "10B", "--gpus", "64"],
    "rl": [SCENARIOS / "qwen3-30b-a3b-rl-32-h100.yaml", "--rollout-gpus", "32", "--response", "4k", "--longest", "10k"],
    "fields": [], "presets list": [], "presets show": ["selene"],
    "scaling optimal": ["--budget", "1e24"], "scaling model": ["llama3-70b"], "scaling batch": ["llama3-70b"],
    "scaling fit": [ROOT / "tests/fuzz/losses.csv"], "scaling laws": [],
    "validate": ["--runs", ROOT / "tests/fuzz/runs.csv"], "validate rl": [], "anchor": [TINY, "--measured", "3.5 s"],
}  # fmt: skip
"""Words after a verb, of those that take --json."""
ELSEWHERE = {
    "validate job": "trains", "validate claims": "in claims",
}  # fmt: skip
DRAWN: dict[str, Sequence[str | Path]] = {
    "timeline": [SMALL, "-s", "plan.pp=4"],
    "timeline --trace": [SMALL, "-s", "plan.pp=2", "--trace", "trace.json"],
}
"""Words after verbs that draw; a file named trace.json is compared as well."""


def verbs() -> Jobs:
    """Return what every verb says with --json, of a small example, and its --help."""
    jobs: Jobs = {f"{name} --help": partial(_help, name) for name in _commands()}
    jobs |= {f"{name} --json": partial(_verb, name, words) for name, words in EXAMPLES.items()}
    jobs |= {name: partial(_drawn, name.split()[0], words) for name, words in DRAWN.items()}
    return jobs | {"verbs with --json and no example": lambda: sorted(_with_json() - {*EXAMPLES, *ELSEWHERE})}


def _verb(name: str, words: Sequence[str | Path]) -> Any:
    with folder():
        return ask_json(*name.split(), *words)


def _drawn(name: str, words: Sequence[str | Path]) -> list[Any]:
    with folder() as path:
        lines = ask(name, *words).splitlines()
        return [lines, *(json.loads(file.read_text(encoding="utf-8")) for file in path.glob("trace.json"))]


@cache
def _commands() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(command: Any, name: str) -> None:
        found[name] = command
        for below in command.list_commands(None) if hasattr(command, "list_commands") else ():
            walk(command.get_command(None, below), f"{name} {below}".strip())

    walk(typer.main.get_command(app), "")
    return found


def _with_json() -> set[str]:
    return {name for name, command in _commands().items() if any("--json" in each.opts for each in command.params)}


def _help(name: str) -> list[str]:
    """Return the words of a help text line by line, without the frames around them."""
    lines = (" ".join(line.replace("│", " ").split()) for line in ask(*name.split(), "--help").splitlines())
    return [line.strip("╭╮╰╯─ ") for line in lines if line.strip("╭╮╰╯─ ")]


def claimed() -> Jobs:
    """Return what papers claim beside our answers, by `flopcast validate claims` and `rl`."""
    return {
        "papers": lambda: {f"{claim.paper}: {claim.title}": claim.to_dict() for claim in claims()},
        "mechanisms": lambda: {f"{claim.paper}: {claim.title}": claim.to_dict() for claim in claims("mechanisms")},
        "rl steps": lambda: {step.name: step.predicted.to_dict() for step in published_steps()},
        "rl rates": lambda: [asdict(rate) for rate in published_rates()],
    }


def plans() -> Jobs:
    """Return random plans of every schedule, by the engines."""
    return random_plans(10)


def shared() -> Jobs:
    """Return what does not ship, or takes long: collected tables of runs and memory, public reports, networks."""
    jobs: Jobs = {f"1T, {tree}, {case}": partial(_shared_links, tree, case) for tree in TREES for case in CASES}
    place = shared_folder()
    if place is None:
        print("skipped: there is no folder ../shared with collected tables beside this checkout", file=sys.stderr)
    else:
        for path in sorted((place / "published").glob("memory_*.csv")):
            jobs[path.name] = partial(_memory, path)
        for path in sorted((place / "published").glob("training_runs*.csv")):
            jobs |= {f"{path.stem} {name}": job for name, job in _runs(read_training_runs(path)).items()}
        jobs |= {f"wild {path.stem}": partial(_scenario, path)
                 for path in sorted((place / "wild/cases").glob("*.yaml"))}  # fmt: skip
    return jobs


def shared_folder() -> Path | None:
    """Return the folder `shared` beside this checkout, or beside the one that it is a worktree of."""
    git = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"], cwd=ROOT, capture_output=True, text=True
    )
    roots = [ROOT, *([Path(git.stdout.strip()).parent] if git.returncode == 0 else [])]
    return next((root.parent / "shared" for root in roots if (root.parent / "shared").is_dir()), None)


def _shared_links(tree: str, case: str) -> float:
    """Return the step time of the 1T run on a tree of switches, links shared. [s]"""
    return float(simulate(on_tree(SCENARIOS / "gpt-1t-3072-a100.yaml", tree, case), contention=True).mean_s)


def _memory(path: Path) -> dict[str, Any]:
    return {f"row {outcome.row}": outcome.to_dict() for outcome in score_memory(path)}


def tried(job: Callable[[], Any]) -> Any:
    """Return a job's answer, or the words of the error that it ends with."""
    try:
        return job()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


SECTIONS: dict[str, Callable[[], Jobs]] = {
    "claims": claimed, "searches": searches, "rows": rows, "scenarios": scenarios, "models": models, "plans": plans,
    "imports": imports, "exports": exports, "verbs": verbs, "shared": shared,
}  # fmt: skip
"""By name, those whose jobs take longest first."""
EVERY = {"searches": 8, "rows": 6, "scenarios": 3, "models": 3, "plans": 3, "imports": 10, "exports": 12}
"""Of a section's jobs, how many one stands for in the suite's short form; verbs are worded by the release of typer."""


def sampled(name: str) -> Jobs:
    """Return every so manyth job of a section."""
    return dict(islice(SECTIONS[name]().items(), 0, None, EVERY[name]))
