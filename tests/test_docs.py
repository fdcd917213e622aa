"""Commands and snippets of README.md and docs/ are run, and show what comes out; so are CONTRIBUTING's diffs."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
import typer
from rows import forms
from shown import FENCE, FILES_FIRST, files_of, printed_by, shown_in, verbs
from typer.testing import CliRunner

import flopcast_calibration
from sim.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DATA = Path(flopcast_calibration.__file__).parent / "data"
ELSEWHERE = {
    "calibrate run": "minutes of measuring; tests/calibration and notebooks/04_calibrate.ipynb run its suite",
    "calibrate from-runs": "many fits; tests/calibration/test_from_runs.py", "validate": "tests/validation",
    "scaling": "tests/scaling/test_loss_laws.py runs the README's",
    "import": "files of the reader's own; tests/foreign reads ones like them", "shape": "tests/scaling/test_shape.py",
    "shortest": "tests/scaling", "report": "tests/report; it searches",
    "mcp": "tests/test_mcp.py; it waits for a client",
}  # fmt: skip
"""Verbs that tests of their own run: here only their options are looked for."""
QUICK = (
    "validate --runs runs.csv --every",
    "import config.json --gpus 64 --cluster superpod-h100 -o mine.yaml -s training.sequence_length=8k "
    "-s training.global_batch_size=512 -s training.tokens=1T",
)
"""Commands of theirs that run here all the same."""
SMALL = "scenarios/megatron-2021/39.1b.yaml"
TINY = "scenarios/megatron-2021/1.7b.yaml"
LIGHTER = {
    "--seeds 20": "--seeds 2",
    "calibration/data/azure-a100-all-reduce.csv -o": "--draws 2 -o",
    "gemm.csv -o mine.yaml": "gemm.csv --draws 2 -o mine.yaml",
    "timeline scenarios/gpt3-175b-1024-a100.yaml": f"timeline {SMALL}",
    "rl scenarios/qwen3-30b-a3b-rl-32-h100.yaml --gpus 64": "rl scenarios/qwen3-30b-a3b-rl-32-h100.yaml --gpus 48",
    "--figure schedules.png": "--figure schedules.png --schedules 1f1b,zb_v",
    "compare-schedules scenarios/gpt3-175b-1024-a100.yaml": f"compare-schedules {SMALL}",
    "bandwidth=25..800Gbit/s": "bandwidth=25..50Gbit/s",
    "plan.cp=[1,2,4]": "plan.cp=[1,2]",
    "-s 'plan.ep=[8,16,32]' --why": "-s 'plan.ep=[8,16]' --room none --why",
    "search scenarios/qwen3-235b-a22b-256-h100.yaml --why plan.recompute_modules=moe_act,layernorm": f"search {SMALL} --why plan.recompute_modules=mlp",
    "simulate scenarios/gpt-1t-3072-a100.yaml --contention": f"simulate {SMALL} --contention",
    "simulate scenarios/gpt-1t-3072-a100.yaml --link-down": f"simulate {SMALL} --link-down",
    "search scenarios/gpt-1t-3072-a100.yaml --room": f"search {SMALL} --room",
    "search scenarios/gpt-1t-3072-a100.yaml --why plan.tp=8 --why plan.pp=64": f"search {SMALL} --why plan.tp=8 --why plan.pp=4",
    "search scenarios/gpt-1t-3072-a100.yaml": f"search {TINY}",
    "search scenarios/gpt3-175b-4096-a100.yaml -s plan": f"search {TINY} -s stack=megatron-core -s plan",
    "search scenarios/gpt3-175b-4096-a100.yaml": f"search {TINY} -s training.tokens=300e9",
    "search scenarios/gpt3-175b-1024-a100.yaml": f"search {TINY} -s training.tokens=300e9",
    "--gpus 64..4096 --objective": "--gpus 16..32 --objective",
    "--gpus 256..1024": "--gpus 16..32",
    "gpus=256..1024": "gpus=16..32",
    "--sweep gpus=64..1024": "--sweep gpus=16,32",
    "search scenarios/llama3-405b-16384-h100.yaml --export": f"search {SMALL} -s training.precision=bf16 --export",
    "search scenarios/llama3-405b-16384-h100.yaml": f"search {SMALL}",
    "search scenarios/papers/deepseek-v3-2048-h800.yaml": f"search {TINY}",
    "--schedules all": "--schedules zb_v,v_half",
    "--samples 50k --lora": "--samples 50k --lora --gpu l40s",
    "anchor scenarios/gpt3-175b-1024-a100.yaml --measured '33 s'": f"anchor {TINY} --measured '3.3 s'",
}
"""Words of a command, and those that ask for less of the same; benchmarks/ and tests/search run the large ones."""
SHOWN_ELSEWHERE = {
    "validate rl": "tests/validation/test_rl_runs.py",
    "finetune qwen2.5-7b --gpus 2 --gpu rtx4090 --samples 50k": "tests/scaling/test_questions.py",
}
"""Commands whose output another test compares with the page."""
SLOW = (
    "plan llama3-8b --gpus 64",
    "plan llama3-70b --gpu h100 --tokens 2T --within 30d",
    "shortest llama3-70b",
    "finetune qwen2.5-7b --gpus 8 --samples 50k --lora",
    "calibrate matters",
    "validate claims",
)
"""Commands whose output is compared in the thorough form alone: searches of every machine, or of every value."""
QUESTIONS = (
    "search", "simulate", "timeline", "compare-schedules", "calibrate", "topology", "train", "plan", "finetune", "rl",
    "compare", "check", "anchor", "layout", "plan-pipeline", "estimate", "presets", "fields",
)  # fmt: skip
"""Verbs that tests of their own run: in the short form their options are looked for."""
HERE = {
    "from distributed import Client": "from concurrent.futures import ThreadPoolExecutor as Client",
    'Client("tcp://scheduler:8786")': "Client(1)",
    "client.get_executor()": "client",
    'gpt3-175b-4096-a100.yaml"), "cluster': 'megatron-2021/1.7b.yaml"), "cluster',
}
"""What a page takes from the reader's cluster, and what stands in for it here; tests/test_estimate.py asks Dask itself."""


def blocks(page, language):
    return [found[3] for found in FENCE.finditer(page.read_text(encoding="utf-8")) if found[1] == language]


def commands(page):
    """Lines of bash blocks that call flopcast, without what follows a #."""
    lines = [line.strip() for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("flopcast ")]


@pytest.fixture
def workplace(tmp_path):
    """A folder as a reader has it: the repository's, with the files that the pages speak of."""
    folder = tmp_path
    for name in ("scenarios", "docs", "notebooks", "calibration", "README.md"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "all_reduce.log").symlink_to(DATA / "dgx-a100-all-reduce.txt")
    (folder / "gemm.csv").symlink_to(DATA / "dgx-a100-gemm.csv")
    return folder


def is_elsewhere(line, left_out):
    """Whether tests of its own run a command, or the whole form of this one does: a long question that writes nothing."""
    long = line.startswith(left_out) and not {"-o", "--export"} & {*line.split()}
    return long or any(line == verb or line.startswith(f"{verb} ") for verb in ELSEWHERE)


@pytest.mark.slow
@forms("left_out", QUESTIONS, ())
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run(page, workplace, monkeypatch, left_out):
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("COLUMNS", "80")
    for name, text in files(page).items():
        (workplace / name).write_text(text, encoding="utf-8")
    run, shown = CliRunner(), {each.line for each in shown_in(page.read_text(encoding="utf-8"))}
    for words in commands(page):
        line = " ".join(words)
        if {line, shlex.join(words)} & shown and not {"-o", "--export"} & {*words}:
            continue  # test_commands_show_what_is_printed runs it
        if line in QUICK or not is_elsewhere(line, left_out):
            line = shlex.join(words)
            for text, less in LIGHTER.items():
                line = line.replace(text, less)
            result = run.invoke(app, shlex.split(line))
            assert result.exception is None, f"flopcast {line}: {result.exception}"
        else:
            options = [word.partition("=")[0] for word in words if word.startswith("--")]
            missing = [option for option in options if option not in helps(run, words)]
            assert not missing, f"flopcast {line}: no option {missing[0]}"


def helps(run, words):
    """The help texts of a verb and of what is below it."""
    verbs = [word for word in words[:3] if re.fullmatch(r"[a-z][a-z-]*", word)]
    return "".join(help_of(run, *verbs[:depth]) for depth in (1, 2, 3))


HELP: dict = {}


def help_of(run, *verbs):
    if verbs not in HELP:
        HELP[verbs] = run.invoke(app, [*verbs, "--help"], env={"COLUMNS": "300"}).output
    return HELP[verbs]


@pytest.fixture
def undone():
    """Schedules and engines that pages register are forgotten again."""
    from sim import ENGINES
    from sim.schedules import registry

    engines, names = dict(ENGINES), dict(registry._REGISTRY)
    yield
    for known, before in ((ENGINES, engines), (registry._REGISTRY, names)):
        known.clear()
        known.update(before)


@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run_and_print_what_is_shown(page, workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    for name, text in files(page).items():
        (workplace / name).write_text(text, encoding="utf-8")
    names = {"__name__": "__main__"}
    found = list(FENCE.finditer(page.read_text(encoding="utf-8")))
    for block, after in zip_longest(found, found[1:]):
        if block[1] != "python":
            continue
        code = block[3]
        for text, here in HERE.items():
            code = code.replace(text, here)
        exec(compile(code, str(page), "exec"), names)
        printed = capsys.readouterr().out
        if after is not None and after[1] == "text" and not after[2]:
            assert printed.rstrip().splitlines() == after[3].rstrip().splitlines()


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_links_between_pages_exist(page):
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", prose):
        assert (page.parent / target).exists(), target


@pytest.mark.slow
@forms("left_out", SLOW, ())
def test_commands_show_what_is_printed(workplace, monkeypatch, left_out):
    """Written anew by python -m tests.shown."""
    monkeypatch.chdir(workplace)
    shown = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, file in files(page).items():
            (workplace / name).write_text(file, encoding="utf-8")
        for line in (" ".join(words) for words in commands(page)):
            if line.startswith(FILES_FIRST):
                printed_by(line)
        outputs = {}
        for each in shown_in(text):
            if each.line in SHOWN_ELSEWHERE or each.line.startswith(left_out):
                continue
            asked = each.line, each.columns
            outputs[asked] = printed = outputs.get(asked) or printed_by(*asked)
            assert each.text in printed if each.part else each.text == printed, f"{page.name}: flopcast {each.line}"
            shown += 1
    assert shown > 12


def files(page):
    return files_of(page.read_text(encoding="utf-8"))


@forms("run", False, True)
def test_every_help_text_teaches_by_examples_that_work(workplace, monkeypatch, run):
    """All are understood; in the whole form those that no page shows run, unless their verb is tested elsewhere."""
    monkeypatch.chdir(workplace)
    for name, text in files(ROOT / "docs" / "validation.md").items():
        (workplace / name).write_text(text, encoding="utf-8")
    tree = typer.main.get_command(app)
    shown = {shlex.join(words) for page in PAGES for words in commands(page)}
    for path, command in verbs(tree):
        lines = [line for line in (command.epilog or "").split("\n\n")[1:] if line.startswith("flopcast ")]
        assert lines, f"flopcast {' '.join(path)} --help shows no example"
        for line in lines:
            words = shlex.split(line.partition("|")[0])[1:]
            assert tuple(words[: len(path)]) == path
            command.make_context(path[-1], words[len(path) :])
            text = shlex.join(words)
            if run and text not in shown and not is_elsewhere(text, ()):
                for heavy, less in LIGHTER.items():
                    text = text.replace(heavy, less)
                result = CliRunner().invoke(app, shlex.split(text))
                assert result.exception is None, f"{line}: {result.exception}"


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFFS = re.findall(r"^```diff\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE)
ZERO_3 = {
    "cluster": "ethernet-25", "plan.tp": 1, "plan.pp": 1, "plan.dp": 1024, "plan.zero_stage": 3, "plan.num_chunks": 1,
    "plan.schedule": "1f1b", "plan.microbatch_size": 1, "plan.sequence_parallel": False,
    "training.global_batch_size": 1024,
}  # fmt: skip
OF_COMMITS = re.findall(r'^```diff title="(\w+: [^"]+)"\n(.*?)^```$', CONTRIBUTING, re.DOTALL | re.MULTILINE)
EXERCISES = {
    "fused_residual_norm": {},
    "quantised_gathers": ZERO_3,
    "muon_all_to_all": {"training.optimizer": "muon", "plan.zero_stage": 1},
}
"""Field of the stack -> settings of a scenario in which it matters."""
TIMES = """
import json, sys
from sim import estimate, load_scenario
path, field, settings = json.loads(sys.argv[1])
steps = [estimate(load_scenario(path, [*settings, f"stack.{field}={on}"])).step_time_s for on in ("false", "true")]
print(json.dumps([*steps, estimate(load_scenario(path, settings)).step_time_s]))
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="diffs are applied by git")
@pytest.mark.parametrize(
    ("field", "diff"),
    [pytest.param(field, diff, marks=[pytest.mark.thorough] * (field != "quantised_gathers"))
     for field, diff in zip(EXERCISES, DIFFS, strict=True)],
    ids=EXERCISES,
)  # fmt: skip
def test_a_mechanism_is_a_field_and_one_place(field, diff, tmp_path):
    shutil.copytree(ROOT / "sim", tmp_path / "sim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "scenarios", tmp_path / "scenarios")
    subprocess.run(["git", "apply"], input=diff, text=True, cwd=tmp_path, check=True)
    changed = re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE)
    assert len(changed) == 2
    assert "sim/specs/stack.py" in changed
    settings = [f"{name}={json.dumps(value)}" for name, value in EXERCISES[field].items()]
    asked = json.dumps(["scenarios/gpt3-175b-1024-a100.yaml", field, settings])
    command = [sys.executable, "-c", TIMES, asked]
    off, on, default = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert on < off == default
    if field == "quantised_gathers":
        said = re.search(r"takes ([\d.]+) s a step instead of ([\d.]+)\.\n", CONTRIBUTING)
        assert said.groups() == (f"{on:.1f}", f"{off:.1f}")


@pytest.mark.parametrize(("title", "diff"), OF_COMMITS, ids=[title for title, _ in OF_COMMITS])
def test_what_a_commit_added_is_still_there(title, diff):
    lines: list[str] = []
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            path = line.removeprefix("+++ b/")
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        elif line.strip() != "…":  # lines that are left out
            assert line[1:] in lines, f"{title}: {path} no longer has {line[1:]!r}: show another diff"


def test_each_kind_of_addition_is_shown_by_a_diff():
    assert len(OF_COMMITS) >= 4
