"""The command line as a user meets it: text, JSON with stable keys, exit codes, pipes; never a traceback."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sim import load_scenario
from sim.commands.options import any_preset
from sim.commands.reference import show_preset
from sim.errors import SpecError
from sim.files import shipped_scenarios
from tests.rows import rows
from tests.typed import typed as flopcast

ROOT = Path(__file__).parent.parent
MAIN = "scenarios/gpt-1t-3072-a100.yaml"
KEYS = {
    "scenario", "engine", "num_gpus", "params", "active_params", "num_microbatches", "step_time_s", "step_time_interval_s", "tokens_per_s",
    "model_flop_per_s_per_gpu", "hardware_flop_per_s_per_gpu", "total_flop_per_s", "peak_flop_per_s_per_gpu", "mfu", "mfu_causal", "hfu",
    "bubble_fraction", "training_days", "fits", "memory", "breakdown", "profile", "stack", "framework", "framework_version", "grade", "would_raise", "interval_basis", "interval_parts", "open_facts", "plan", "assumptions",
}  # fmt: skip


def started(*arguments, **options):
    """`flopcast …` as a process of its own, where it matters that it is one."""
    command = [sys.executable, "-m", "sim", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, **options)
    assert "Traceback" not in result.stderr, result.stderr
    return result


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_estimate_answers_the_main_question_in_any_terminal(columns):
    result = flopcast("estimate", MAIN, env={"COLUMNS": str(columns), "PATH": ""})
    assert result.returncode == 0
    for part in ("PFLOP/s", "Where the time goes", "Memory by pipeline", "Assumptions", "days", "fits", "56."):
        assert part in result.stdout  # the numbers are never cut
    assert columns != 80 or all(len(line) <= 80 for line in result.stdout.splitlines())


def test_estimate_json_has_the_documented_keys():
    answer = json.loads(flopcast("estimate", MAIN, "--json").stdout)
    assert set(answer) == KEYS
    page = (ROOT / "docs" / "answers.md").read_text()
    assert all(f"`{key}`" in page for key in KEYS)
    assert all(f"`{cause}`" in page for cause in answer["breakdown"])
    assert sum(answer["breakdown"].values()) == pytest.approx(answer["step_time_s"], rel=1e-9)
    assert answer["num_gpus"] == 3072
    assert len(answer["memory"]["ranks"]) == 64


TYPED = """
2 | estimate nowhere.yaml | no scenario file
2 | search MAIN --top 10000000000000000 | must be at most 10,000
2 | estimate llama3-70b | it is a model: flopcast plan llama3-70b
2 | estimate MAIN --set plan.tp=7 | must divide
2 | estimate MAIN --engine fast | choose from dag, des
2 | estimate MAIN --profile nope | unknown profile preset
2 | estimate MAIN -s plan.schedule=1f1 | did you mean '1f1b'?
3 | estimate MAIN -s plan.recompute=none -s plan.pp=8 -s plan.dp=48 | largest part is … would help: plan.
2 | estimate MAIN -s training.global_batch_size=600000 -s plan.schedule=gpipe | 12,800,000 actions
0 | estimate MAIN -s training.global_batch_size=600000 | PFLOP/s
0 | schedule 1f1b --ranks 2 --microbatches 2 | rank 0 | 0F0 0F1 0B0 0B1 rank 1 | 1F0 1B0 1F1 1B1
0 | simulate MAIN SMALLER --link-down node3.nic0 --straggler 1.2@rank1 | Step without noise … Network … nic up … Busiest links
2 | simulate MAIN --straggler 1.2@rank64 | 0 to 63
2 | schedule interleaved --microbatches 7 | nearest: 8
2 | schedule gpipe --chunks 2 | holds one chunk a rank
2 | schedule 1f1 | did you mean '1f1b'?
2 | schedule 1f1b --slices 2 | takes no plan.sequence_slices; seq1f1b would
2 | schedule nowhere/mine.txt | cannot be read
2 | schedule README.md | is not an action
2 | timeline MAIN --figure step.pdf | must end in .png
2 | plan-pipeline VGG --workers 4x4 --bandwidths '1 GB/s' | has 1 values
2 | plan-pipeline VGG --workers many --bandwidths '1 GB/s' | workers such as 16
3 | plan-pipeline VGG --workers 4 --bandwidths '1 GB/s' --memory '1 GB' | no plan of 39 layers
2 | plan-pipeline nowhere.csv --workers 4 --bandwidths '1 GB/s' | cannot read nowhere.csv
2 | plan-pipeline MAIN --workers 4 --bandwidths '1 GB/s' | is no profile of layers
2 | timeline MAIN --figure nowhere/step.svg | there is no folder
2 | timeline MAIN --trace step.txt | must end in .json
2 | timeline MAIN --trace step.json --from 3 | holds the whole step
2 | timeline MAIN --from 5 --to 4 | no stretch of what there is to show
2 | compare-schedules MAIN --schedules 1f1b,zb_v1 | did you mean 'zb_v'?
2 | compare-schedules MAIN --schedules , | is empty
2 | compare-schedules scenarios/megatron-2021/18.4b.yaml --schedules zb_v | none of these schedules
2 | presets show selen | did you mean 'selene'?
2 | presets show hgx-h100 | did you mean 'dgx-h100'?
2 | presets show selene -s training.precision=fp8 | is for frameworks; selene is none
2 | presets show nemo -s training.precision=int4 | precision = 'int4'
2 | presets show nemo --set plan.tpp=4 | unknown field 'tpp'
2 | presets show mine.yaml | 'mine.yaml' is a file's
2 | presets list gpu | did you mean 'gpus'?
2 | topology selen | did you mean 'selene'?
2 | topology selene -s plan.tp=2 | topology knows a cluster alone
2 | topology superpod-a100 --nodes 9999 | lower num_nodes
2 | topology selene --nodes 1000000000000000000 | larger than any count here
2 | finetune qwen3-4b --gpu h100 --gpus 8 --samples 1000000000000000000000000000000000000000000000000000000 | beyond anything there is to count
2 | plan-pipeline scenarios/layers/alexnet-v100.csv --bandwidths 10Gbit/s --workers 100000000000 | --workers '100000000000' must be
2 | rl scenarios/qwen3-30b-a3b-rl-32-h100.yaml --rollout-gpus 8 --step-overhead -1s | zero or more
2 | scaling batch llama3-8b --loss 1e-300 | 0.1 to 20.0 nats a token
2 | scaling batch llama3-8b --batch 1e-300 | 1e-300 tokens a batch: there is one or more
2 | scaling batch 5e-324 --tokens 1T | 5e-324 parameters: there is one or more
2 | scaling batch 7B --tokens 5e-324 | 5e-324 tokens: there is one or more
3 | search MAIN -s plan.recompute_num_layers=90 | no plan of this search has plan.recompute_num_layers = 90
2 | search MAIN -s plan.recompute_modules=1e9 | is no list of modules
2 | estimate MAIN -s stack.vocab_multiple=1e15 | less than or equal to 1000000
0 | topology superpod-h100 --collectives '1 GB' --gpus 8 | NVLS
0 | topology selene --nodes 20 | Left out core
2 | topology selene --gpus 8 | add --collectives
2 | topology selene --collectives '0 GB' | a size above zero
2 | estimate MAIN --engine dag --engine=des | --engine dag and --engine des: the option takes one value
2 | calibrate show a100 --png a.png --png b.png | --png a.png and --png b.png
2 | estimate README.md | README.md
2 | estimate scenarios | is a folder
2 | import README.md | of no kind that can be imported
2 | import tests/foreign/files/gpt3_175b.sh --gpus 1000 | nearest: --gpus 1,024
2 | import tests/foreign/files/gpt3_175b.sh -o nowhere/a.yaml | there is no folder
2 | import llama3-8b | it is the name of a model, not of a file: flopcast plan llama3-8b --gpu h100 --gpus 64 plans
2 | calibrate show nope | unknown profile preset 'nope'
2 | calibrate show a100 --png x.png | no measurements beside it
2 | calibrate run --device gpu | unknown device 'gpu'
2 | calibrate run --within 0s --device cpu | within
2 | calibrate fit LICENSE | is of no format that is read
2 | calibrate fit nowhere.jsonl | cannot read
2 | compare MAIN MAIN@plan.tp=7 | must divide
2 | compare - - | name a file for the other
2 | report MAIN -o report.txt | must end in .html
2 | report MAIN -o nowhere/report.html | there is no folder
0 | schedule 1f1b --ranks 2 --microbatches 2 | rank 0 | 0F0 0F1 0B0 0B1 rank 1 | 1F0 1B0 1F1 1B1
0 | search scenarios/korthikanti-2022/22b-selective.yaml --gpus 8 --objective cost --schedules zb_v | GPU-s/step
0 | estimate MAIN | PFLOP/s 90 %: 355 to 583 PFLOP/s, recompute counted
0 | topology selene -s cluster.num_nodes=20 | 160 GPUs
0 | train MAIN | of 104 s (profile a100), 450B tokens
0 | train MAIN | full power × PUE 1.1
0 | search scenarios/megatron-2021/18.4b.yaml --sweep gpus=64,128 | layouts that balance layers over stages are left out
0 | search scenarios/megatron-2021/310.1b.yaml --why own | same techniques and schedule. The best of them is the same.
0 | presets show datasheet -s cluster.node.gpu=l4-24gb | Values are geometric means of the shipped profiles
"""
"""Exit code, what was typed, and what the message says, or the answer; VGG and MAIN are files."""


def test_answers_and_mistakes_have_their_exit_code_and_words():
    wrong = []
    for code, words, says in (line.split(" | ", 2) for line in TYPED.strip().splitlines()):
        typed = words.replace("MAIN", MAIN).replace("VGG", "scenarios/layers/vgg16-v100.csv")
        typed = typed.replace("SMALLER", "-s plan.pp=4 -s plan.dp=3 -s training.global_batch_size=48")
        result = flopcast(*shlex.split(typed))
        said = " ".join((result.stdout if code == "0" else result.stderr).split())
        if result.returncode != int(code) or not all(part in said for part in says.split(" … ")):
            wrong.append((words, result.returncode, said))
    assert wrong == []


def test_a_foreign_file_becomes_an_answer_through_a_pipe():
    scenario = flopcast("import", "tests/foreign/files/gpt3_175b_slurm.sh", "--cluster", "selene").stdout
    answer = json.loads(flopcast("estimate", "-", "--json", input=scenario).stdout)
    assert (answer["scenario"], answer["num_gpus"]) == ("gpt3_175b_slurm", 1024)


@pytest.mark.parametrize(("typed", "offered"), [("flopcast schedule zb_h", ["zb_h1", "zb_h2"])])
def test_the_shell_completes(typed, offered):
    words = {
        "_FLOPCAST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "PATH": "",
    }  # fmt: skip
    assert started(env=words).stdout.split() == offered


def test_a_grid_in_a_file_is_shown_and_its_mistakes_are_marked(tmp_path):
    good, stuck = tmp_path / "good", tmp_path / "stuck.txt"
    good.write_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n")
    stuck.write_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0\n")
    assert flopcast("schedule", str(good)).stdout.startswith("rank 0 | 0F0 0F1 0B0 0B1")
    result = flopcast("schedule", str(stuck))
    assert result.returncode == 2
    assert "deadlock" in result.stderr
    assert "→0B0" in result.stderr
    stuck.write_text("# mine\n0F0 oF1 0B0\n1F0 1B0\n")
    assert "   2 | 0F0 →oF1 0B0\n   3 | 1F0 1B0" in flopcast("schedule", str(stuck)).stderr
    result = flopcast("schedule", str(good), "--ranks", "2", "--group", "2")
    assert (result.returncode, "leave --ranks and --group out" in result.stderr) == (2, True)


def test_timeline_in_the_terminal_and_in_files(tmp_path):
    columns = {"COLUMNS": "70", "PATH": ""}
    result = flopcast("timeline", MAIN, env=columns)
    assert result.returncode == 0
    assert "1f1b: step 104 s, bubble 15.2%" in result.stdout
    assert all(len(line) <= 70 for line in result.stdout.splitlines() if line.startswith("rank"))
    files = [str(tmp_path / name) for name in ("step.png", "step.json")]
    smaller = "scenarios/gpt3-175b-1024-a100.yaml"
    result = flopcast("timeline", smaller, "--figure", files[0], "--trace", files[1])
    assert result.returncode == 0
    assert all(Path(file).stat().st_size > 10_000 and file in result.stdout for file in files)
    assert (
        len(json.loads(Path(files[1]).read_text())["traceEvents"]) > 6_144
    )  # an action each, of 16 ranks and 192 micro-batches


def test_compare_schedules_json_has_the_documented_keys(tmp_path):
    names = "1f1b,interleaved,dualpipe_v,pipedream_2bw,hanayo"
    figure = tmp_path / "schedules.png"
    scenario = "scenarios/megatron-2021/39.1b.yaml"
    result = flopcast("compare-schedules", scenario, "--schedules", names, "--json", "--figure", str(figure))
    answer = json.loads(result.stdout)
    assert {row["schedule"] for row in answer["schedules"]} | {row["schedule"] for row in answer["left_out"]} == set(
        names.split(",")
    )
    page = (ROOT / "docs" / "schedules.md").read_text()
    assert all(f"`{key}`" in page for key in (*answer, *answer["schedules"][0], "reason"))
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("verb", "inside"),
    [
        (f"estimate {MAIN} --engine des", "sim.engines.des.Simulation"),
        (f"compare-schedules {MAIN}", "sim.report.schedules.estimate"),
    ],
)
def test_interrupting_is_not_a_traceback(verb, inside, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(inside, interrupted)
    result = flopcast(*verb.split())
    assert (result.returncode, result.stderr.splitlines()[-1]) == (130, "flopcast: interrupted")


LOADING = """
import os, signal, sys

last = sys.argv[1]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == last:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)
from sim.__main__ import main
sys.argv = ["flopcast", *sys.argv[2:]]
main()
"""
"""Interrupted when a module is about to be loaded."""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("sim.cli", ("search", MAIN)), ("numpy", ("search", MAIN)), ("flopcast_calibration.cli", ("calibrate", "--help"))],
    ids=["the command line", "what a verb needs", "another package's verb"],
)
def test_interrupting_while_it_loads_is_one_line(module, arguments):
    command = [sys.executable, "-c", LOADING, module, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "flopcast: interrupted\n")


NOWHERE = (
    "export HOME=/proc COLUMNS=40 TERM=dumb LC_ALL=C PYTHONIOENCODING=ascii PYTHONUTF8=0; cd $(mktemp -d); rmdir $PWD"
)
IN_A_SHELL = [  # what is typed, exit codes, what the only line of stderr says
    (f"{NOWHERE}; flopcast estimate {ROOT}/{MAIN} > /dev/null", (0,), ""),
    (
        f"ulimit -f 1; flopcast export {MAIN} --to megatron-lm -o $(mktemp -d)/run.sh > /dev/null",
        (1, 2),
        "File too large",
    ),
    (f"flopcast estimate {MAIN} --json | head -c 10 > /dev/null; exit ${{PIPESTATUS[0]}}", (0, 141), ""),
    ("flopcast --help | true > /dev/null; exit ${PIPESTATUS[0]}", (0, 141), ""),
    (
        "flopcast --help > /dev/full",
        (1,),
        "cannot write the answer: No space left on device; make room or write elsewhere",
    ),
    ("flopcast --help >&-", (1,), "standard output is closed, so nothing can be answered"),
    ("flopcast --help > /dev/full 2> /dev/full", (1,), ""),
    ("flopcast presets list nothing > /dev/null 2>&-", (2,), ""),
]


@rows(("typed", "codes", "says"), IN_A_SHELL)
def test_a_closed_pipe_is_no_error_and_what_cannot_be_written_is_one_line(typed, codes, says):
    command = f'export PYTHONPATH={ROOT}; flopcast() {{ {sys.executable} -m sim "$@"; }}; {typed}'
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in codes
    assert (result.stdout, result.stderr.count("\n")) == ("", bool(says))
    assert says in result.stderr


def test_scenarios_that_ship_are_found_from_anywhere(tmp_path, monkeypatch):
    """By the names that README has for them; a file of one's own goes first, and what is no shipped name is not found."""
    name = "scenarios/korthikanti-2022/22b-selective.yaml"
    text = (ROOT / name).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_scenario(name) == load_scenario(ROOT / name)
    assert flopcast("presets", "list", "scenarios", cwd=tmp_path).stdout.split() == sorted(shipped_scenarios())
    assert flopcast("presets", "show", name, cwd=tmp_path).stdout == text
    assert any_preset("scenarios/korthikanti-2022/22b-s") == [name]
    with pytest.raises(SpecError, match=r"did you mean 'scenarios/korthikanti-2022/22b-full.yaml'"):
        load_scenario("scenarios/korthikanti-2022/22b-ful.yaml")
    with pytest.raises(SpecError, match=r"no scenario of this name ships.*22b-full.yaml"):
        show_preset("scenarios/korthikanti-2022/22b-ful.yaml")
    for other in (f"scenarios/../{name}", f"./other/{name}"):
        with pytest.raises(SpecError, match="no scenario file"):
            load_scenario(other)
    own = tmp_path / name
    own.parent.mkdir(parents=True)
    own.write_text(text.replace("recompute: selective", "recompute: none"), encoding="utf-8")
    assert load_scenario(name).plan.recompute == "none"
