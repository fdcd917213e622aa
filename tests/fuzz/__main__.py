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

from tests.fuzz.cases import Case, draw
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
    parser.add_argument("--keep", type=Path, help="Folder for the files of that input.")
    options = parser.parse_args()
    if options.only is None:
        return _campaign(options)
    case = draw(random.Random(options.only))
    print("flopcast", *map(repr, case.words))
    with tempfile.TemporaryDirectory() as folder:
        fault, code = _in_folder(case, Path(folder))
        if options.keep:
            shutil.copytree(folder, options.keep, dirs_exist_ok=True)
    print(fault or f"no fault, exit code {code}")
    return int(fault is not None)


def _campaign(options: argparse.Namespace) -> int:
    context, until, last = get_context("fork"), time.monotonic() + options.seconds, options.seed + options.inputs
    seed, running, tried, answered = options.seed, {}, Counter[str](), 0
    faults: dict[tuple[str, str], list[int]] = {}
    with tempfile.TemporaryDirectory() as logs:
        while running or (time.monotonic() < until and seed < last):
            while len(running) < options.workers and time.monotonic() < until and seed < last:
                log, chunk = Path(logs) / str(seed), min(A_WORKER, last - seed)
                running[log] = context.Process(target=_work, args=(seed, chunk, log, until))
                running[log].start()
                seed += chunk
            time.sleep(0.05)
            for log in [log for log, worker in running.items() if not worker.is_alive()]:
                if running.pop(log).exitcode == 1 and not Path(f"{log}.stacks").read_text():
                    raise SystemExit(f"the fuzzer itself failed in the inputs from seed {log.name}; see above")
                for entry in _entries(log):
                    tried[entry["verb"]] += 1
                    answered += entry.get("code") == 0
                    if entry.get("fault"):
                        kind, where, detail = entry["fault"]
                        if (kind, where) not in faults:
                            print(f"{kind}: {where}  (--only {entry['seed']})\n    {detail[-400:]}", flush=True)
                        faults.setdefault((kind, where), []).append(entry["seed"])
    number = sum(map(len, faults.values()))
    print(
        f"{tried.total():,} inputs from seed {options.seed}, {answered:,} answered; {number:,} faults of {len(faults)} kinds"
    )
    for (kind, where), seeds in faults.items():
        print(f"  {len(seeds):5d}  {kind}: {where}  (--only {seeds[0]})")
    print("  " + ", ".join(f"{verb} {times}" for verb, times in tried.most_common()))
    return int(bool(faults))


def _work(seed: int, number: int, log: Path, until: float) -> None:
    """Try so many inputs; what became of each is in the log, be it the one that this process died of."""
    resource.setrlimit(resource.RLIMIT_AS, (3 * MOST_BYTES, 3 * MOST_BYTES))
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    with log.open("w") as lines, tempfile.TemporaryDirectory() as folder, open(f"{log}.stacks", "w") as stacks:
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
    for entry in found.values():
        if "fault" not in entry:
            told = Path(f"{log}.stacks").read_text().splitlines()
            own = [line.strip() for line in told if "/sim/" in line or "/calibration/" in line]
            entry["fault"] = ("killed", own[0][-90:] if own else entry["verb"], "\n".join(own[:4]))
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main())
