"""The command line as a user meets it: text, JSON with stable keys, exit codes, pipes; never a traceback."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAIN = "scenarios/gpt-1t-3072-a100.yaml"
KEYS = {
    "scenario", "engine", "num_gpus", "params", "num_microbatches", "step_time_s", "step_time_interval_s", "tokens_per_s",
    "model_flop_per_s_per_gpu", "hardware_flop_per_s_per_gpu", "total_flop_per_s", "peak_flop_per_s_per_gpu", "mfu", "hfu",
    "bubble_fraction", "training_days", "fits", "memory", "breakdown", "profile", "stack", "plan", "assumptions",
}  # fmt: skip


def flopcast(*arguments, **options):
    command = [sys.executable, "-m", "sim.cli", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, **options)
    assert "Traceback" not in result.stderr, result.stderr
    return result


def test_estimate_answers_the_main_question():
    result = flopcast("estimate", MAIN)
    assert result.returncode == 0
    for part in ("PFLOP/s", "Where the time goes", "Memory by pipeline rank", "Assumptions", "days", "fits"):
        assert part in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_estimate_json_has_the_documented_keys():
    answer = json.loads(flopcast("estimate", MAIN, "--json").stdout)
    assert set(answer) == KEYS
    readme = (ROOT / "README.md").read_text()
    assert all(f"`{key}`" in readme for key in KEYS)
    assert all(f"`{cause}`" in readme for cause in answer["breakdown"])
    assert sum(answer["breakdown"].values()) == pytest.approx(answer["step_time_s"], rel=1e-9)
    assert answer["num_gpus"] == 3072
    assert len(answer["memory"]["ranks"]) == 64


def test_readme_shows_what_is_printed():
    printed = flopcast("estimate", MAIN, env={"COLUMNS": "80", "PATH": ""}).stdout.partition("\nMemory by")[0]
    shown = (ROOT / "README.md").read_text().partition("```text\n")[2].partition("```")[0]
    assert [line.rstrip() for line in printed.rstrip().splitlines()] == shown.rstrip().splitlines()


@pytest.mark.parametrize("engine", ["dag", "des", "closed_form"])
def test_engines(engine):
    answer = json.loads(flopcast("estimate", "scenarios/megatron-2021/39.1b.yaml", "--json", "--engine", engine).stdout)
    assert answer["engine"] == engine
    assert answer["step_time_s"] == pytest.approx(14.2, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("estimate", "nowhere.yaml"), 2, "no scenario file"),
        (("estimate", MAIN, "--set", "plan.tp=7"), 2, "must divide"),
        (("estimate", MAIN, "--engine", "fast"), 2, "choose from closed_form, dag, des"),
        (("estimate", MAIN, "--profile", "nope"), 2, "unknown profile preset"),
        (("estimate", MAIN, "-s", "plan.schedule=1f1"), 2, "did you mean '1f1b'?"),
        (("estimate", MAIN, "-s", "plan.num_chunks=2"), 2, "holds one chunk a rank"),
        (("estimate", MAIN, "-s", "plan.recompute=none", "-s", "plan.pp=8", "-s", "plan.dp=48"), 3, "does not fit"),
        (("schedule", "interleaved", "--microbatches", "7"), 2, "nearest: 8"),
        (("schedule", "gpipe", "--chunks", "2"), 2, "holds one chunk a rank"),
        (("schedule", "1f1b", "--ranks", "0"), 2, "at least one rank"),
        (("presets", "show", "selen"), 2, "did you mean 'selene'?"),
        (("presets", "list", "gpu"), 2, "did you mean 'gpus'?"),
        (("topology", "selen"), 2, "did you mean 'selene'?"),
        (("topology", "superpod-a100", "--nodes", "9999"), 2, "lower num_nodes"),
        (("estimate", "README.md"), 2, "README.md"),
    ],
)
def test_mistakes_have_an_exit_code_and_a_message(arguments, code, says):
    result = flopcast(*arguments)
    assert result.returncode == code
    assert says in result.stderr


def test_not_fitting_names_what_would_help():
    result = flopcast("estimate", MAIN, "-s", "plan.recompute=none", "-s", "plan.pp=8", "-s", "plan.dp=48", "--json")
    assert result.returncode == 3
    assert json.loads(result.stdout)["fits"] is False
    assert "largest part is" in result.stderr
    assert "What would help: plan." in result.stderr


def test_compare_shows_what_differs():
    result = flopcast("compare", "scenarios/megatron-2021/76.1b.yaml", "scenarios/megatron-2021/145.6b.yaml")
    assert result.returncode == 0
    assert "plan.pp: 4 → 8" in result.stdout


def test_schedule_grid():
    result = flopcast("schedule", "1f1b", "--ranks", "2", "--microbatches", "2")
    assert result.stdout == "rank 0 | 0F0 0F1 0B0 0B1\nrank 1 | 1F0 1B0 1F1 1B1\n"


def test_presets_are_listed_and_shown_with_sources():
    assert "a100-sxm-80gb" in flopcast("presets", "list", "gpus").stdout
    shown = flopcast("presets", "show", "nodes/dgx-a100-80gb", env={"COLUMNS": "200", "PATH": ""}).stdout
    assert "nic_bandwidth" in shown
    assert "200 Gbit/s" in shown


@pytest.mark.parametrize("columns", ["30", "60", "200"])
def test_any_terminal_width(columns):
    result = flopcast("estimate", MAIN, env={"COLUMNS": columns, "PATH": ""})
    assert result.returncode == 0
    assert "56." in result.stdout  # the numbers are never cut


def test_a_terminal_without_unicode_gets_the_numbers():
    result = flopcast("estimate", MAIN, env={"PYTHONIOENCODING": "ascii", "PATH": ""})
    assert result.returncode == 0
    assert "509 PFLOP/s" in result.stdout
    assert flopcast("estimate", MAIN, "-s", "plan.dp=60", env={"PYTHONIOENCODING": "ascii", "PATH": ""}).returncode == 2


def test_interrupting_is_not_a_traceback():
    command = [
        sys.executable,
        "-m",
        "sim.cli",
        "estimate",
        MAIN,
        "--engine",
        "des",
        "-s",
        "training.global_batch_size=61440",
        "-s",
        "plan.schedule=gpipe",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m sim.cli estimate {MAIN} --json | head -n 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.returncode in (0, 141)


def test_a_step_of_millions_of_actions_is_refused_at_once():
    millions = ("estimate", MAIN, "-s", "training.global_batch_size=600000")
    result = flopcast(*millions, "-s", "plan.schedule=gpipe")
    assert result.returncode == 2
    assert "12,800,000 actions" in result.stderr
    assert flopcast(*millions).returncode == 0  # 1F1B repeats, and only its beginning is played


def test_topology_counts_switches_and_cables():
    text = flopcast("topology", "superpod-b200", "--nodes", "512").stdout
    assert "320 switches, 12,288 cables" in text
    facts = json.loads(flopcast("topology", "selene", "--json").stdout)
    assert [level["switches"] for level in facts["levels"]] == [224, 320, 112]
    assert facts["bisection_bytes_per_s"] == pytest.approx(4480 * 25e9 / 2)
