"""What is handed to others: the sdist holds what git tracks, and the wheel made of it answers without the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest
from tracked import tracked

pytestmark = pytest.mark.thorough  # that every file has its row of a licence: tests/test_licences.py

ROOT = Path(__file__).parents[1]
INSTALLED = {
    "sim": "sim", "sim/flopcast": "flopcast", "calibration": "flopcast_calibration",
    "validation": "flopcast_validation", "scenarios": "sim/scenarios",
}  # fmt: skip
"""Folders of the repository by the names that they have in a wheel."""
PICTURES_OF_DOCS = {"validation/job/results/two-core-epyc-unsteady.png", "validation/results/published-runs.png"}
"""What pages of the repository show and no code reads."""


def build(source: Path, kind: str, into: Path) -> Path:
    """A wheel or an sdist, by the backend that pyproject.toml names, without a network."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", code, str(into)], cwd=source, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return into / built.stdout.split()[-1]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """(names in the sdist, names in the wheel that is built of it, folder where that is unpacked)."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("packed")
    for path in tracked():
        (folder / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / "tree" / path)
    with tarfile.open(build(folder / "tree", "sdist", folder)) as archive:
        sources = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
        archive.extractall(folder / "sdist", filter="data")
    (source,) = (folder / "sdist").iterdir()
    with ZipFile(build(source, "wheel", folder)) as archive:
        archive.extractall(folder / "site")
        return sources, set(archive.namelist()), folder / "site"


def test_an_sdist_is_what_git_tracks(packed):
    made = {"PKG-INFO", "setup.cfg"}
    assert {name for name in packed[0] if not name.startswith("flopcast.egg-info/")} - made == set(tracked())


def test_a_wheel_takes_no_names_but_ours(packed):
    tops = {name.partition("/")[0] for name in packed[1]}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sim", *INSTALLED.values()} - {"sim/scenarios"}


def test_every_file_of_the_packages_is_in_the_wheel(packed):
    """With them what code reads; a folder's file that no code reads is named here."""
    homes = {path: max((home for home in INSTALLED if path.startswith(f"{home}/")), key=len, default="")
             for path in tracked()}  # fmt: skip
    wanted = {f"{INSTALLED[home]}{path.removeprefix(home)}" for path, home in homes.items()
              if home and path not in PICTURES_OF_DOCS}  # fmt: skip
    assert {name for name in packed[1] if ".dist-info/" not in name} == wanted


def test_licences_travel_with_the_wheel(packed):
    names = {name.partition(".dist-info/licenses/")[2] for name in packed[1]}
    assert {"LICENSE", "docs/licences.md"} <= names
    assert "flopcast_validation/published/README.md" in packed[1]  # sources and licences of the published runs


VERBS = {
    "estimate scenarios/gpt-1t-3072-a100.yaml": "493 PFLOP/s",
    "presets show scenarios/gpt3-175b-1024-a100.yaml": "model: gpt3-175b",
    "plan-pipeline scenarios/layers/vgg16-v100.csv --workers 4 --bandwidths 10Gbit/s": "vgg16-v100",
    "calibrate show a100": "max_efficiency",
    "calibrate fit calibration/data/dgx-a100-gemm.csv --node dgx-a100-80gb -o dgx.yaml": "dgx.yaml",
    "report scenarios/korthikanti-2022/22b-selective.yaml --no-search -o report.html": "report.html",
}
"""What is asked of the wheel, and a part of each answer."""
ELSEWHERE = """
import json, runpy, sys
from pathlib import Path

site, packages, verbs = sys.argv[1:]
sys.path[:0] = [site]
sys.path.append(packages)  # python -S leaves them out, and with them the .pth file of an editable install

from sim.__main__ import main

for verb in json.loads(verbs):
    print(f"$ {verb}", flush=True)
    sys.argv = ["flopcast", *verb.split()]
    try:
        main()
    except SystemExit as stopped:
        assert not stopped.code, (verb, stopped.code)

from flopcast_validation.claims import claims
from flopcast_validation.run import runs_tables

table = list(claims(only="Table 1"))
assert len(table) == 10 and all(claim.holds for claim in table), table
assert len(runs_tables()) > 50

ours = ("sim", "flopcast", "calibration", "validation", "flopcast_calibration", "flopcast_validation")
import flopcast

assert dir(flopcast) == sorted(flopcast.__all__)
assert "493 PFLOP/s" in repr(flopcast.estimate("scenarios/gpt-1t-3072-a100.yaml"))
assert flopcast.estimate is sys.modules["sim.estimate"].estimate
sys.argv = ["flopcast", "--version"]
try:
    runpy.run_module("flopcast", run_name="__main__")
except SystemExit as stopped:
    assert not stopped.code

files = {name: Path(module.__file__) for name, module in sys.modules.items() if name.partition(".")[0] in ours}
assert {name.partition(".")[0] for name in files} == {*ours} - {"calibration", "validation"}
assert all(path.is_relative_to(site) for path in files.values()), files
"""


def test_the_wheel_answers_without_the_checkout(packed, tmp_path):
    """From an empty folder, with the dependencies of this environment: README's first question, and what reads data."""
    packages = sysconfig.get_path("purelib")
    command = [sys.executable, "-S", "-c", ELSEWHERE, str(packed[2]), packages, json.dumps([*VERBS])]
    environment = {**os.environ, "PYTHONPATH": "", "COLUMNS": "120"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = dict(part.split("\n", 1) for part in done.stdout.split("$ ")[1:])
    assert [*answers] == [*VERBS]
    assert not {verb: answers[verb] for verb, says in VERBS.items() if says not in answers[verb]}
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
