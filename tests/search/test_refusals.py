"""What a search refuses or finds no plan for: the message says why, and what may be asked instead."""

import sys

import pytest
from rows import rows
from typer.testing import CliRunner

from sim.cli import app
from sim.errors import FlopcastError

SMALL, HUGE = "korthikanti-2022/22b-selective", "megatron-2021/1008b"
NETWORK = "cluster.inter_node_bandwidth"
OPEN = ["--any-framework"]
OF_FIVE = [*OPEN, "-s", "training.global_batch_size=5", "-s", "plan={}", "--gpus", "2048"]
REFUSED = [  # scenario, words, what the message says
    (SMALL, [*OPEN, "--memory-limit", "5 GB"], "--memory-limit is 5.00 GB"),
    (SMALL, [*OPEN, "--memory-limit", "5 GB"], "raise --memory-limit to 64 GB, or"),
    (SMALL, [*OPEN, "-s", "plan.cp=[3,7]"], "plan.cp = 3 or 7: it must divide the sequence of 2,048 tokens"),
    (SMALL, [*OPEN, "--gpus", "28", "-s", "plan.cp=4"], "no plan on 28 GPUs with cp 4: no product tp · cp (4) · pp · dp is 28."),
    (SMALL, [*OPEN, "--gpus", "28", "-s", "plan.cp=4"], "pp the 48 layers, and dp the batch of 4"),
    (SMALL, [*OPEN, "--gpus", "2", "-s", "plan.cp=4"], "nearest numbers that can be made are 4"),
    (SMALL, [*OPEN, "--gpus", "7"], "tp must divide the heads"),
    (SMALL, OF_FIVE, "Or take a batch that is a multiple of 2"),
    (SMALL, [*OPEN, "--gpus", "100000..200000"], "cluster 'selene' has 4,480"),
    (HUGE, [*OPEN, "--gpus", "64"], "is 85.1 GB"),
    (HUGE, [*OPEN, "--gpus", "64"], "search with --room modules,block,offload, or use more GPUs"),
    (SMALL, ["--gpus", "8..2"], "write 2..8"),
    (SMALL, ["--room", "modles"], "no such way to make room for a plan; did you mean 'modules'?"),
    (SMALL, ["--room", "foo"], "choose from block, modules, none, offload"),
    (SMALL, ["--room", "block,none"], "--room none means no way at all"),
    (SMALL, ["--figure", "a.png"], "there is none of them"),
    (SMALL, ["--pareto", "--sensitivity", "--figure", "a.png"], "draws one of"),
    (SMALL, ["--why", "plan.tp=4", "--why", "plan.tp=8"], "twice"),
    (SMALL, ["--why", ""], "names no field"),
    (SMALL, ["--why", "pt=4"], "plan.pt is no field of a plan"),
    (SMALL, ["-s", "training.global_batch_size=-1"], "global_batch_size"),
    (SMALL, ["--memory-limit", "0 GB"], "must be above zero"),
    (SMALL, ["--risk", "0.3"], "--risk 0.3 must be at least 0.5 and below 1, such as 0.9"),
    (SMALL, ["--risk", "0.9", "--why", "own"], "--risk ranks plans by what they stay below, and --why compares"),
    (SMALL, ["--objective", "time"], "unknown objective 'time'"),
    (SMALL, ["-o", "."], "it is a folder"),
    (SMALL, ["--top", "1", "-o", "/dev/full"], "cannot write /dev/full: No space left on device"),
    *((SMALL, [each for text in texts for each in ("--sweep", text)], says) for *texts, says in (
        ("cluster_bytes", "must look like"),
        ("cluster.inter_node_bandwith=1..2", "did you mean"),
        (f"{NETWORK}=25..800", "has no unit"),
        (f"{NETWORK}=800..25Gbit/s", "from a smaller to a larger"),
        (f"{NETWORK}=25..800Gbit/s:1", "two or more"),
        (f"{NETWORK}=fast", "is not a number"),
        (f"{NETWORK}=100,100 Gbit/s", "twice"),
        (f"{NETWORK}=12.5 GB/s,400Gbit/s", "another unit"),
        ("cluster.num_nodes=1..2 GB", "is not a number"),
        ("plan.recompute=none,full", "--sensitivity shows"),
        ("gpus=0,8", "whole numbers of 1 or more"),
        ("gpus=1..2", "gpus=1..2", "swept twice"),
        ("gpus=1..2", "gpus=1..2", "gpus=1..2", "one or two axes"),
        ("cluster.num_nodes=1..999:999", "searches, more than"),
        ("model.num_heads=7,11", "is not divisible by num_heads 7"),  # no value makes a scenario
    )),
    (SMALL, ["--sweep", "gpus=8", "--top", "3"], "--top would change nothing"),
    (SMALL, ["--sweep", "gpus=8", "--why", "own"], "another question"),
    (SMALL, ["--sweep", "gpus=8", "--gpus", "8"], "swept and given"),
    *(("gpt-1t-3072-a100", words, says) for *words, says in (
        ("-s", "plan.tp=7", "no plan has plan.tp = 7: it must divide the 160 heads and the matrices; degrees that do: 1, 2"),
        ("-s", "plan.zero_stage=2", "Megatron-LM of 2021-01 can run no plan with plan.zero_stage = 2 here: its distributed"),
        ("-s", "plan.tp=32", "-s", "plan.pp=128", "no plan on 3,072 GPUs with tp 32 and pp 128"),
        ("-s", "plan.tpp=8", "plan.tpp is no field of a plan"),
        ("-s", "plan.tp=8", "-s", "plan.tp=4", "plan.tp is set twice; keep one"),
        ("-s", "plan.pipeline_layout=Et|tL", "flopcast estimate prices a layout of your own"),
        ("-s", "plan.schedule=zb_v", "--schedules zb_v searches that one besides"),
        ("-s", "plan.zero_stage=4", "zero_stage"),
        ("-s", "plan.microbatch_size=0", "microbatch_size"),
        ("--export", "torchtitan", "torchtitan cannot run training.precision = fp16"),
    )),
]  # fmt: skip


def search(folder, scenario, words):
    return CliRunner().invoke(app, ["search", str(folder / f"{scenario}.yaml"), *words])


@rows(("scenario", "words", "says"), REFUSED)
def test_what_cannot_be_answered_says_why(scenario, words, says, scenarios):
    run = search(scenarios, scenario, words)
    assert isinstance(run.exception, FlopcastError)
    assert says in str(run.exception), str(run.exception)


def test_mistakes_are_told_before_the_search_and_answers_before_files(scenarios, monkeypatch):
    run = search(scenarios, SMALL, ["--top", "1", "-o", "/dev/full"])
    assert "All plans below" in run.output
    monkeypatch.setattr(sys.modules["sim.search.search"], "build_space", lambda *_, **__: pytest.fail("searched"))
    for words in (["--why", "pt=4"], ["--schedules", "zb_w"], ["--gpus", "64..8"]):
        assert isinstance(search(scenarios, SMALL, words).exception, FlopcastError)
