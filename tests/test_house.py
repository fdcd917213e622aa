"""The house itself: style, types, floors, light imports, and a README that says what CI runs."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from prose import of_code, of_pages
from rows import forms
from tracked import tracked

import sim
from sim import estimate, load_scenario, simulate
from sim import flopcast as front
from sim.scaling.run import train

ROOT = Path(__file__).parent.parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("ruff", ("check", ".")),
        ("ruff", ("format", "--check", ".")),
        pytest.param("mypy", (), marks=pytest.mark.thorough),  # a minute where nothing is cached; make lint
        ("importlinter", ()),
    ],
    ids=["ruff check", "ruff format", "mypy", "import-linter"],
)
def test_the_house_is_tidy(module: str, arguments: tuple[str, ...]) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed")
    command = (
        (str(Path(sys.executable).parent / "lint-imports"),)
        if module == "importlinter"
        else (sys.executable, "-m", module, *arguments)
    )
    result = run(*command)
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_sim_is_light() -> None:
    code = (
        "import sys, sim, sim.cli; "
        "heavy = {'torch', 'pandas', 'matplotlib', 'scipy', 'numpy', 'pydantic'} & "
        "{name.partition('.')[0] for name in sys.modules}; "
        "import sim.commands.mcp; "
        "heavy |= {'mcp'} & {*sys.modules}; "
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr


def test_a_verb_loads_no_more_than_it_needs() -> None:
    """What an estimate has no use for is what its process would mostly spend its time on."""
    code = (
        "import sys, numpy, typer; theirs = {*sys.modules}; "  # older releases load more by themselves
        "sys.argv = ['flopcast', 'estimate', 'scenarios/gpt-1t-3072-a100.yaml', '--json']; "
        "from sim.__main__ import main; main(); "
        "unneeded = ('pandas', 'matplotlib', 'scipy', 'jinja2', 'numpy.random', 'rich.progress', 'rich.markdown', "
        "'rich.traceback', 'flopcast_calibration', 'flopcast_validation', 'sim.search', 'sim.scaling', 'sim.reliability', "
        "'sim.simulate', 'sim.foreign.importers', 'sim.report.figures', 'sim.commands.search'); "
        "loaded = [name for name in unneeded if name in {*sys.modules} - theirs]; "
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    assert "step_time_s" in result.stdout


def test_names_of_sim_are_loaded_from_their_homes_when_they_are_asked_for() -> None:
    code = (
        "import sys, sim; "
        "from sim import SpecError; "
        "assert not {'numpy', 'sim.specs'} & {*sys.modules}, 'an error needs no numbers'; "
        "import sim.estimate, sim.simulate, sim.search.space; "  # modules of the same names as functions
        "from sim import estimate, search, simulate; "
        "assert estimate is sys.modules['sim.estimate'].estimate; "
        "assert simulate is sys.modules['sim.simulate'].simulate; "
        "from sim.search import search as found, sweep; "
        "assert search is found is sim.search is sys.modules['sim.search.search'].search"
    )
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    assert set(sim.__all__) <= set(dir(sim))
    for name in sim.__all__:
        found = getattr(sim, name)
        assert not isinstance(found, ModuleType), name
        assert name == "ENGINES" or (found.__name__, found.__module__.partition(".")[0]) == (name, "sim")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sim.nothing  # noqa: B018


def test_ci_runs_the_readme_test_command() -> None:
    command = (ROOT / ".ci" / "run").read_text().partition("# README:test\n")[2].strip()
    assert command
    assert command in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("folder", ["calibration", "validation"])
def test_a_package_goes_by_one_name(folder: str) -> None:
    """The one it is installed under: from the repository's root Python would find the folder too, and load all twice."""
    modules = "|".join(sorted(path.stem for path in (ROOT / folder).iterdir() if path.suffix in ("", ".py")))
    by_folder = re.compile(
        rf"""(?:^|["';]) *(?:from|import) {folder}(?:[.;\s]|$)"""  # as Python, in a string too
        rf"|-m {folder}\b"  # as a command
        rf"""|["'`]{folder}\.(?:{modules})\b(?!\.html)""",  # as a name
        re.MULTILINE,
    )
    for path in tracked("*.py", "*.ipynb", "*.md", "*.toml"):
        lines = (ROOT / path).read_text(encoding="utf-8").replace("\\n", "\n")  # a notebook's, too
        assert not by_folder.findall(lines), path


def test_top_level_is_the_one_agreed() -> None:
    top = {path.partition("/")[0] for path in tracked() if not path.startswith(".")}
    folders = {"sim", "calibration", "notebooks", "validation", "scenarios", "tests", "benchmarks", "docs"}
    build = {"pyproject.toml", "setup.py", "MANIFEST.in", "Makefile", "Dockerfile", "mkdocs.yml"}
    pages = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SKILL.md", "LICENSE", "CITATION.cff"}
    assert top <= folders | build | pages


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_internal_link_exists(page: str) -> None:
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", (ROOT / page).read_text()):
        assert (ROOT / target).exists(), target


def test_contributing_names_what_is_there() -> None:
    """Paths and commands of the map and of its steps, and of the Makefile; names in capitals are the reader's own."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = text + (ROOT / "Makefile").read_text()
    paths = re.findall(r"(?<![\w/:])((?:sim|tests|calibration|validation|docs)/[\w./-]*\w)", named)
    missing = {path for path in paths if "NAME" not in path and not (ROOT / path).exists()}
    assert not missing
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {word for line in re.findall(r"make ((?:[a-z]+ ?)+)", text) for word in line.split()}
    assert {"install", "quick", "test", "lint", "docs", "goldens"} <= wanted & targets


def test_every_package_is_on_the_map() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    packages = {path.parent.name for path in (ROOT / "sim").glob("*/__init__.py")}
    assert not {name for name in packages if f"`sim/{name}`" not in text}


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("test_*.py")), ids=lambda path: path.stem)
def test_a_benchmark_can_be_imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(path.parent))
    runpy.run_path(str(path))


@forms("every", 5, 1)
def test_no_docstring_is_clipped_and_no_name_is_private(every):
    """In every fifth file; `make lint` reads all of them."""
    assert not of_code(every), "\n".join(of_code(every))


def test_no_sentence_of_a_page_is_long():
    assert not of_pages(), "\n".join(of_pages())


FILE = "scenarios/megatron-2021/1.7b.yaml"


def test_the_package_has_the_public_names_and_no_others():
    assert dir(front) == sorted([*sim.__all__, "__version__"])
    assert {name: getattr(front, name) for name in sim.__all__} == {name: getattr(sim, name) for name in sim.__all__}
    with pytest.raises(AttributeError, match="no attribute 'simulation'"):
        front.simulation  # noqa: B018


def test_a_path_and_one_override_are_taken_as_they_are():
    assert estimate(FILE).step_time_s == estimate(load_scenario(FILE)).step_time_s
    assert load_scenario(FILE, "plan.recompute=none") == load_scenario(FILE, ["plan.recompute=none"])


def test_records_and_results_print_themselves_in_a_line():
    scenario = load_scenario(FILE)
    parts = [getattr(scenario, name) for name in ("model", "cluster", "plan", "training", "stack", "profile")]
    answer = estimate(scenario)
    run = train(scenario, tokens=1e11)
    for each in (scenario, *parts, answer, answer.breakdown, simulate(scenario), run, run.run):
        assert "\n" not in repr(each)
        assert len(repr(each)) <= 200
    assert repr(scenario.plan) == str(scenario.plan) == "ParallelPlan(dp=32, microbatch_size=16, recompute='full')"
    assert repr(scenario).startswith("<Scenario 1.7b: gpt-1.7b on 32 × A100")
