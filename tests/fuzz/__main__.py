"""Run the fuzzer: worker processes try seeded inputs until the time is up; faults are printed once, by their place."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import yaml

from tests.fuzz.cases import ROOT, SMALL, Case, draw
from tests.fuzz.trial import MOST_BYTES, SECONDS, attempt

A_WORKER = 150
"""Inputs before a worker makes room for a fresh one, so that caches do not count as memory."""


def main() -> int:
    """Try inputs, print faults; 1 where there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--inputs", type=int, default=10**9, help="Stop after so many.")
    parser.add_argument("--seed", type=int, default=0, help="Of the first input; each has a seed of its own.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, help="Try this one seed here, and say what it was.")
    parser.add_argument("--keep", type=Path, help="Folder for the files of inputs with faults.")
    options = parser.parse_args()
    if options.only is not None:
        case = draw(random.Random(options.only))
        print("flopcast", *map(repr, case.words))
        with tempfile.TemporaryDirectory() as folder:
            fault, code = _in_folder(case, Path(folder))
            if options.keep:
                shutil.copytree(folder, options.keep, dirs_exist_ok=True)
        print(fault or f"no fault, exit code {code}")
        return int(fault is not None)
    return _campaign(options)


def _campaign(options: argparse.Namespace) -> int:
    context, until, seed = get_context("fork"), time.monotonic() + options.seconds, options.seed
    first, running, tried, answered, faults = (
        seed, {}, Counter[str](), Counter[str](), dict[tuple[str, str], tuple[int, str]](),
    )  # fmt: skip
    counted, log = Counter[tuple[str, str]](), Path(tempfile.mkdtemp())
    if options.inputs > A_WORKER:
        _warm()
    while running or (time.monotonic() < until and seed - first < options.inputs):
        while len(running) < options.workers and time.monotonic() < until and seed - first < options.inputs:
            chunk = min(A_WORKER, options.inputs - (seed - first))
            worker = context.Process(target=_work, args=(seed, chunk, log / str(seed), until))
            worker.start()
            running[seed] = worker
            seed += chunk
        time.sleep(0.05)
        for start, worker in list(running.items()):
            if worker.is_alive():
                continue
            del running[start]
            if worker.exitcode == 1 and not (log / f"{start}.stacks").read_text():
                raise SystemExit(f"the fuzzer itself failed in the inputs from seed {start}; see above")
            for entry in _entries(log / str(start)):
                tried[entry["verb"]] += 1
                answered[entry["verb"]] += entry.get("code") == 0
                if entry.get("fault"):
                    kind, where, detail = entry["fault"]
                    counted[kind, where] += 1
                    if (kind, where) not in faults:
                        faults[kind, where] = entry["seed"], detail
                        print(f"{kind}: {where}  (--only {entry['seed']})\n    {detail[-400:]}", flush=True)
    shutil.rmtree(log, ignore_errors=True)
    print(
        f"{tried.total():,} inputs from seed {first}, {answered.total():,} answered; {counted.total():,} faults of {len(faults)} kinds"
    )
    for (kind, where), number in counted.most_common():
        print(f"  {number:5d}  {kind}: {where}  (--only {faults[kind, where][0]})")
    print("  " + ", ".join(f"{verb} {number} ({answered[verb]})" for verb, number in tried.most_common()))
    return int(bool(faults))


def _warm() -> None:
    """Import and load once, before the workers are forked, what the first inputs of each would."""
    small = {"s.yaml": yaml.safe_dump(SMALL).encode()}
    with tempfile.TemporaryDirectory() as folder:
        for words in ("search s.yaml --png s.png", "report s.yaml -o s.html", "presets list", "calibrate show a100"):
            _in_folder(Case(words.split()[0], words.split(), small), Path(folder))
        os.chdir(ROOT)


def _work(seed: int, number: int, log: Path, until: float) -> None:
    """Try so many inputs; what became of each is in the log, be it the one that this process died of."""
    resource.setrlimit(resource.RLIMIT_AS, (3 * MOST_BYTES, 3 * MOST_BYTES))
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    with log.open("w") as lines, tempfile.TemporaryDirectory() as folder, open(f"{log}.stacks", "w") as stacks:
        os.chdir(folder)
        for each in range(seed, seed + number):
            if time.monotonic() > until:
                break
            case = draw(random.Random(each))
            print(json.dumps({"seed": each, "verb": case.verb}), file=lines, flush=True)
            faulthandler.dump_traceback_later(30 * SECONDS, exit=True, file=stacks)
            fault, code = _in_folder(case, Path(folder))
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"seed": each, "fault": fault, "code": code}), file=lines, flush=True)


def _in_folder(case: Case, folder: Path):
    os.chdir(folder)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in case.files.items():
        (folder / name).write_bytes(content)
    return attempt(case)


def _entries(log: Path) -> list[dict]:
    """What a worker's log says of each input; one that was begun and not ended killed it."""
    found: dict[int, dict] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        said = json.loads(line)
        found.setdefault(said["seed"], {}).update(said)
    stacks = Path(f"{log}.stacks")
    for entry in found.values():
        if "fault" not in entry:
            told = stacks.read_text() if stacks.exists() else ""
            own = [line.strip() for line in told.splitlines() if "/sim/" in line or "/calibration/" in line]
            entry["fault"] = ("killed", own[0][-90:] if own else entry["verb"], "\n".join(own[:4]))
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main())
