"""How a command ends: with its answer, or in one line and an exit code, whatever befell it or its streams."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

from sim.errors import FlopcastError, InfeasiblePlan, visible

ANSWERED, UNWRITTEN, MISTAKEN, TOO_LARGE, INTERRUPTED, READER_GONE = 0, 1, 2, 3, 130, 141
"""Exit codes; the last two are those of a process that SIGINT or SIGPIPE ended, as a shell sees it."""

GONE = {
    "calibrate from-runs --folds": "validate --transfer --runs FILE says how well some runs tell of others",
    "scaling limits": "shortest searches a cluster, and says what latency and the network cost",
    "--overlaps": "set one overlap at a time, such as -s stack.overlap_p2p=true",
    "--others": "--schedules all searches the other schedules",
    "--rules": "--why tp=8 pp=4 (the degrees that a rule of thumb chooses) says what they cost, and why",
    "--slider": "search --sweep answers with other degrees, batches and networks, and the notebooks have sliders",
    "--ramp": "write a train for each batch, with --tokens and -s training.global_batch_size=N; days and costs add up",
    "--restart": "write --startup, the time until the job loads its checkpoint",
    "--write-bandwidth": "set the cluster's, with -s cluster.storage.write_bandwidth='100 GB/s'",
    "finetune --budget": "machines stand with their time and cost, the cheapest first; leave it out",
    "search --batch": "set the scenario's, with -s training.global_batch_size=1024",
    "search --cp": "set the plan's, with -s plan.cp=[1,2,4]",
    "search --ep": "set the plan's, with -s plan.ep=[8,16]",
    "search --fix": "-s plan.tp keeps the scenario's own value, and -s plan.tp=8 sets another",
    "search --max-gpus": "write a range, such as --gpus 1..64",
    "search --fields": "flopcast fields lists the numbers that --sweep goes over",
    "scaling goodput": "train says what failures and checkpoints leave, of a scenario with --tokens",
    "timeline --width": "--svg writes a figure that scales",
    "compare-schedules --width": "--svg writes a figure that scales",
    "simulate --placement": "set the plan's, with -s plan.placement=tp-cp-pp-dp",
    "simulate --fragmentation": "set the cluster's, with -s cluster.fragmentation=0.3",
    "simulate --png": "--contention lists the use of every level and the busiest links",
    "simulate --links": "--contention lists the use of every level and the busiest links",
    "plan-pipeline --sync": "the bytes of a ring count, with the same plans; leave it out",
    "plan-pipeline --straight": "search --schedules pipedream finds straight pipelines of a scenario",
    "schedule --times": "timeline draws a scenario on a time axis, with -s plan.schedule=zb_v",
    "rl --critic": "estimate a scenario of the critic, and add its forward pass and its gradient steps",
    "rl --filtered": "ask with the --prompts that are written for rollouts, and with those that are kept for training",
    "rl --lengths": "--response, --longest and --spread describe the lengths of a log",
    "--fail-node": "train says how often failures come and what they cost",
}
"""Verbs and options that there were, of one verb or of any, each with what to write instead."""


def run_to_the_end(command: Callable[[], object]) -> int:
    """Run a command and flush what it wrote; the exit code, said why on stderr where it is not an answer's."""
    if not _ready():
        return UNWRITTEN
    try:
        code = _run(command)
        sys.stdout.flush()
    except InfeasiblePlan as error:
        return say(error, TOO_LARGE)
    except FlopcastError as error:
        return say(error, MISTAKEN)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        _give_up(sys.stdout)
        return READER_GONE
    except OSError as error:
        _give_up(sys.stdout)
        where = f"cannot use {error.filename}" if error.filename else "cannot write the answer"
        return say(f"{where}: {error.strerror or error}; make room or write elsewhere", UNWRITTEN)
    return say("interrupted", INTERRUPTED) if code == INTERRUPTED else code


def say(what: Exception | str, code: int) -> int:
    """Why there is no answer, in one line on stderr if that is there to be written to; the exit code."""
    import typer

    try:
        typer.secho(f"flopcast: {visible(str(what))}", err=True, fg="red")
    except OSError:
        _give_up(sys.stderr)
    return code


def _run(command: Callable[[], object]) -> int:
    """The exit code that a command leaves with."""
    try:
        command()
    except SystemExit as left:
        # typer and rich hear themselves that the reader (head, less) has gone, and leave with 1.
        if isinstance(left.__context__, BrokenPipeError):
            raise left.__context__ from None
        code = left.code if isinstance(left.code, int) else ANSWERED if left.code is None else MISTAKEN
        gone = _gone(sys.argv[1:]) if code == MISTAKEN else None
        return say(f"{gone} is gone: {GONE[gone]}", code) if gone else code
    except RuntimeError as error:  # how Python up to 3.11 tells of an interrupt while it makes a class
        if isinstance(error.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        raise
    return ANSWERED


def _gone(args: list[str]) -> str | None:
    """The first entry of GONE that a command line names, that of its own verb before that of any."""
    words = [each.partition("=")[0] for each in args]
    verbs = [" ".join(words[:count]) for count in (2, 1)]
    options = [word for word in words if word.startswith("--")]
    named = [*verbs, *(f"{verb} {each}" for verb in verbs for each in options), *options]
    return next((each for each in named if each in GONE), None)


def _ready() -> bool:
    """Whether there is somewhere to answer; a terminal without × or █ gets a question mark, not a traceback."""
    if sys.stderr is None:  # the next file to be opened would take its place, and what is meant for it
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        say("standard output is closed, so nothing can be answered; send it to a file, or to /dev/null", UNWRITTEN)
        return False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return True


def _give_up(stream: TextIO) -> None:
    """Keep Python from complaining once more at exit of what cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
