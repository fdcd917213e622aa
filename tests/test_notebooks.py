"""Every notebook runs from top to bottom, and its committed outputs hold no error."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest
from rows import mostly_thorough

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
LIGHTER = {
    "02_layered_accumulation": {
        "SIZES = (1, 2, 4)": "SIZES = (1,)", "CARDS = (25, 100, 200, 400)": "CARDS = (25, 400)",
        "COUNTS = (4, 8, 16, 32, 64, 128)": "COUNTS = (8, 32)", '("full", "selective", "none"):\n                for': '("full",):\n                for',
        "for gbits in (200, 100, 25)]": "for gbits in (200,)]", "for batch in (16, 64)": "for batch in (16,)",
        "        (1, 2, 4),\n": "        (2,),\n", '((1, {}), (3, {"reshard_after_forward": False}), (3, {}))': "((1, {}),)",
        "for count in (8, 16, 32)": "for count in (8,)", "for count in (4, 8, 16, 32, 64)": "for count in (4,)",
    },
    "03_schedules": {"COUNTS = (4, 8, 16, 32, 64)": "COUNTS = (4, 16)"},
    "04_calibrate": {'pick_device("auto")': 'pick_device("cuda")', "draws=5": "draws=1"},
    "05_shortest_training": {"(256, 32768)": "(16384, 32768)", "(20e6)": "(90e6)", "(400, 100, 25)": "(25,)",
        "in limits.items():\n    other = goal_of(PARAMS, tokens=TOKENS, critical_batch=critical)\n    best": "in [*limits.items()][:2]:\n    other = goal_of(PARAMS, tokens=TOKENS, critical_batch=critical)\n    best",
    },
    "06_which_plan": {
        '"gpt-1t-3072-a100.yaml"': '"megatron-2021" / "39.1b.yaml"', "(384, 3072)": "(64, 512)", "25..400": "25..50",
    },
}  # fmt: skip
"""Words of a notebook, and those that ask for less of the same: tests/search and tests/scaling ask for more, and
tests/calibration measures, which on a busy machine takes longer than the notebook waits."""


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def lighter(path):
    """The sources of its cells, which ask for less."""
    sources = ["".join(cell["source"]) for cell in code_cells(path)]
    for text, less in LIGHTER.get(path.stem, {}).items():
        assert any(text in source for source in sources), text
        sources = [source.replace(text, less) for source in sources]
    return sources


SHORT = ("01_one_trillion",)
"""What runs in every suite; tests/search, tests/report, tests/scaling and tests/calibration ask of less what others do."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_imports_is_there(path):
    for node in ast.walk(ast.parse("\n".join(lighter(path)))):
        if isinstance(node, ast.ImportFrom) and node.module != "ipywidgets":  # which notebooks can do without
            module = importlib.import_module(node.module)
            missing = [each.name for each in node.names if not hasattr(module, each.name)]
            assert not missing, f"{node.module} has no {missing[0]}"


@pytest.mark.parametrize(
    "path", mostly_thorough(NOTEBOOKS, {path for path in NOTEBOOKS if path.stem in SHORT}), ids=lambda path: path.stem
)
def test_notebook_runs(path, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(path.parent)
    names: dict = {"__name__": "__main__"}
    exec(compile("\n".join(lighter(path)), str(path), "exec"), names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_outputs_are_there_and_small(path):
    outputs = [output for cell in code_cells(path) for output in cell["outputs"]]
    assert outputs
    assert not any(output["output_type"] == "error" for output in outputs)
    assert path.stat().st_size < 300_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem != "04_calibrate"], ids=lambda path: path.stem
)
def test_committed_words_are_what_it_prints(path, monkeypatch, capsys):
    """The other notebook measures this machine; how long a cell took differs from run to run."""
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(path.parent)
    names: dict = {"__name__": "__main__"}
    for cell in code_cells(path):
        exec(compile("".join(cell["source"]), str(path), "exec"), names)
        printed, shown = capsys.readouterr().out, [each for each in cell["outputs"] if each.get("name") == "stdout"]
        untimed = [re.sub(r"in \d+\.\d s", "in … s", words) for words in (printed, "".join(map(text_of, shown)))]
        if "sliders" not in untimed[1]:
            assert untimed[0] == untimed[1]


def text_of(output):
    return "".join(output["text"])
